"""`tg.explain` for PyTorch programs: a trace as `tg.jit` makes it, with every operator labelled, and undone."""

from __future__ import annotations

import math
import os
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tensorgraft.compiled.captured_objects import Named, arguments, objects_behind
from tensorgraft.compiled.explained_call import Fallback, Input, OperatorUse, Traced
from tensorgraft.compiled.explanation import Explanation
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.compiled.capture import current
from tensorgraft.frontends.torch.compiled.device_inference import home_of
from tensorgraft.frontends.torch.compiled.host.traced_tensors import OnlyTheHost
from tensorgraft.frontends.torch.compiled.jit import Compiled
from tensorgraft.frontends.torch.compiled.snapshot import unchanged
from tensorgraft.frontends.torch.compiled.trace import Trace
from tensorgraft.frontends.torch.compiled.tracing import Tracing
from tensorgraft.frontends.torch.core import pytrees, schema, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.core.modes import OwnMode
from tensorgraft.frontends.torch.core.source_location import Place, in_library, program_place, source_line
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, numpy_dtype
from tensorgraft.frontends.torch.core.trees import Leaves
from tensorgraft.frontends.torch.dispatch.quiet_calls import to_meta
from tensorgraft.hub.analysis import Analysis, Cost
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

Tensor = torch.Tensor


def explain_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    fn, compiled, new = _unwrapped(fn, args, kwargs)
    probe = _Probe(fn)
    flat, _ = pytrees.flatten((args, kwargs))
    leaves = Leaves(flat, (args, kwargs))
    inferred = home_of(fn, probe._captures.current(), leaves)
    if inferred.backend is None:
        raise _of_the_cpu(fn)
    backend = inferred.backend
    if not backend.traces:
        raise TypeError(
            f"tg.explain describes compiled programs, but the backend {backend.name} does not compile: it runs"
            " each operation at once. Explain the call on a device that compiles, such as tg.device('jax')."
        )
    named: list[Named] = arguments(fn, args, kwargs)
    roots = [*named, ("" if isinstance(fn, torch.nn.Module) else probe.report.name, fn)]
    objects = list(objects_behind(roots, in_library))
    watch = _Watch(backend)
    with unchanged([value for _, value in objects]), watch.active():
        start = time.perf_counter()
        try:
            probe.trace(backend, leaves, inferred.sure)
        except OnlyTheHost:
            raise _of_the_cpu(fn) from None
        seconds = time.perf_counter() - start
        inputs = _inputs(probe, objects, leaves)  # while the optimizers' state is there
        results, residuals_of, gradients = probe.results, probe.residual_sizes, probe.gradients
    program, donated = probe.program, probe.donated
    new_storages = probe.new_storages
    del probe
    _settle(backend, new_storages)
    analysis = program.analyse(donated)
    _name_constants(inputs, analysis, watch)
    explanation = Explanation(
        name=getattr(fn, "__qualname__", type(fn).__qualname__),
        backend=backend.name,
        program=analysis,
        inputs=inputs,
        operators=watch.operators(analysis.costs),
        results=results,
        kept_for_backward=residuals_of,
        gradients=gradients,
        trace_seconds=seconds,
        fallbacks=list(watch.fallen.values()),
    )
    if compiled is not None:
        report = compiled.report
        explanation.calls, explanation.cold = report.calls, report.cold
        explanation.traces = [Traced(*pair) for pair in zip(report.reasons, report.operations, strict=True)]
        explanation.switched, (explanation.this_call, explanation.waits) = report.switched, new
    return explanation


def _of_the_cpu(fn: Callable[..., Any]) -> TypeError:
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return TypeError(
        f"tg.explain tells of programs of the device, and {name} computes on CPU tensors alone, which tg.jit leaves to"
        " torch.compile: torch._dynamo.explain tells of those"
    )


def _unwrapped(
    fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Compiled | None, tuple[list[str], str]]:
    """Return (the program's function, its compiled form or None, (what is new in this call, what it waits for))."""
    if isinstance(fn, Compiled):
        return fn.fn, fn, fn.news(args, kwargs)
    if isinstance(fn, types.MethodType) and isinstance(fn.__func__, Compiled):
        compiled = fn.__func__
        return types.MethodType(compiled.fn, fn.__self__), compiled, compiled.news((fn.__self__, *args), kwargs)
    return fn, None, ([], "")


# ---- the trace -------------------------------------------------------------------------------------------------------


class _Probe(Compiled):
    """A compiled function that keeps the parts of which a trace was made."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__(fn, reported=False)

    def trace(self, backend: Backend, leaves: list[Any], on_device: bool) -> None:
        try:
            try:
                traced = self._trace(backend, leaves, on_device)
            except RunsUncompiled as why:
                raise TracedValueError(f"{self.report.name} {why}, so that tg.jit runs it uncompiled") from None
        finally:
            if hasattr(self, "capture"):
                self.capture.undos.clear()  # inputs are named by the state that the optimizers now have
                self.capture.undo()
        self.donated = traced.donated
        self.results = len(traced.results)
        left = [gradient.leaf(leaves) for gradient in traced.gradients if gradient.survivor is not None]
        self.gradients = sum(_on_one_device(cell_of(t), _bytes(backend, cell_of(t).array)) for t in left)

    def _assemble(self, tracing: Tracing, program: Any) -> Trace:
        capture, tape = tracing.capture, tracing.tape
        self.capture, self.program, self.new_storages = capture, program, capture.new_storages
        arrays = [] if tape is None else tape.arrays
        self.residual_sizes = (len(arrays), sum(_bytes(capture.backend, a) for a in arrays))
        self.written = {id(t.stand_in) for t in tracing.written}
        return super()._assemble(tracing, program)


def _bytes(backend: Backend, array: Any) -> int:
    return math.prod(backend.shape(array)) * backend.dtype_of(array).itemsize


def _on_one_device(cell: Storage, size: int, array: Any = None) -> int:
    """Bytes of a storage, of `size` bytes in all, on one of the devices over which it is spread."""
    where = cell.placement or (None if array is None else cell.backend.placement(array))
    return size if where is None else size // math.prod(map(where.parts, range(len(where.spec))))


def _settle(backend: Backend, new_storages: list[weakref.ref[Storage]]) -> None:
    """Tensors of the trace that something still holds on to (a container that is out of reach) have zeros: they must
    not be taken for traced ones."""
    for ref in new_storages:
        cell = ref()
        if cell is not None and backend.is_traced(cell.array):
            with backend.scope():
                make = backend.abstract if state.now.planning else backend.zeros
                cell.array = make(backend.shape(cell.array), backend.dtype_of(cell.array))


# ---- inputs ----------------------------------------------------------------------------------------------------------


def _inputs(probe: _Probe, objects: list[Named], leaves: list[Any]) -> list[Input]:
    names = _names(objects, {id(cell_of(t)) for t in leaves if isinstance(t, Tensor) and t.device.type == TYPE})
    capture, backend = probe.capture, probe.capture.backend
    touched = {id(t.stand_in): t for t in capture.touched}
    feeds_by_id = {id(f.stand_in): f for f in capture.feeds}
    of_host = {id(value): f"{name}, on the CPU" for name, value in reversed(objects) if isinstance(value, Tensor)}
    donated = set(probe.donated)
    inputs = []
    for k, array in enumerate(probe.program.captured):
        shape = backend.shape(array)
        if (t := touched.get(id(array))) is not None:
            kind, name, shape = names.get(id(t.cell), ("captured", "", shape))
        elif (f := feeds_by_id.get(id(array))) is not None:
            kind, name = "host", of_host.get(id(f.tensor), f.kind)
        else:
            kind, name = "constant", ""
        dtype, size = str(backend.dtype_of(array)), _bytes(backend, array)
        share = size if t is None else _on_one_device(t.cell, size, t.original)
        inputs.append(Input(kind, name, dtype, tuple(shape), size, id(array) in probe.written, k in donated, share))
    return inputs


def _names(objects: list[Named], arguments: set[int]) -> dict[int, tuple[str, str, tuple[int, ...]]]:
    """Return (kind, name, shape) of storages, by id."""
    names: dict[int, tuple[str, str, tuple[int, ...]]] = {}
    of_tensor: dict[int, str] = {}

    def add(kind: str, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.device.type == TYPE:
            cell = id(cell_of(value))
            if kind == "captured" and cell in arguments:
                kind = "argument"
            names.setdefault(cell, (kind, name, tuple(value.shape)))

    for name, value in objects:
        if isinstance(value, torch.nn.Module):
            dot = f"{name}." if name else ""
            for kind, table in (("parameter", value._parameters), ("buffer", value._buffers)):
                for key, t in table.items():
                    add(kind, f"{dot}{key}", t)
    tensors = [(name, t) for name, t in objects if isinstance(t, Tensor) and not isinstance(t, torch.nn.Parameter)]
    for name, value in objects:
        if isinstance(value, Tensor):
            of_tensor.setdefault(id(value), name)
            if isinstance(value, torch.nn.Parameter):
                add("parameter", name, value)
            add("gradient", f"{name}.grad", value.grad if value.is_leaf else None)
    for name, value in objects:
        if isinstance(value, torch.optim.Optimizer):
            for p, entries in value.state.items():
                for key, v in entries.items() if isinstance(entries, dict) else ():
                    add("optimizer state", f"{name}.state[{of_tensor.get(id(p), '...')}][{key!r}]", v)
    for name, t in tensors:
        add("captured", name, t)
    return names


def _name_constants(inputs: list[Input], analysis: Analysis, watch: _Watch) -> None:
    """Constants have no name: that of the first operator that reads one, and its line."""
    for entry, label in zip(inputs, analysis.first_use, strict=False):
        if entry.kind == "constant" and label:
            used = watch.calls[int(label)]
            entry.name = f"in {used.name}() at {used.place}"


# ---- operators -------------------------------------------------------------------------------------------------------


@dataclass
class _Watch:
    """Labels every operator of a trace with its line; operators without a kernel have stand-ins for results."""

    backend: Backend
    numbers: dict[Any, int] = field(default_factory=dict)  # label of (operator, place, backward)
    calls: list[OperatorUse] = field(default_factory=list)  # {label: operators}
    lines: dict[int, Place | None] = field(default_factory=dict)  # {sequence number of an autograd node: location}
    fallen: dict[Any, Fallback] = field(default_factory=dict)
    # (written tensor, its version before)
    versions: list[tuple[weakref.ref[Tensor], int]] = field(default_factory=list)

    @contextmanager
    def active(self) -> Iterator[None]:
        state.now.in_place_of_the_cpu = self.stand_in
        try:
            with Labels(self):
                yield
        finally:
            state.now.in_place_of_the_cpu = None
            for ref, version in reversed(self.versions):
                if (t := ref()) is not None:
                    torch._C._autograd._unsafe_set_version_counter((t,), (version,))

    def label(self, func: Any) -> str:
        node = torch._C._current_autograd_node()
        if node is None:
            line = program_place()
            self.lines.setdefault(torch.autograd._get_sequence_nr() - 1, line)
        else:
            number = node._sequence_nr()
            line = self.lines[number] if number in self.lines else program_place()
        key = (func, line, node is not None)
        n = self.numbers.setdefault(key, len(self.calls))
        if n == len(self.calls):
            name = schema.short_name(func)
            self.calls.append(OperatorUse(name, _where(line), source_line(line), node is not None, label=str(n)))
        self.calls[n].calls += 1
        return str(n)

    def note_versions(self, func: Any, args: Any, kwargs: Any) -> None:
        written_names = schema.signature(func).written
        if written_names:
            bound = schema.signature(func).bind(args, kwargs)
            for t in pytrees.leaves_of([bound.get(name) for name in written_names]):
                if isinstance(t, Tensor) and not t.is_inference():
                    self.versions.append((weakref.ref(t), t._version))

    def stand_in(self, op: Any, args: Any, kwargs: Any) -> Any:
        name, location = schema.short_name(op), program_place()
        self.fallen.setdefault((name, location), Fallback(name, _where(location))).calls += 1
        capture = current()
        assert capture is not None
        slot = slot_of_backend(self.backend)

        def stand_in_of(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            zeros = np.zeros(tuple(t.shape), numpy_dtype(t.dtype))
            return from_array(capture.feed(lambda: zeros, zeros, what=f"result of {name} on the CPU"), slot, t.dtype)

        for device in ("meta", "cpu"):  # if meta tensors do not suffice, because values are needed, zeros do
            positional, named = to_meta(args, kwargs, device)
            try:
                return pytrees.mapped(stand_in_of, op(*positional, **named))
            except NotImplementedError:
                if device == "cpu":
                    raise

    def operators(self, costs: dict[str, Cost]) -> list[OperatorUse]:
        for label, cost in costs.items():
            if label:
                use = self.calls[int(label)]
                use.flops, use.bytes = cost.flops, cost.bytes
        return sorted(self.calls, key=lambda use: (-use.flops, -use.bytes))


class Labels(OwnMode):
    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if state.now.capture is None:
            return func(*args, **kwargs)
        self.watch.note_versions(func, args, kwargs)
        with self.watch.backend.labelled(self.watch.label(func)):
            return func(*args, **kwargs)


def _where(location: Place | None) -> str:
    return "" if location is None else f"{os.path.basename(location[0])}:{location[1]}"
