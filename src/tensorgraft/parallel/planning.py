"""`tg.parallel.plan`: forecasts the memory of each device and the communication of a step, without devices."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorgraft.hub.placement import Mesh
from tensorgraft.parallel.figures import Exchange, ForecastFigures

if TYPE_CHECKING:
    from tensorgraft.compiled.explained_call import Input
    from tensorgraft.compiled.explanation import Explanation


class Forecast(ForecastFigures):
    """A forecast of what a step will need. All sizes are bytes on one device. `print` it.

    `total` is the largest amount that the step holds: its inputs, results that do not replace inputs (such as
    gradients), and temporaries.
    """

    def __str__(self) -> str:
        from tensorgraft.parallel.report import as_text

        return as_text(self)


def plan(step: Callable[..., Any], /, *args: Any, mesh: Mesh | None = None, **kwargs: Any) -> Forecast:
    """Forecast the memory and communication of the call `step(*args, **kwargs)` on a mesh that need not exist, without
    using memory.

    Modules, inputs and the state of optimizers are on PyTorch's device `meta`; `shard_`, `shard_batch`, `shard` and
    `auto` place them on a `tg.parallel.mesh(..., abstract=True)` as they do the real ones. The step is traced as
    `tg.jit` traces it, partitioned and compiled by XLA for as many simulated devices of a CPU, in a separate process,
    and is not run: afterwards all tensors are unchanged, on the device `meta`.

    Arguments:
        step: a function of a PyTorch program, forward pass alone or a whole training step with `loss.backward()` and
            `optimizer.step()`, compiled by `tg.jit` or not.
        args, kwargs: its arguments, which are placed, as are the tensors that the function captures.
        mesh: the mesh of all these tensors, to be checked; by default that of the tensors.

    Returns a `Forecast`. Temporaries are as XLA's compiler for CPUs arranges them (products in bfloat16 are float32
    there), and so is the choice between a reduce-scatter and an all-reduce whose result is cut.

    Raises ValueError if nothing is placed, or on another mesh, or on several; TypeError for a backend without this;
    TracedValueError as `tg.jit` does; RuntimeError if XLA fails.

    >>> import tensorgraft as tg, torch
    >>> mesh = tg.parallel.mesh(2, "data", device="jax", abstract=True)
    >>> model = tg.parallel.shard_(torch.nn.Linear(4, 2, device="meta"), mesh, tg.parallel.fully_sharded())
    >>> x = tg.parallel.shard_batch(torch.ones(8, 4, device="meta"), mesh)
    >>> tg.parallel.plan(model, x).parameters
    20
    """
    from tensorgraft.frontends.torch.compiled.explain import explain_call
    from tensorgraft.frontends.torch.compiled.meta_device import imagined

    step = _uncompiled(step)
    with imagined(step, args, kwargs) as where:
        if mesh is not None and mesh != where:
            raise ValueError(f"plan: mesh is a {mesh}, but arrays that the step receives or reaches are on a {where}")
        try:
            explanation = explain_call(step, args, kwargs)
        except Exception as error:
            if "device meta" in str(error) or "meta tensor" in str(error):
                error.add_note(
                    "plan: this tensor of the device meta is none that the step has as an argument or reaches by its"
                    " variables and their attributes: pass it, or what holds it, as an argument"
                )
            raise
    return _forecast(where, explanation)


def _uncompiled(step: Any) -> Any:
    """Return the function that `tg.jit` was given."""
    if isinstance(step, types.MethodType) and hasattr(step.__func__, "__wrapped__"):
        return types.MethodType(_uncompiled(step.__func__), step.__self__)
    return step.__wrapped__ if type(step).__module__.startswith("tensorgraft.") else step


def _forecast(mesh: Mesh, e: Explanation) -> Forecast:
    by_kind: dict[str, int] = {}
    for entry in e.inputs:
        by_kind[entry.kind] = by_kind.get(entry.kind, 0) + entry.bytes_each
    m = e.program.memory
    assert m is not None
    named = ("parameter", "gradient", "optimizer state", "buffer")
    rest = sum(n for kind, n in by_kind.items() if kind not in named)
    parameters, gradients, states, buffers = (by_kind.get(kind, 0) for kind in named)
    return Forecast(
        mesh=mesh,
        parameters=parameters,
        gradients=gradients + e.gradients,
        optimizer=states,
        buffers=buffers,
        inputs=rest,
        temporary=m.temporary,
        total=m.arguments + m.outputs - m.alias + m.temporary,
        flops=e.program.flops or 0.0,
        exchanges=_exchanges(mesh, e),
        explanation=e,
    )


def _exchanges(mesh: Mesh, e: Explanation) -> list[Exchange]:
    weights = [entry for entry in e.inputs if entry.kind == "parameter"]
    rows: dict[Any, list[Any]] = {}
    for entry, use in e.exchanges():
        axes = axes_of(entry.group, mesh)
        advice = _advice(entry.kind, axes, entry.bytes, bool(use and use.backward), weights, mesh)
        row = rows.setdefault((entry.kind, axes, use and use.label, advice), [use, 0, 0])
        row[1] += 1
        row[2] += entry.bytes
    exchanges = []
    for (kind, axes, _, advice), (use, times, size) in rows.items():
        name, backward, line, source = (use.name, use.backward, use.place, use.source) if use else ("", False, "", "")
        exchanges.append(Exchange(kind, axes, times, size, name, backward, line, source, advice))
    return sorted(exchanges, key=lambda x: -x.bytes)


def axes_of(group: tuple[int, ...], mesh: Mesh) -> tuple[str, ...]:
    """Return the axes of a mesh along which the devices of a group differ, by their places in it."""
    axes = []
    for d, name in enumerate(mesh.names):
        step = math.prod(mesh.shape[d + 1 :])
        if len({i // step % mesh.shape[d] for i in group}) > 1:
            axes.append(name)
    return tuple(axes)


def _advice(kind: str, axes: tuple[str, ...], size: int, backward: bool, weights: list[Input], mesh: Mesh) -> str:
    """Return advice by a rule of thumb: an exchange is recognised by its size as that of a weight or of an
    activation."""
    axes_text = " and ".join(map(repr, axes)) or "the mesh"
    parts = math.prod(mesh.extents[name] for name in axes)
    if kind == "all-gather":
        weight = next((w for w in weights if w.bytes_each < w.bytes and w.bytes_each * parts == size), None)
        if weight is not None:
            return f"a weight of the size of {weight.name} is gathered: a plan that leaves it whole along {axes_text}"
    if kind in ("all-reduce", "reduce-scatter") and backward:
        weight = next((w for w in weights if size in (w.bytes_each, w.bytes_each * parts)), None)
        if weight is not None:
            return f"a gradient is summed, as the batch is split along {axes_text}: fewer devices there, or fewer steps"
    if kind == "all-reduce":
        return f"this line sums over what is split along {axes_text}: that dimension whole, or its result in pieces"
    return (
        f"a value is moved to lie otherwise along {axes_text}: constrain what this line takes, or gives, as the other"
    )
