"""Operators between devices, and on storages as such: copies, conversions, `.item()`, `resize_`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core import sharded_tensors, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_at, slot_of
from tensorgraft.frontends.torch.core.schema import Signature
from tensorgraft.frontends.torch.core.settings import fills
from tensorgraft.frontends.torch.core.tensors import (
    MOST_AXES,
    TO_NUMPY,
    attach,
    cell_of,
    from_array,
    numpy_dtype,
    set_storage,
    stored_as,
)
from tensorgraft.frontends.torch.core.traced_values import asked_for_value, unraised
from tensorgraft.frontends.torch.core.values import concrete_array, looked_up
from tensorgraft.frontends.torch.dispatch.memory import computed, from_cpu, hosted, tier, to_cpu
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import ColdStorage, Storage, contiguous_strides, is_dense

Tensor = torch.Tensor
Parameter = torch.nn.Parameter
_CPU = torch.device("cpu")
_CHANNELS_LAST = (torch.channels_last, torch.channels_last_3d)
_contiguous_strides = functools.lru_cache(maxsize=4096)(contiguous_strides)
DIRECT: dict[str, Callable[..., Any]] = {}  # registered without a plan
# kernels of tensorgraft's operators, for calls below all other dispatch keys
kernels: dict[str, Callable[..., Any]] = {}
# {class of backends: a function that moves a tensor of their arrays to another device, if numbers do not suffice}
movers: dict[type[Backend], Callable[[Tensor, torch.device], Tensor]] = {}


def direct(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        DIRECT[name] = fn
        return fn

    return register


def _touch(*tensors: Tensor) -> None:
    state.touch(*map(cell_of, tensors))


def _resolved(x: Tensor) -> Tensor:
    """Return a lazy conjugate or negative as its values. PyTorch itself would see to it, but not inside of a dispatch
    mode."""
    return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x


def _check_sizes(target: Tensor, source: Tensor) -> None:
    """Raises RuntimeError, as a copy on one device does, where sizes do not broadcast."""
    try:
        torch.broadcast_shapes(source.size(), target.size())
    except RuntimeError:
        torch.empty(target.size(), device="meta").copy_(torch.empty(source.size(), device="meta"))
        raise


@direct("copy_")
def copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy between any two devices, converting the dtype and broadcasting to the target."""
    if not isinstance(source, Tensor):  # a number, which PyTorch takes for a tensor
        source = torch.tensor(source, dtype=torch.float64 if isinstance(source, float) else None, device="cpu")
    if source is target:  # whatever its memory
        return target
    # the values of a lazy (conjugate) view are written through a view of the same memory that is not lazy
    if target.is_conj():
        copy_(torch.ops.aten.conj(target), torch.ops.aten.conj(source) if source.is_complex() else source)
        return target
    if target.is_neg():
        copy_(torch.ops.aten._neg_view(target), torch.ops.aten._neg_view(source))
        return target
    if source.device == target.device:
        return kernels["assign"](target, _resolved(source))
    _check_sizes(target, source)
    if source.device.type == TYPE:
        _touch(source)
        host = to_cpu(source)
        if target.device.type != TYPE:
            return target.copy_(host)
        source = host
    if source.device.type != "cpu":
        source = source.cpu()
    slot = slot_at(target.device.index)
    return kernels["assign"](target, from_cpu(source, slot))


def recorded(copy: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Make the kernel of an operator that copies: PyTorch's writes into a new tensor, by which autograd records the
    copy of a parameter that was made in inference mode, too."""

    @functools.wraps(copy)
    def call(x: Tensor, **kwargs: Any) -> Tensor:
        out = copy(x, **kwargs)
        if x.is_inference() and x.requires_grad and not (out.is_inference() or out.requires_grad):
            return torch.empty_like(out).copy_(x)
        return out

    return call


def resolving(clone: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Implement `clone`, by which PyTorch also resolves lazy conjugation and negation (resolve_conj, resolve_neg)."""

    def call(x: Tensor, *, memory_format: torch.memory_format | None = None) -> Tensor:
        if x.is_conj():
            x = torch.ops.aten.conj_physical(torch.ops.aten.conj(x))
        if x.is_neg():
            x = torch.ops.aten.neg(torch.ops.aten._neg_view(x))
        return clone(x, memory_format=memory_format)

    return recorded(call)


def numbers_as_tensors(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a kernel of an operator that PyTorch calls with numbers for tensors, and does not take them from
    Python."""

    def with_tensors(*args: Any, **kwargs: Any) -> Tensor:
        tensor = next(a for a in args if isinstance(a, Tensor))
        dtype = tensor.dtype if tensor.is_floating_point() else None
        operands = [a if isinstance(a, Tensor) else torch.tensor(a, dtype=dtype, device=tensor.device) for a in args]
        return call(*operands, **kwargs)

    return with_tensors


def resolved(name: str, signature: Signature, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of an operator to which PyTorch gives lazy conjugates as they are (matrix products, whose BLAS
    has a flag for them)."""

    def resolve(*args: Any, **kwargs: Any) -> Any:
        lazy = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and (t.is_conj() or t.is_neg())]
        if not lazy:
            return call(*args, **kwargs)
        conjugates = [t.is_conj() for t in args[:2]] if name in ("dot", "vdot") else []
        # at::dot and at::vdot return a lazy result in this case, too
        if conjugates and conjugates == [name == "dot", True]:
            x, y = args
            return torch.dot(x.conj() if name == "dot" else x, y.conj()).conj()
        plain = {id(t): t.resolve_conj().resolve_neg() for t in lazy}
        out = call(*[plain.get(id(a), a) for a in args], **{n: plain.get(id(a), a) for n, a in kwargs.items()})
        bound = signature.bind(args, kwargs)
        for target in signature.written:
            if id(bound[target]) in plain:
                return bound[target].copy_(out)
        return out

    return resolve


@direct("_copy_from")
def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    return copy_(target, source)


@direct("_copy_from_and_resize")
def _copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    if source.size() != target.size():
        target.resize_(source.size())
    return copy_(target, source)


@direct("_to_copy")
@recorded
def _to_copy(
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """`.to(...)`: a new tensor, on `device`, of `dtype`."""
    if dtype in (None, x.dtype) and memory_format in (None, torch.preserve_format) and device is not None:
        moved = _moved(x, device)
        if moved is not None:
            return moved
    device = x.device if device is None else torch.device(device)
    dtype = dtype or x.dtype
    if device.type == "meta":
        return torch.empty_like(x, dtype=dtype, device=device, memory_format=memory_format or torch.preserve_format)
    if device.type == TYPE and device.index is None:
        device = slot_of(device).device
    if device == x.device:
        return kernels["convert"](_resolved(x), dtype, memory_format or torch.preserve_format)
    if x.device.type == TYPE:
        cell = cell_of(x)
        move = movers.get(type(cell.backend))
        if move is not None and cell.array.dtype == numpy_dtype(x.dtype) and device.type in (TYPE, "cpu"):
            on_device = move(x, device)  # quantised, so the copy is, too; not the bits of its numbers
            return on_device if dtype == x.dtype else on_device.to(dtype)
        _touch(x)
        host = to_cpu(x)
        return host.to(device=device, dtype=dtype, memory_format=memory_format or torch.preserve_format)
    numpy_dtype(dtype)  # raises for dtypes that no backend has
    numpy_dtype(x.dtype)
    moved = from_cpu(x.cpu(), slot_of(device))
    if dtype == x.dtype and memory_format in (None, torch.preserve_format):
        return moved
    return torch.ops.graft.convert(moved, dtype, memory_format or torch.preserve_format)


def _moved(x: Tensor, device: torch.device) -> Tensor | None:
    """Return a contiguous tensor that moves between the host's memory and a device that shares it; None for others."""
    if x.__class__ not in (Tensor, Parameter) or x.layout is not torch.strided or not x.is_contiguous():
        return None
    if device == _CPU:
        host = None if x.is_cpu else computed(x)
        return None if host is None else host.clone()
    if not x.is_cpu or x.is_conj() or x.is_neg() or device.type != TYPE or x.dtype not in TO_NUMPY:
        return None
    slot = slot_of(device)
    return hosted(slot, (x.detach() if x.requires_grad else x).clone()) if tier(slot.backend, x.numel()) else None


@direct("_local_scalar_dense")
def item(x: Tensor) -> Any:
    """Implement `.item()`, `bool(x)`, `int(x)`, ..., which wait for the value."""
    value = computed(x)
    if value is not None:
        return value.item()
    _touch(x)
    cell = cell_of(x)
    array = concrete_array(x)
    if cell.backend.is_traced(array):
        known = looked_up(cell.backend, array)
        if known is not None:
            return known.item()
        answer = unraised(x)
        if answer is None:
            raise asked_for_value(x)
        return answer
    return cell.backend.to_numpy(array).item()


@direct("equal")
def equal(x: Tensor, y: Tensor) -> bool:
    if x.device != y.device:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {x.device} and {y.device}!"
        )
    if x.shape != y.shape:
        return False
    host_x, host_y = computed(x), computed(y)
    if host_x is not None and host_y is not None and x.dtype == y.dtype:
        return torch.equal(host_x, host_y)
    return bool(torch.eq(x, y).all().item())


@direct("is_set_to")
def is_set_to(x: Tensor, y: Tensor) -> bool:
    same_storage = x.untyped_storage()._cdata == y.untyped_storage()._cdata
    return same_storage and x.storage_offset() == y.storage_offset() and x.shape == y.shape and x.stride() == y.stride()


@direct("resize_")
def resize_(x: Tensor, size: list[int], *, memory_format: torch.memory_format | None = None) -> Tensor:
    """Elements that stay keep their values, in storage order. A storage that is too small is replaced by a larger
    one: other views of the old one do not follow (PyTorch grows it in place)."""
    shape = tuple(size)
    if shape == x.shape and memory_format is None:
        return x
    stride = contiguous_strides(shape)
    if memory_format in _CHANNELS_LAST:
        stride = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    storage = x.untyped_storage()
    offset = int(x.storage_offset())
    needed_size = offset + (math.prod(shape) and 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)))
    if needed_size * x.element_size() > storage.nbytes():
        _touch(x)
        cell = cell_of(x)
        xp, (whole, dtype) = cell.backend, stored_as((needed_size,), x.dtype)
        with xp.scope():
            flat = xp.reshape(cell.array, (math.prod(xp.shape(cell.array)),))
            flat = flat if xp.dtype_of(flat) == dtype else xp.bitcast(flat, dtype)
            added = math.prod(whole) - xp.shape(flat)[0]
            padded = xp.pad(flat, _unwritten(x.dtype) if fills() else 0, [(0, added, 0)])
        storage = from_array(xp.ensure_owned(padded), slot_at(x.device.index)).untyped_storage()
    return set_storage(x, storage, offset, shape, stride)


@direct("set_.source_Storage")
def set_source_storage(x: Tensor, source: torch.UntypedStorage) -> Tensor:
    return set_storage(x, source, 0, (source.nbytes() // x.element_size(),), (1,))


@direct("set_")
def set_empty(x: Tensor) -> Tensor:
    slot = slot_at(x.device.index)
    with slot.backend.scope():
        empty = from_array(slot.backend.zeros(*stored_as((0,), x.dtype)), slot)
    return set_storage(x, empty.untyped_storage(), 0, (0,), (1,))


def new_empty(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: Any, filled: bool = False
) -> Tensor:
    """Return a tensor of zeros: backends have no uninitialised memory. `filled`: with PyTorch's fill value for new
    memory under deterministic algorithms."""
    slot = slot_of(device)
    xp = slot.backend
    n, rows = _rows(size, stride)
    # in a decomposition, zeros of the host would be a constant of the program
    if tier(xp, n) and not xp.is_tracing():
        numpy_dtype(dtype)  # raises for dtypes that no backend has
        make = torch.empty if filled else torch.zeros
        return attach(
            ColdStorage(None, xp, make(rows, dtype=dtype, device=_CPU)), slot, dtype, size, stride, n * dtype.itemsize
        )
    if filled:
        with xp.scope():
            whole, stored_dtype = stored_as(rows, dtype)
            array = xp.full(whole, _unwritten(dtype), stored_dtype)
    else:
        array = zeros_array(xp, rows, dtype)
    cell = state.created(Storage(array, xp))
    new, capture = attach(cell, slot, dtype, size, stride, n * dtype.itemsize), state.now.capture
    if capture is not None and capture.sparse is not None and not filled:
        capture.sparse.indices.note_zeros(new)
    return new


@functools.lru_cache(maxsize=4096)
def _rows(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
    """Return the number of elements and the shape of an array for a storage on which a tensor has this geometry: the
    tensor's shape, with axes in the order of memory. Writes then need no reshape; between two shapes XLA computes a
    value twice."""
    n = 1 + sum((d - 1) * s for d, s in zip(size, stride, strict=True)) if 0 not in size else 0
    if not n or len(size) > MOST_AXES or not is_dense(size, stride):
        return n, (n,)
    if stride == contiguous_strides(size):
        return n, size
    return n, tuple(size[d] for d in sorted(range(len(size)), key=lambda d: (-stride[d], d)))


def zeros_array(xp: Any, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    """Zeros; on backends with immutable arrays one array serves all storages."""
    key = (id(xp), shape, dtype)
    zeros = _zeros.get(key)
    if zeros is None:
        with xp.scope():
            zeros = xp.zeros(*stored_as(shape, dtype))
        # by the class: an instance may change `mutable` while it records a program
        if math.prod(shape) <= _FEW and not (type(xp).mutable or xp.is_traced(zeros)):
            if len(_zeros) >= 1024:
                _zeros.clear()
            _zeros[key] = zeros
    return zeros


_zeros: dict[tuple[int, tuple[int, ...], torch.dtype], Any] = {}
_FEW = 1 << 12  # elements of an array that may be kept


@direct("empty.memory_format")
def empty(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    shape = tuple(size)
    if memory_format in _CHANNELS_LAST or (shape and min(shape) < 0):
        stride = torch.empty(shape, device="meta", memory_format=memory_format).stride()
    else:
        stride = _contiguous_strides(shape)
    return new_empty(shape, stride, dtype or torch.get_default_dtype(), device, fills())


@direct("empty_strided")
def empty_strided(
    size: list[int],
    stride: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    if len(size) != len(stride) or min((*size, *stride), default=0) < 0:
        torch.empty_strided(size, stride, device=_CPU)  # raises
    return new_empty(tuple(size), tuple(stride), dtype or torch.get_default_dtype(), device, fills())


@direct("arange")
def arange(end: Any, **options: Any) -> Tensor:
    """Count from 0. PyTorch makes an empty tensor for any device, which it resizes."""
    return _arange(0, end, 1, **options)


@direct("arange.start")
def arange_from(start: Any, end: Any, **options: Any) -> Tensor:
    return _arange(start, end, 1, **options)


_arange = torch.ops.aten.arange.start_step


def _unwritten(dtype: torch.dtype) -> float | int:
    """Return the value with which PyTorch fills uninitialized memory where it is to be deterministic."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return 1 if dtype == torch.bool else torch.iinfo(dtype).max


def _kaiser_window(*args: Any, device: torch.device | None = None, **options: Any) -> Tensor:
    """Move the CPU's result to the device: PyTorch's kernel cannot be registered from Python."""
    options["pin_memory"] = None
    return from_cpu(torch.kaiser_window(*args, **options, device="cpu"), slot_of(device))


for _name in ("kaiser_window", "kaiser_window.periodic", "kaiser_window.beta"):
    direct(_name)(_kaiser_window)


# ---- new tensors of ours are zero: nothing is left to be filled ------------------------------------------------------


@direct("zeros")
def zeros(
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    if size and min(size) < 0:
        raise RuntimeError("zeros: Dimension size must be non-negative.")
    return _zeroed(empty(size, dtype=dtype, device=device))


@direct("zeros_like")
def zeros_like(
    x: Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    if layout not in (None, torch.strided):
        return torch.zeros(x.size(), dtype=dtype or x.dtype, layout=layout, device=device or x.device)
    new = torch.empty_like(x, dtype=dtype, device=device, memory_format=memory_format)
    if new.device.type != TYPE:
        return new.zero_()
    new = _zeroed(new)
    sharded_tensors.inherit_placement(new, x)
    return new


@direct("new_zeros")
def new_zeros(
    x: Tensor,
    size: list[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    if layout not in (None, torch.strided) or (device is not None and device.type != TYPE):
        return torch.zeros(size, dtype=dtype or x.dtype, layout=layout, device=device or x.device)
    return _zeroed(empty(size, dtype=dtype or x.dtype, device=device or x.device))


def _zeroed(new: Tensor) -> Tensor:
    """Return a tensor that `empty` made, which is zero, or in its place one that is where `empty` fills."""
    return new_empty(tuple(new.size()), new.stride(), new.dtype, new.device) if fills() else new
