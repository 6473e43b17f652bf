"""A module as a pure function of a framework's arrays, which the framework compiles, differentiates and batches.

Its derivative is PyTorch's: the backward pass that autograd would run, with the activations that autograd saves.
"""

from __future__ import annotations

import contextlib
import functools
from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from tensorgraft.compiled.captured_objects import object_key
from tensorgraft.compiled.objects import CopiedObjects, tracking_new_objects
from tensorgraft.compiled.python_state import MOST_STATES, PythonState, warn_traced_again
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.compiled.values import exact, is_plain
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.compiled.autograd.history import record
from tensorgraft.frontends.torch.compiled.autograd.tape import Tape
from tensorgraft.frontends.torch.compiled.capture import active
from tensorgraft.frontends.torch.compiled.guards.assumptions import surroundings
from tensorgraft.frontends.torch.compiled.host.call_tensors import on_host
from tensorgraft.frontends.torch.compiled.trace_contexts import HostWatch
from tensorgraft.frontends.torch.core import pytrees
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.core.tensors import cell_of, foreign_dtype, from_array, to_array
from tensorgraft.frontends.torch.graph.module_state import (
    ModuleState,
    is_written,
    joined,
    split_sparse,
    with_sparse_parts,
)
from tensorgraft.frontends.torch.graph.pure import HostConstants, PureCapture
from tensorgraft.frontends.torch.sparse.calls import current_device
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.sparse_arrays import SparseArray

Tensor = torch.Tensor
Arrays = Mapping[str, Array]


class PureFunction:
    """`Grafted.apply`: one native function for each signature that it is called with."""

    def __init__(self, module: torch.nn.Module, xp: Backend, seeding: str = "key=jax.random.key(...)") -> None:
        """`seeding`: how its caller gives random numbers, in words."""
        self.module, self.xp, self.seeding = module, xp, seeding
        self.state = ModuleState(module)
        state = [*self.state.parameters.values(), *self.state.buffers.values()]
        trained = self.state.trained
        self.parameters = {n: (foreign_dtype(p.dtype), n in trained) for n, p in self.state.parameters.items()}
        self.buffers = {name: foreign_dtype(b.dtype) for name, b in self.state.buffers.items()}
        self.on_host = not any(t.device.type == TYPE for t in state) and not isinstance(module, torch.fx.GraphModule)
        # traced programs, each with the state of Python objects that it reads
        self._known: dict[Any, list[PureSignature]] = {}

    def __call__(
        self, params: Arrays, buffers: Arrays, /, *args: Any, key: Any = None, **kwargs: Any
    ) -> tuple[Any, dict[str, Array]]:
        """Raises ValueError for other names or shapes than the module's, TracedValueError if the module reads values,
        draws random numbers without a key, or writes tensors that are not its own."""
        out, new_values = self.call(params, buffers, args, kwargs, key)
        return out, {name: new_values.get(name, buffers[name]) for name in self.buffers}

    def call(
        self, params: Arrays, buffers: Arrays, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any
    ) -> tuple[Any, dict[str, Array]]:
        """Return (results, the buffers that the module has written)"""
        for passed, expected, label in ((params, self.parameters, "params"), (buffers, self.buffers, "buffers")):
            if passed.keys() != expected.keys():
                missing, unknown = sorted(expected.keys() - passed.keys()), sorted(passed.keys() - expected.keys())
                raise ValueError(
                    f"{label} of {type(self.module).__name__} do not match: missing {missing}, unknown {unknown}"
                )
        xp = self.xp
        leaves, structure = with_sparse_parts(xp, *pytrees.flatten((args, kwargs)))
        positions, given_arrays = [], []
        for i, leaf in enumerate(leaves):
            array = leaf if isinstance(leaf, np.ndarray) else xp.operand(leaf)
            if array is not None:
                positions.append(i)
                given_arrays.append(array)
            elif isinstance(leaf, Tensor) or not _is_hashable(leaf):
                kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}"
                raise TypeError(
                    f"an argument of {type(self.module).__name__} is a {kind}: expected arrays of {xp.name} or NumPy,"
                    " numbers, strings, and containers of them"
                )
        arrays = [params[n] for n in self.parameters] + [buffers[n] for n in self.buffers] + given_arrays
        if key is not None:
            arrays.append(xp.seed_words(key))
        statics = tuple(
            None if i in positions else exact(leaf) if is_plain(leaf) else object_key(leaf)
            for i, leaf in enumerate(leaves)
        )
        modes = tuple(m.training for m in self.module.modules())
        signature = (
            structure,
            statics,
            modes,
            key is not None,
            surroundings(self.module),
            str(xp.native_dtype(dtypes.int64)),
            *map(self._described, arrays),
        )
        known = self._known.setdefault(signature, [])
        function = next((one for one in known if one.holds()), None)
        if function is None:
            function = PureSignature(self, leaves, positions, structure, key is not None)
            known[:] = [function, *known[: MOST_STATES - 1]]
        return function(arrays)

    def holds(self) -> bool:
        """Return True if Python objects have the state that they had in all traces."""
        return all(one.holds() for known in self._known.values() for one in known)

    def forget(self) -> None:
        """Trace again for all calls."""
        self._known.clear()

    def _described(self, a: Array) -> tuple[Any, ...]:
        if isinstance(a, np.ndarray):
            return a.shape, a.dtype
        shape = self.xp.shape(a)
        if shape is None or not all(isinstance(n, int | np.integer) for n in shape):
            raise ValueError(
                f"an argument of {type(self.module).__name__} has the shape {_shape_text(shape)}: a PyTorch module can"
                " be traced only for known shapes. Specify them (input_signature, TensorSpec,"
                " drop_remainder=True; for jax.export, one program for each size)."
            )
        return tuple(shape), self.xp.dtype_of(a)


class PureSignature:
    """The module's call with arguments of the same key."""

    def __init__(self, owner: PureFunction, leaves: list[Any], tensors: list[int], structure: Any, keyed: bool) -> None:
        self.owner, self.positions, self.structure, self.keyed = owner, tensors, structure, keyed
        self.leaves = [None if i in tensors else leaf for i, leaf in enumerate(leaves)]
        self.run: PureRun | None = None  # static information of the last trace
        self.taped: PureRun | None = None
        self.states: list[PythonState] = []  # around its traces
        self.reason: str | None = None  # why these cannot serve later calls
        self.places_new = False  # the module creates its tensors on the device
        # in the configuration of the user, whom a trace does not ask
        known = {dtypes.int64, *owner.buffers.values(), *(dtype for dtype, _ in owner.parameters.values())}
        self.native_dtypes = {dtype: owner.xp.native_dtype(dtype) for dtype in known}
        self.native = owner.xp.native_function(self._primal, self._forward, self._backward)

    def holds(self) -> bool:
        """Return True if Python objects have the state that they had in the traces."""
        return all(state.hold() for state in self.states)

    def host_constants(self) -> AbstractContextManager[Any]:
        """Context in which a module of the CPU runs, whose own tensors on the CPU are constants."""
        stack = contextlib.ExitStack()
        if self.owner.on_host:
            device = slot_of_backend(self.owner.xp).device
            stack.enter_context(device if self.places_new else contextlib.nullcontext())
            stack.enter_context(HostConstants(device))
        return stack

    def __call__(self, arrays: Sequence[Array]) -> tuple[Any, dict[str, Array]]:
        outputs = list(self.native(*arrays))
        if self.reason is not None:
            warn_traced_again(type(self.owner.module).__name__, self.reason)
        run = self.taped or self.run
        assert run is not None
        n = len(run.where)
        flat = list(run.flat)
        for i, array in zip(run.where, outputs[:n], strict=True):
            flat[i] = array
        results = plain(pytrees.unflatten(run.objects.placed(flat), run.structure), self.owner.xp)
        return results, dict(zip(run.written, outputs[n:], strict=True))

    def _primal(self, *arrays: Array) -> list[Array]:
        with torch.no_grad():
            self.run, results, _ = run(self, arrays, taped=False)
        return results

    def _forward(self, *arrays: Array) -> tuple[list[Array], list[Array]]:
        with torch.enable_grad():
            self.taped, results, residuals = run(self, arrays, taped=True)
        return results, residuals

    def _backward(self, residuals: Sequence[Array], cotangents: Sequence[Array]) -> list[Array | None]:
        """Pull back `cotangents` of the inexact results, which are transposed where those of PyTorch are conjugated."""
        run, xp = self.taped, self.owner.xp
        assert run is not None
        gradients_: list[Array | None] = [None] * len(run.given_dtypes)
        if run.tape is None:
            return gradients_
        converted = [xp.astype(a, dtype) for a, dtype in zip(residuals, run.residual_dtypes, strict=True)]
        dy = [_conjugate(xp, xp.astype(cotangents[k], dtype)) for k, dtype in run.roots]
        capture = PureCapture(xp, None, self.owner.seeding)
        try:
            # functions that run again in the backward pass (checkpoints) read the parameters from the module
            with active(capture), self.host_constants(), current_device(slot_of_backend(xp).device):
                seeds = [from_array(a, slot_of_backend(xp)) for a in dy]
                walk = functools.partial(run.tape.walk, capture, converted, seeds)
                state = {f"module.{name}": t for name, t in run.state.items()}
                gradients = functional_call(_Wrapped(self.owner.module), state, (walk,), tie_weights=False)
                arrays = [None if g is None else to_array(g) for g in gradients[: len(run.ends)]]
        finally:
            capture.restore()
        for end, gradient in zip(run.ends, arrays, strict=True):
            if end is not None and gradient is not None:
                gradients_[end] = _conjugate(xp, xp.astype(gradient, run.given_dtypes[end]))
        return gradients_


class _Wrapped(torch.nn.Module):
    """A module that calls a function, so that the parameters of another module can be replaced during the call."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, call: Callable[[], Any]) -> Any:
        return call()


@dataclass
class PureRun:
    """The outcome of a traced call of the module, other than its arrays."""

    given_dtypes: list[np.dtype]  # dtypes of the arguments
    structure: Any  # the structure of the results
    objects: CopiedObjects  # among the results
    flat: list[Any]  # leaves of the results and of these objects, None for tensors
    where: list[int]  # positions of the tensors among them
    written: list[str]  # the buffers that are results, too, after these
    tape: Tape | None
    roots: list[tuple[int, np.dtype]]  # (position, dtype) of the cotangents that the tape takes
    residual_dtypes: list[np.dtype]
    ends: list[int | None]  # for each leaf of the tape, the position of the argument
    state: dict[str, Tensor]  # parameters and buffers


def run(call: PureSignature, arrays: Sequence[Array], taped: bool) -> tuple[PureRun, list[Array], list[Array]]:
    """Call the module on tensors around arrays. Return (the structure of the results; arrays of results, buffers and
    residuals)."""
    try:
        return _run_once(call, arrays, taped)
    except (RuntimeError, TracedValueError) as error:
        if not _is_tried_again(call, error):
            raise
        call.places_new = True  # perhaps it writes tensors that it has created on the CPU
        try:
            return _run_once(call, arrays, taped)
        except Exception:
            call.places_new = False
        raise


def _is_tried_again(call: PureSignature, error: BaseException) -> bool:
    return isinstance(error, RuntimeError | TracedValueError) and not call.places_new and call.owner.on_host


def _run_once(call: PureSignature, arrays: Sequence[Array], taped: bool) -> tuple[PureRun, list[Array], list[Array]]:
    module = call.owner.module
    capture = PureCapture(call.owner.xp, arrays[-1] if call.keyed else None, call.owner.seeding)
    state = PythonState(
        module,
        [leaf for leaf in call.leaves if leaf is not None],
        "torch",
        list(module.modules()),
        [*module.parameters(), *module.buffers()],
    )
    try:
        # autograd makes sparse tensors of empty ones on the current device
        device = current_device(slot_of_backend(call.owner.xp).device)
        with active(capture), HostWatch(capture), call.host_constants(), state.watched(), device:
            traced = _run(call, arrays, taped, capture)
    except BaseException as error:
        state.undo()
        if not (_is_tried_again(call, error) or type(error).__module__.startswith("tensorgraft.")):
            state.repeat()
        if isinstance(error, RunsUncompiled):
            raise TracedValueError(
                f"{type(module).__name__} {error}: a module in a program of another framework cannot do that"
            ) from error
        raise
    finally:
        capture.restore()
    call.reason = state.settle() or call.reason
    call.states.append(state)
    return traced


def _run(
    call: PureSignature, arrays: Sequence[Array], taped: bool, capture: PureCapture
) -> tuple[PureRun, list[Array], list[Array]]:
    owner = call.owner
    xp = owner.xp
    slot = slot_of_backend(xp)
    first_node = torch.autograd._get_sequence_nr()
    parts, args, kwargs, argument = _tensors(call, arrays, taped)
    before = {name: (parts[name], cell_of(parts[name]).array) for name in owner.buffers}
    state = owner.state.joined(parts)
    with tracking_new_objects() as is_new:
        flat, structure = split_sparse(*pytrees.flatten(functional_call(owner.module, state, args, kwargs)))
        objects, flat = CopiedObjects.extract(flat, lambda x: isinstance(x, Tensor), lambda x: not is_new(x))
    # tensors that the module has created on the CPU
    flat = [o.to(slot.device) if on_host(o) else o for o in flat]
    after = owner.state.split(state)
    seen_ids: set[int] = set()
    for i, o in enumerate(flat):  # a result that is a parameter, or another result, has a derivative of its own
        if isinstance(o, Tensor) and o.requires_grad and (o.is_leaf or id(o) in seen_ids):
            flat[i] = o.view_as(o)
        seen_ids.add(id(o))
    written_names = [n for n, (t, array) in before.items() if is_written(after[n], t, array)]
    where = [i for i, o in enumerate(flat) if isinstance(o, Tensor) and o.device.type == TYPE]
    no_names = [None] * len(flat)
    positions, tape = record(flat, no_names, no_names, first_node, capture) if taped else ([], None)
    results = [to_array(flat[i].detach()) for i in where] + [to_array(after[n].detach()) for n in written_names]
    # cotangents are given for results that have a derivative, in order
    smooth = [k for k, a in enumerate(results) if dtypes.is_inexact(xp.dtype_of(a))]
    residuals: list[Array] = []
    if tape is not None:
        tape.keep(capture, capture.survivors())
        residuals = list(tape.arrays)
    run = PureRun(
        given_dtypes=[xp.dtype_of(a) for a in arrays],
        structure=structure,
        objects=objects,
        flat=[None if i in set(where) else o for i, o in enumerate(flat)],
        where=where,
        written=written_names,
        tape=tape,
        roots=[(smooth.index(where.index(i)), xp.dtype_of(results[where.index(i)])) for i in positions],
        residual_dtypes=[xp.dtype_of(a) for a in residuals],
        ends=[] if tape is None else [argument.get(id(t)) for t in tape.leaves],
        state=state,
    )
    if tape is not None:
        tape.locate({}, [])
    return run, results, residuals


def _tensors(
    call: PureSignature, arrays: Sequence[Array], taped: bool
) -> tuple[dict[str, Tensor], Any, Any, dict[int, int]]:
    """Return (parameters and buffers, or their parts; the arguments; which array each tensor is that has a gradient,
    by identity)."""
    owner = call.owner
    xp = owner.xp
    slot = slot_of_backend(xp)
    argument: dict[int, int] = {}

    def tensor(k: int, dtype: np.dtype | None, differentiable: bool) -> Tensor:
        array = arrays[k]
        # floating-point arguments keep the user's precision, so that parameters do, too
        if dtype is not None and dtype.kind in "iu" and xp.dtype_of(array) == call.native_dtypes[dtype]:
            array = xp.astype(array, dtype)
        t = from_array(array, slot)
        if taped and differentiable and (t.is_floating_point() or t.is_complex()):
            argument[id(t.requires_grad_())] = k
        return t

    state = {name: tensor(k, *description) for k, (name, description) in enumerate(owner.parameters.items())}
    for name, dtype in owner.buffers.items():
        state[name] = tensor(len(state), dtype, False)
    leaves = list(call.leaves)
    widened = call.native_dtypes[dtypes.int64] != dtypes.int64  # the user has no int64 to give
    for k, i in enumerate(call.positions, start=len(state)):
        narrow = widened and xp.dtype_of(arrays[k]) == dtypes.int32
        t = tensor(k, dtypes.int64 if narrow else None, True)
        leaves[i] = t.clone() if t.requires_grad else t  # the module may write it
    args, kwargs = joined(pytrees.unflatten(leaves, call.structure))
    return state, args, kwargs, argument


def plain(o: Any, xp: Backend) -> Any:
    """Return containers that every framework knows: of mappings of other classes, dictionaries."""
    if type(o) is SparseArray:
        return o if xp.grafted_as is None else xp.sparse_array(*o)
    if isinstance(o, Mapping):
        return {name: plain(value, xp) for name, value in o.items() if value is not None or type(o) is dict}
    if isinstance(o, tuple) and hasattr(o, "_fields"):
        return type(o)(*[plain(x, xp) for x in o])
    if type(o).__module__ == "torch.return_types":
        return _named_tuple(o.__class__)(*[plain(x, xp) for x in o])
    return type(o)(plain(x, xp) for x in o) if type(o) in (list, tuple) else o


@functools.cache
def _named_tuple(kind: type[tuple[Any, ...]]) -> Any:
    """Return a class for results of one of PyTorch's operators, whose own class other frameworks do not know."""
    return namedtuple(kind.__name__, kind.__match_args__)  # type: ignore[attr-defined]


def _shape_text(shape: Sequence[Any] | None) -> str:
    return "unknown" if shape is None else f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def _is_hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def _conjugate(xp: Backend, a: Array) -> Array:
    return xp.conj(a) if dtypes.is_complex(xp.dtype_of(a)) else a
