"""`trace_module`: a module at one size of its arguments, as a `SourceTrace`."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from tensorgraft.codegen.trace import Frame, SourceTrace, prune, steps
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.codegen import composites, functions
from tensorgraft.frontends.torch.codegen.autocasting import autocast_of_the_cpu
from tensorgraft.frontends.torch.codegen.backend import SourceBackend, SourceRecording, source_backend
from tensorgraft.frontends.torch.codegen.call_recorder import WordWatch
from tensorgraft.frontends.torch.codegen.calls import Calls
from tensorgraft.frontends.torch.codegen.checks import checked
from tensorgraft.frontends.torch.codegen.escaping_values import note_left
from tensorgraft.frontends.torch.codegen.kernels import KERNELS
from tensorgraft.frontends.torch.codegen.keys import join_keys
from tensorgraft.frontends.torch.codegen.modules import (
    DROPPED,
    Frames,
    arguments,
    doc_of,
    pairs,
    tree,
    unchanged_modules,
)
from tensorgraft.frontends.torch.codegen.values import values_of
from tensorgraft.frontends.torch.compiled.capture import active
from tensorgraft.frontends.torch.compiled.host.traced_tensors import HostWatch
from tensorgraft.frontends.torch.core import pytrees
from tensorgraft.frontends.torch.core.devices import TYPE, recording_slot
from tensorgraft.frontends.torch.core.spec import OWN
from tensorgraft.frontends.torch.core.state import RandomState
from tensorgraft.frontends.torch.core.tensors import cell_of, cpu_to_numpy, foreign_dtype, from_array, to_array
from tensorgraft.frontends.torch.core.values import concrete_array, looked_up
from tensorgraft.frontends.torch.graph.exported import is_exported, on_device
from tensorgraft.frontends.torch.graph.module_state import ModuleState
from tensorgraft.frontends.torch.graph.pure import PureCapture
from tensorgraft.frontends.torch.setup import install
from tensorgraft.frontends.torch.sparse.parts import is_sparse, named_parts
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Var, variables

Tensor = torch.Tensor


class KnownValues:
    """The values that a module may ask for: those that depend on constants and sizes alone, or are only checked."""

    def of(self, xp: SourceBackend, array: Var) -> np.ndarray | None:
        recording = xp.current
        values = values_of(recording.makers, array, recording.values)
        if values is None and (check := checked()) is not None:
            values = values_of(recording.makers, array, {**recording.examples})
            recording.notes[f"left out: {check}"] = None
        return values


_one_at_a_time = threading.RLock()  # PyTorch is patched for the whole process meanwhile
MOST = 1024  # elements of a buffer that is written as a constant


class SourceCapture(PureCapture):
    """The capture of a module that is recorded: that of a pure function, with a key for its random numbers."""

    def __init__(self, xp: SourceBackend) -> None:
        super().__init__(xp, None, "a key")
        self.values = KnownValues()  # type: ignore[assignment]

    def draw(self, source: RandomState) -> Any:
        return source_backend().draw()


def trace_module(
    module: torch.nn.Module,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    training: bool | None = None,
) -> SourceTrace:
    """Return the trace of `module(*args, **kwargs)`, whose arguments may be tensors, NumPy arrays, numbers, strings,
    and containers of them. `training`: in that mode, None: in the one it is in. The module is left as it is.

    Raises TracedValueError where the module asks for values that only running gives, what the module itself raises, and
    TypeError for arguments and results that have no place in a trace.
    """
    install()
    refuse_sparse(args, kwargs)
    xp = source_backend()
    slot = recording_slot(xp)
    OWN.setdefault(xp, KERNELS)
    if is_exported(module):
        module = on_device(module, slot.device)
    with _one_at_a_time, unchanged_modules(module), _surroundings(), _asked_for_values(), autocast_of_the_cpu():
        if training is not None:
            module.train(training)
        return _trace(module, tuple(args), kwargs or {}, xp, slot)


def _trace(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], xp: SourceBackend, slot: Any
) -> SourceTrace:
    root = Frame(type(module).__name__, "", is_module=True, doc=doc_of(module))
    parameters, buffers, aliases, weights = _state(module)
    joined = ModuleState(module).joined
    capture, frames = SourceCapture(xp), Frames(xp, module)
    with xp.tracing(root) as recording:
        try:
            with active(capture), HostWatch(capture), composites.installed(slot):
                state = {name: from_array(v, slot) for name, v in {**parameters, **buffers}.items()}
                recording.smooth.update(v for v in parameters.values() if dtypes.is_inexact(v.dtype))
                recording.examples.update((v, weights[name]) for name, v in {**parameters, **buffers}.items())

                def array_of(x: Any) -> Any:
                    if isinstance(x, np.ndarray):
                        x = torch.from_numpy(x)
                    if not isinstance(x, Tensor):
                        return x
                    v = Var(tuple(x.shape), foreign_dtype(x.dtype))
                    recording.examples[v] = np.array(cpu_to_numpy(x.detach().cpu()))
                    if dtypes.is_inexact(v.dtype):
                        recording.smooth.add(v)
                    return from_array(v, slot)

                args, kwargs = pytrees.mapped(array_of, (args, kwargs))
                root.arguments = arguments(module, args, kwargs)
                before = {name: cell_of(state[name]).array for name in state}
                tied = joined({**state, **{alias: state[name] for alias, name in aliases.items()}})
                calls = Calls(xp, {*parameters.values(), *buffers.values()})
                watching = WordWatch(xp, slot)
                with watching, frames.watched(), functions.traced(recording), calls.watched():
                    out = functional_call(module, tied, args, kwargs)
                watching.refuse_written()
                with torch.enable_grad():
                    result = _result(xp, out, type(module).__name__)
                    writes = {
                        name: xp.result(to_array(t.detach()))
                        for name, t in state.items()
                        if cell_of(t).array is not before[name]
                    }
        finally:
            capture.restore()
        root.result = result
        for name in writes:
            if name in buffers:
                buffers[name].value = None  # it is state
        constants = {name: weights.pop(name) for name, v in buffers.items() if v.value is not None}
        buffers = {name: v for name, v in buffers.items() if name not in constants}
        trace = SourceTrace(
            "torch", type(module).__name__, root, root.arguments, result, parameters, buffers, writes, aliases,
            weights, recording.key, module.training, constants, list(recording.notes), list(recording.derivative_notes),
            containers={path: _container(m) for path, m in module.named_modules()},
        )  # fmt: skip
        prune(trace)
        join_keys(trace)
        if trace.key is not None and all(trace.key not in step.args for step in steps(root)):
            trace.key = None
        note_left(root, writes.values())
        return trace


def _container(module: torch.nn.Module) -> str:
    return "list" if isinstance(module, torch.nn.ModuleList) else type(module).__name__


def _result(xp: SourceBackend, out: Any, name: str) -> Any:
    if any(map(is_sparse, pytrees.leaves_of(out))):
        raise TypeError(
            f"{name} returns a sparse tensor, which written functions have no class for: return its values and indices,"
            " or x.to_dense()"
        )
    result = tree(out)
    if result is DROPPED:
        raise TypeError(
            f"{name} returns a {type(out).__module__}.{type(out).__qualname__}, which cannot be written as source"
        )

    def stopped(x: Any) -> Any:
        if type(x) is Var:
            return xp.result(x)
        if type(x) is dict:
            return {k: stopped(v) for k, v in x.items()}
        return type(x)(map(stopped, x)) if type(x) in (tuple, list) else x

    return stopped(result)


def _state(module: torch.nn.Module) -> tuple[dict[str, Var], dict[str, Var], dict[str, str], dict[str, np.ndarray]]:
    """Return (parameters, buffers, ties, values), of sparse ones those of their parts. Buffers that are in no
    checkpoint, and are small, are constants."""
    passing = {
        f"{path}.{name}" if path else name
        for path, m in module.named_modules(remove_duplicate=False)
        for name in m._non_persistent_buffers_set
    }
    first: dict[int, str] = {}
    parameters: dict[str, Var] = {}
    buffers: dict[str, Var] = {}
    aliases: dict[str, str] = {}
    weights: dict[str, np.ndarray] = {}
    named: list[tuple[bool, str, Tensor]] = [(True, *item) for item in module.named_parameters(remove_duplicate=False)]
    named += [(False, *item) for item in module.named_buffers(remove_duplicate=False)]
    for trained, name, t in named:
        parts = named_parts(name, t)
        if id(t) in first:
            aliases.update(zip(parts, named_parts(first[id(t)], t), strict=True))
            continue
        first[id(t)] = name
        for part_name, part in parts.items():
            value = np.array(cpu_to_numpy(part.detach().cpu()))
            constant = value if name in passing and part.numel() <= MOST else None
            v = Var(tuple(part.shape), foreign_dtype(part.dtype), constant)
            is_parameter = trained and t.requires_grad and part.dtype is t.dtype
            (parameters if is_parameter else buffers)[part_name] = v
            weights[part_name] = value
    return parameters, buffers, aliases, weights


def refuse_sparse(args: Any, kwargs: Any) -> None:
    """Raises TypeError for sparse tensors among the arguments of a call."""
    for x in pytrees.leaves_of((args, kwargs)):
        if is_sparse(x):
            raise TypeError(
                f"an argument is a sparse tensor of shape {tuple(x.shape)} and layout {str(x.layout)[6:]}, which"
                " written functions have no class for: register it as a buffer of the module (its parts are then"
                " buffers of the written one), or let the module take indices and values and make the tensor of them"
            )


@contextlib.contextmanager
def _surroundings() -> Iterator[None]:
    """PyTorch's fused kernel for `nn.TransformerEncoderLayer` in evaluation is left out: it is no other function."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextlib.contextmanager
def _asked_for_values() -> Iterator[None]:
    """Answer libraries that check whether a tensor has values before they read them (transformers, for masks): a tensor
    that depends only on sizes has, and others have none, as in a trace."""
    original = torch.cuda.is_current_stream_capturing

    def capturing() -> bool:
        frame: Any = sys._getframe(1)
        for _ in range(3):  # a function that was called with one tensor may call one that sees the trace
            if frame is None:
                break
            t = frame.f_locals.get("tensor")
            if isinstance(t, Tensor) and t.device.type == TYPE:
                return (
                    cell_of(t).backend.is_traced(concrete_array(t))
                    and looked_up(cell_of(t).backend, concrete_array(t)) is None
                )
            frame = frame.f_back
        return original()

    torch.cuda.is_current_stream_capturing = capturing
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = original


__all__ = ["TYPE", "SourceRecording", "TracedValueError", "pairs", "trace_module", "variables"]
