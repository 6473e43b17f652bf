"""The cold tier of eager operators, which computes without a compiler on the memory of the backend's arrays.

If the backend's arrays are in the host's memory (`Backend.cold`), the first calls of a signature need no plan:
PyTorch's CPU kernel determines shapes, strides, warnings, errors and values in one call. Operators without such a
kernel, and random ones, whose bits are the device's, run on the cold backend. Results are new memory, which their
storages own (`Storage.cold`); a compiled program that reads them gets arrays of the backend without a copy. Arrays of a
backend are never written: a storage that is written gets a copy of its own.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_of, slot_of_backend
from tensorgraft.frontends.torch.core.modes import without_autocast
from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.new_tensors import (
    CAPSULE_NAME,
    Header,
    header,
    import_capsule,
    imported,
    make_capsule,
)
from tensorgraft.frontends.torch.core.operator import OUT_OF_BOUNDS, Operator, keep
from tensorgraft.frontends.torch.core.scalars import SYMBOLIC
from tensorgraft.frontends.torch.core.tensors import attach, cell_of, numpy_dtype, numpy_to_cpu, set_storage
from tensorgraft.frontends.torch.dispatch import checks
from tensorgraft.frontends.torch.dispatch.autograd import linear_backward
from tensorgraft.frontends.torch.dispatch.host_work import elements, host_work
from tensorgraft.frontends.torch.dispatch.memory import (
    NotLent,
    copied,
    cpu_view,
    ensure_owned,
    geometric_view,
    hosted,
    is_owned,
    is_whole,
    memory,
    rows,
)
from tensorgraft.frontends.torch.dispatch.meta_results import has_room
from tensorgraft.frontends.torch.dispatch.plan import Plan
from tensorgraft.frontends.torch.dispatch.planning import device_error, make_plan
from tensorgraft.frontends.torch.dispatch.program import convert, random_key
from tensorgraft.frontends.torch.dispatch.refusals import NO_KERNEL, NO_TRANSFORM
from tensorgraft.frontends.torch.dispatch.results import conjugated
from tensorgraft.hub import host_copies, tiers
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.tiers import tiered
from tensorgraft.storage import ColdStorage, Storage, is_dense

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
MISS = object()  # a call that the cold tier leaves to a plan

_CPU = torch.device("cpu")
# classes of arguments that are the same on the CPU
_PLAIN = frozenset({int, float, bool, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format})
# operators whose CPU kernels are less exact than those here, or leave (part of) the result uninitialised
_PROGRAMMED = frozenset({"_standard_gamma_grad", "_dirichlet_grad", "_grouped_mm", "gelu.out", "histc", "histc.out"})
_autocast = torch._C._is_any_autocast_enabled  # half a microsecond less than to ask for a device's
# operators whose only result is a new tensor, in addition to elementwise ones
_FRESH = frozenset({"_softmax", "addmm", "all", "any", "arange.start_step", "argmax", "argmin", "bmm", "cat", "clone",
                    "cumsum", "embedding", "full", "gather", "index.Tensor", "index_select", "linear", "max",
                    "mean.dim", "min", "mm", "scalar_tensor", "silu", "sum.dim_IntList"})  # fmt: skip
# {operator without a CPU kernel, or (zeros without memory) with one of another kind: the function to call instead}
_INSTEAD: dict[str, Callable[..., Any]] = {
    "linear_backward": linear_backward,
    "_efficientzerotensor": torch.zeros,
    "convert": lambda x, dtype, memory_format: x.to(dtype, memory_format=memory_format, copy=True),
    "assign": torch._C.TensorBase.copy_,
}

plans: Counter[str] = Counter()  # made for backends that compile
operators: list[ColdOperator] = []


def tier_counts() -> tuple[Counter[str], Counter[str]]:
    """Return (of each operator, the calls that the cold tier computed; the plans that were made for a backend that
    compiles). Raises nothing.

    >>> import tensorgraft as tg
    >>> computed, plans = tg.torch.tier_counts()
    """
    cold: Counter[str] = Counter()
    for operator in operators:
        if calls := operator.calls + sum(count() for count in operator.native_calls):
            cold[operator.name] += calls
    return cold, Counter(plans)


def copy_counts() -> Counter[str]:
    """Return how many arrays the cold tier has copied "to the host" and "to the device", on devices whose memory the
    host cannot read. Raises nothing.

    >>> import tensorgraft as tg
    >>> copies = tg.torch.copy_counts()
    """
    return Counter(host_copies.counts)


class ColdSignature:
    """Calls of an operator with the same key."""

    __slots__ = ("heat", "plan", "slot", "written")

    def __init__(self, written_storages: tuple[int, ...], slot: Slot) -> None:
        self.written = written_storages  # storages that the call writes
        self.slot = slot
        self.plan: Plan | None = None  # for the cold backend
        self.heat = tiers.Heat()  # the work of that signature


class ColdOperator:
    """An operator in the cold tier. A call gives its results, or MISS where a plan is to do it.

    `returned` picks the results out of the arguments, where they are written ones; `draw` gives the next random words.
    """

    def __init__(self, operator: Operator, returned: Callable[..., Any] | None, draw: Callable[..., Any]) -> None:
        self.name = operator.name
        self.calls = 0
        self.native_calls: list[Callable[[], int]] = []  # the numbers of calls that native kernels have computed
        self.wrote = False  # the CPU's kernel has run, and the call has not ended
        self.of, self._returned, self._draw = operator, returned, draw
        self._signatures: dict[Any, ColdSignature] = {}
        substitute, meta = _INSTEAD.get(operator.name), operator.spec.meta
        self._run = _with_layout(substitute, meta) if substitute and callable(meta) else substitute or operator.op._op
        self._out = schema.is_out(operator.op)
        self._writes = bool(operator.writes)
        sig = operator.signature
        written_positions = [sig.positional.index(n) for n in operator.writes if n in sig.positional]
        # True for an operator that only writes arguments
        writes = returned is not None and not self._out and len(written_positions) == len(operator.writes)
        self.written_positions = tuple(written_positions) if writes and not operator.spec.random else ()
        self._writes_first = self.written_positions == (0,)
        tensors = [name for name, kind in sig.types.items() if "Tensor" in kind]
        # True for an operator that fills its one tensor with random numbers
        self._fills = operator.spec.random and operator.kind == "kernel" and sig.written == tuple(tensors) == ("self",)
        self.creates = "device" in sig.names and not any("Tensor" in kind for kind in sig.types.values())
        # True for an operator whose result is one new tensor that fills its memory
        self._is_fresh = operator.elementwise or operator.name in _FRESH
        # the function of PyTorch's Python parses arguments in half the time; its defaults are not always the schema's
        # (`reduction`), but those of operators of these kinds are
        plain = self._is_fresh or (self._writes_first and torch.Tag.pointwise in operator.op.tags)
        self._function = (not substitute and plain and schema.python_function(operator.op)) or self._run
        self.is_direct = bool(self.written_positions) or not (self._writes or operator.spec.random)
        self._host = frozenset(i for i, n in enumerate(sig.positional) if n in operator.spec.host)
        operators.append(self)

    @functools.cached_property
    def on_cpu(self) -> bool:
        """Return True if the CPU's kernel computes the operator. Determined at the first call, since PyTorch may
        register kernels later than this module."""
        return self.has_cpu_kernel()

    def has_cpu_kernel(self) -> bool:
        """Return True if PyTorch has now a CPU kernel of the operator that the cold tier may call."""
        known = self.name in _INSTEAD or schema.runs_on_cpu(self.of.op)
        return known and not self.of.spec.random and self.name not in _PROGRAMMED | OUT_OF_BOUNDS

    def __call__(
        self,
        key: Any,
        backend: Backend | None,
        cells: list[Storage],
        inputs: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not tiered() or (
            backend is not None and backend.records and backend.is_hot(_without_offsets(self.name, key))
        ):
            return MISS
        known = self._signatures.get(key)
        if known is None:
            if backend is None or backend.cold is None:
                return MISS
            known = ColdSignature(self._written_storages(args, kwargs), slot_of_backend(backend))
            keep(self._signatures, key, known)
        if self.on_cpu:
            out = self.computed(known, cells, args, kwargs)
            calls = self.of.calls
            if out is not MISS and key not in calls:  # where the next call looks first
                keep(calls, key, known)
            return out
        out = self._programmed(known, cells, inputs, args, kwargs)
        if out is not MISS:
            self.calls += 1
        return out

    def direct(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a call without its key: one that makes new tensors of those of one backend, or that only writes its
        arguments (at `written_positions`). CPU PyTorch itself checks everything that the key contains."""
        lowered: list[Any] = []
        try:
            is_ready = not self.written_positions or (self._writes_first and is_owned(args[0]))
            backend = None if is_ready else self._to_be_written(args)
            for a in args:
                kind = a.__class__
                if kind is Tensor or kind is Parameter:
                    cell = a.untyped_storage().cell
                    if cell.backend is not backend:
                        backend = _lending(cell.backend, backend)
                    base = cell.cold if cell.__class__ is ColdStorage else memory(cell)
                    shape, strides, offset = a.size(), a.stride(), a.storage_offset()
                    if base.dtype is not a.dtype:
                        base = geometric_view(base, a)
                    elif offset or base.shape != shape or base.stride() != strides:
                        base = base.as_strided(shape, strides, offset)
                    lowered.append(base)
                elif kind in _PLAIN:
                    lowered.append(a)
                elif kind is list and a and (a[0].__class__ is Tensor or a[0].__class__ is int):
                    values, backend = _lower_list(a, backend)
                    lowered.append(values)
                else:
                    lowered.append(_lower(a, backend, len(lowered) in self._host))
            named = _lower_named(kwargs, backend) if kwargs else kwargs
            if backend is None and self.creates:
                backend = _lending(slot_of(kwargs.get("device")).backend, None)
        except (NotLent, AttributeError, IndexError, TypeError):  # no tensor, or one that is not on this device
            return MISS
        if backend is None or not self.on_cpu:
            return MISS
        if _autocast():
            out = self._run_on_cpu(lowered, named)
        else:
            try:
                out = self._function(*lowered, **named) if named else self._function(*lowered)
                self.wrote = self._writes
            except TypeError:  # arguments that PyTorch's C++ alone passes, such as a number for a tensor
                self._function = self._run
                out = self._run_on_cpu(lowered, named)
            except RuntimeError as error:
                if not self._is_missing(error):
                    raise
                return MISS
        if out is MISS:
            return MISS
        self.calls += 1
        if self._is_fresh:
            like = _headers.get((backend, out.dtype, out.shape, out.stride()))
            if like is not None:
                tensor = import_capsule(make_capsule(like.address, CAPSULE_NAME, None))  # inlined `imported`
                tensor.untyped_storage().cell = ColdStorage(None, backend, out)  # type: ignore[attr-defined]
                return tensor
        if self._returned is None:
            return results(out, backend, (*lowered, *named.values()) if named else lowered)
        return self._written(args, kwargs, lowered[0])

    def _written(self, args: tuple[Any, ...], kwargs: dict[str, Any], low: Any) -> Any:
        """Return the results of a call that has written `low`, the CPU's tensor of its first argument."""
        assert self._returned is not None
        if self.name == "addbmm_" and low.shape != args[0].shape:  # broadcast by the CPU's kernel
            _resized(args[0], low)
        self.wrote = False
        return self._returned(args, kwargs)

    def _to_be_written(self, args: tuple[Any, ...]) -> Backend:
        """See to it that the memory that a call writes is its storages' own, and return their backend."""
        first = args[self.written_positions[0]]
        while isinstance(first, list):
            first = first[0]
        backend = _lending(cell_of(first).backend, None)
        if not self.on_cpu:
            raise NotLent
        for at in self.written_positions:
            for t in args[at] if isinstance(args[at], list) else (args[at],):
                ensure_owned(cell_of(t))
        return backend

    def at_once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute a call of an operator that is never compiled, since the shapes of its results depend on values.
        Returns MISS if the cold tier cannot."""
        cells = [cell_of(t) for t in tensors_in(args, kwargs) if t.device.type == TYPE]
        backend = cells[0].backend if cells else None
        if not tiered() or backend is None or backend.cold is None or not self.on_cpu:
            return MISS
        if not backend.host_visible and any(cell.__class__ is not ColdStorage for cell in cells):
            return MISS
        if any(cell.backend is not backend for cell in cells):
            return MISS
        return self.computed(
            ColdSignature(self._written_storages(args, kwargs), slot_of_backend(backend)), cells, args, kwargs
        )

    # ---- CPU PyTorch's kernel --------------------------------------------------------------------------------------

    def computed(
        self, known: ColdSignature, cells: list[Storage], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Compute a call by CPU PyTorch if its signature is known to be accepted there, or is not known yet."""
        backend = known.slot.backend
        if not backend.host_visible and known.heat.spent(*host_work(self.name, cells, args)):
            return MISS
        try:
            for at in known.written:
                ensure_owned(cells[at])
                if self._out and not (cells[at].shared or cells[at].cold.untyped_storage().resizable()):
                    cells[at].cold = cells[at].cold.clone()  # an array has looked at it
            lowered = [
                _cpu_operand(a)
                if a.__class__ is Tensor or a.__class__ is Parameter
                else _lower(a, None, i in self._host)
                for i, a in enumerate(args)
            ]
            named = _lower_named(kwargs, None) if kwargs else kwargs
            if self._out:
                lowered, named, outs = self._separate(args, kwargs, lowered, named)
        except NotLent:
            return MISS
        out = self._run_on_cpu(lowered, named)
        if out is MISS:
            return MISS
        self.calls += 1
        if self._returned is not None:
            for high, low in outs if self._out else ():
                if low.is_conj():
                    torch._C._set_conj(low, False)
                    conjugated(high)
                if high.size() != low.size():
                    _resized(high, low)
            self.wrote = False
            return self._returned(args, kwargs)
        return results(out, backend, (*lowered, *named.values()))

    def _run_on_cpu(self, lowered: list[Any], named: dict[str, Any]) -> Any:
        try:
            if _autocast() and torch.is_autocast_enabled("cpu"):
                with without_autocast():
                    out = self._run(*lowered, **named)
            else:
                out = self._run(*lowered, **named)
            self.wrote = self._writes
            return out
        except RuntimeError as error:
            if not self._is_missing(error):
                raise
            return MISS

    def _is_missing(self, error: RuntimeError) -> bool:
        """Return whether an error of CPU PyTorch says that it lacks a kernel, which the backend may have."""
        if isinstance(error, NotImplementedError) or any(words in str(error) for words in (NO_KERNEL, NO_TRANSFORM)):
            return True
        self.wrote = self._writes and self.name.startswith("_foreach_")  # perhaps tensors before the one at fault
        return False

    def _written_storages(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        names = self.of.writes
        if not names:
            return ()
        bound = self.of.signature.bind(args, kwargs)
        targets = tensors_in([bound[name] for name in names if name in bound], {})
        if any(t.device.type != TYPE for t in targets):
            raise device_error(self.name, tensors_in(args, kwargs))
        ids = {id(t) for t in targets}
        on_device = [t for t in tensors_in(args, kwargs) if t.device.type == TYPE]
        return tuple(i for i, t in enumerate(on_device) if id(t) in ids)

    def _separate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], lowered: list[Any], named: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any], list[tuple[Tensor, Tensor]]]:
        """Return (the arguments, with resizable copies of tensors that are written; pairs of each written tensor and
        its copy)."""
        outs = {}
        for name in self.of.signature.written:
            low = named.get(name)
            if isinstance(low, Tensor):  # a tensor without memory gets new memory
                out_and_copy = (
                    low.as_strided(low.size(), low.stride())
                    if low.untyped_storage().nbytes()
                    else torch.empty_like(low)
                )
                outs[id(kwargs[name])] = kwargs[name], out_and_copy

        def separate(a: Any, b: Any) -> Any:
            if isinstance(a, list | tuple):
                return [separate(x, y) for x, y in zip(a, b, strict=True)]
            twin = outs.get(id(a))
            return b if twin is None else twin[1]

        positional = [separate(a, b) for a, b in zip(args, lowered, strict=True)]
        return positional, {n: separate(kwargs[n], b) for n, b in named.items()}, list(outs.values())

    # ---- a program on the cold backend -----------------------------------------------------------------------------

    def _programmed(
        self,
        known: ColdSignature,
        cells: list[Storage],
        inputs: list[Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        operator, backend = self.of, known.slot.backend
        if operator.spec.uncompiled or operator.spec.decomposed:  # comes down to operators that are known
            return MISS
        if known.plan is None:
            known.plan = make_plan(operator, args, kwargs, [None] * len(cells), backend.cold)
        plan = known.plan
        if plan.run is None or plan.prepare is not None:
            return MISS
        try:
            sizes = sum(map(elements, cells))
            sizes += sum(math.prod(r[1]) for r in plan.results or () if r is not None)
            # NumPy draws one random number in the time that it takes to copy thirty others
            copies = 0 if backend.host_visible else sum(cell.__class__ is not ColdStorage for cell in cells)
            if known.heat.spent(4 * sizes if operator.spec.random else sizes // 8, copies):
                known.plan = None
                return MISS
            for at in known.written:
                ensure_owned(cells[at])
            arrays = [rows(memory(cell)) for cell in cells]
        except NotLent:
            return MISS
        words = [self._draw(cells, args, kwargs)] if operator.spec.random else []
        if self._fills and is_whole(args[0], cells[0].cold):
            assert backend.cold is not None
            self._fill(backend.cold, arrays[0].reshape(args[0].size()), args[1:], words[0])
            return args[0]
        new = plan.run(*arrays, *inputs, *words)
        if plan.verifiers:
            assert backend.cold is not None
            checks.raise_failed(backend.cold, new, plan.verifiers)
        if self._returned is not None:
            return self._returned(args, kwargs)
        outputs: Any = iter(new[len(plan.written) :])
        results = [
            None if meta is None else attach(ColdStorage(None, backend, numpy_to_cpu(next(outputs))), known.slot, *meta)
            for meta in plan.results or ()
        ]
        return results[0] if plan.structure is None else plan.structure(results)

    def _fill(self, host: Backend, array: Any, numbers: tuple[Any, ...], words: Any) -> None:
        """Draw the numbers of a whole tensor in place, without the reads and writes of a plan."""
        with host.scope():
            values = self.of.spec.fn(host, array, *numbers, key=random_key(host, words))
            values = convert(host, values, array.dtype)
            self.wrote = True
            array[...] = values
            self.wrote = False


def _without_offsets(name: str, key: Any) -> tuple[Any, ...]:
    """Return the key of a call without the offsets of its tensors in their storages."""
    return name, *[p[:3] if p.__class__ is tuple and len(p) == 4 else p for p in key]


def _cpu_operand(t: Tensor) -> Tensor:
    try:
        return cpu_view(t)
    except AttributeError:  # one of the CPU, or whose storage C++ made
        return _lower(t)


def _lower(a: Any, backend: Backend | None = None, host: bool = False) -> Any:
    """Return an argument for CPU PyTorch. Raises NotLent for a tensor that needs a plan: one of another backend, or of
    the CPU, unless it is a number or this argument may be on the CPU (`host`)."""
    if isinstance(a, Tensor):
        if a.device.type == TYPE:
            cell = cell_of(a)  # one of a tensor that C++ made comes with the first look
            if backend is not None and cell.backend is not backend:
                raise NotLent
            return cpu_view(a)
        if a.device.type != "cpu" or (a.dim() and not host):
            raise NotLent
        return a
    if isinstance(a, list | tuple):
        return [_lower(x, backend, host) for x in a]
    if a.__class__ in SYMBOLIC:
        raise NotLent
    return _CPU if isinstance(a, torch.device) else a


def _lower_list(values: list[Any], backend: Backend | None) -> tuple[list[Any], Backend | None]:
    """Return the elements of a list of tensors or numbers for CPU PyTorch, as `_lower` does, and their backend."""
    lowered: list[Any] = []
    if backend is None and values[0].__class__ is Tensor:
        backend = _lending(cell_of(values[0]).backend, None)
    for x in values:
        if x.__class__ is Tensor:
            cell = x.untyped_storage().cell  # type: ignore[attr-defined]
            if cell.backend is not backend:
                raise NotLent
            base = cell.cold if cell.__class__ is ColdStorage else memory(cell)
            lowered.append(geometric_view(base, x))
        else:
            lowered.append(x if x.__class__ is int else _lower(x, backend))
    return lowered, backend


def _lower_named(kwargs: dict[str, Any], backend: Backend | None) -> dict[str, Any]:
    """Return keyword arguments for CPU PyTorch, which has no pinned memory."""
    return {
        n: a if a.__class__ in _PLAIN else _CPU if a.__class__ is torch.device else _lower(a, backend)
        for n, a in kwargs.items()
        if n != "pin_memory"
    }


def _lending(backend: Backend, other: Backend | None) -> Backend:
    """Return the backend of a call's tensors. Raises NotLent where these are of two, where it has no cold tier, or one
    whose work is counted, and where it records, which counts its operations."""
    if other is not None or not lends(backend):
        raise NotLent
    return backend


def lends(backend: Backend) -> bool:
    """Return True if CPU PyTorch computes on the memory of a backend's arrays, without counting what it does."""
    return backend.cold is not None and not backend.records and backend.host_visible


def _with_layout(compute: Callable[..., Any], meta: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `compute` so that its results have the memory layout that `meta` says."""

    def run(*args: Any) -> Any:
        out, like = compute(*args), meta(*args)
        return [a if a is None or a.stride() == b.stride() else b.copy_(a) for a, b in zip(out, like, strict=True)]

    return run


def _resized(high: Tensor, low: Tensor) -> None:
    """Handle an `out=` tensor, represented by `low`, that CPU PyTorch has resized: it gets a new storage if its own is
    too small."""
    if has_room(high, tuple(low.shape), low.stride()):  # and is what CPU PyTorch has written
        set_storage(high, high.untyped_storage(), int(high.storage_offset()), tuple(low.shape), low.stride())
        return
    offset, slot = int(high.storage_offset()), slot_of_backend(cell_of(high).backend)
    if offset:
        padded = low.new_zeros(offset + low.untyped_storage().nbytes() // low.itemsize)
        padded.as_strided(low.shape, low.stride(), offset).copy_(low)
        new_storage = hosted(slot, padded)
    else:
        new_storage = (copied if high.numel() or not _fills(low) else hosted)(slot, low)
    set_storage(high, new_storage.untyped_storage(), offset, tuple(low.shape), low.stride())


def _fills(out: Tensor) -> bool:
    """Return True if a tensor fills its memory, each element once."""
    size, stride = tuple(out.shape), out.stride()
    nbytes = out.untyped_storage().nbytes()
    return nbytes == out.numel() * out.itemsize and not out.storage_offset() and is_dense(size, stride)


def results(out: Any, backend: Backend, operands: Sequence[Any]) -> Any:
    """Make tensors on the device from the results of CPU PyTorch. `operands`: its operands, whose memory a result may
    share."""
    if out.__class__ is not Tensor or out.layout is not _STRIDED:
        return _rare_results(out, backend, operands)
    memory = out.untyped_storage()
    own = True
    for x in operands:
        if x.__class__ is Tensor:
            if memory is x.untyped_storage():
                own = False
        elif x.__class__ is list and any(y.__class__ is Tensor and memory is y.untyped_storage() for y in x):
            own = False
    key = backend, out.dtype, out.shape, out.stride()
    like: Any = _headers.get(key, MISS)
    if like is MISS:
        like = _header(out, backend)
        keep(_headers, key, like)
    if own and like is not None and memory.nbytes() == like.nbytes:
        tensor = imported(like.address)
        tensor.untyped_storage().cell = ColdStorage(None, backend, out)  # type: ignore[attr-defined]
        return tensor
    if out.is_conj():
        torch._C._set_conj(out, False)
        return conjugated(results(out, backend, operands))
    return (hosted if own and _fills(out) else copied)(slot_of_backend(backend), out)


def _rare_results(out: Any, backend: Backend, operands: Sequence[Any]) -> Any:
    """Make several results, and those that are not ordinary tensors, as `_results` does."""
    if isinstance(out, list | tuple):
        each = [results(x, backend, operands) for x in out]
        return tuple(each) if isinstance(out, tuple) else each
    if not isinstance(out, Tensor):
        return out
    if out.layout is not _STRIDED:  # a sparse gradient of the CPU's kernel: its indices and values move
        return out.to(slot_of_backend(backend).device)
    return out


def _header(out: Tensor, backend: Backend) -> Header | None:
    """Return the header of tensors like a result that fills its memory, and is no conjugate."""
    numpy_dtype(out.dtype)  # raises for dtypes that no backend has, as a plan does
    size, stride = tuple(out.shape), out.stride()
    if out.dtype.is_complex or not is_dense(size, stride):
        return None
    return header(slot_of_backend(backend).index, out.dtype, size, stride)


_headers: dict[Any, Header | None] = {}
_STRIDED = torch.strided
