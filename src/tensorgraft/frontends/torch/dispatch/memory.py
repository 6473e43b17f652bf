"""The host's memory of tensors on the device: read and written in place if the backend's arrays are in it, else by
copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import Slot
from tensorgraft.frontends.torch.core.tensors import (
    MOST_AXES,
    attach,
    cell_of,
    cpu_elements,
    numpy_dtype,
    numpy_to_cpu,
    stored_as,
)
from tensorgraft.frontends.torch.core.traced_values import asked_for_values
from tensorgraft.frontends.torch.core.values import concrete_array, looked_up
from tensorgraft.frontends.torch.dispatch import absent_layouts
from tensorgraft.frontends.torch.dispatch.results import describe
from tensorgraft.hub import tiers
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.host_copies import MOST_ELEMENTS
from tensorgraft.storage import ColdStorage, Storage, host_view, is_dense

Tensor = torch.Tensor
Parameter = torch.nn.Parameter

_CPU = torch.device("cpu")
_MOST_AXES = 64  # the limit of NumPy's arrays
_import = torch._C._from_dlpack
_now = state.now


class NotLent(Exception):
    """A storage whose memory CPU PyTorch cannot read: a tracer's, or another device's."""


def rows(t: Tensor) -> Any:
    """Return the host array of a dense tensor, its axes in the order in which they lie."""
    if _now.capture is not None:  # the capture observes the program's computations on the CPU
        with disable_current_modes():
            return _rows(t)
    return _rows(t)


def _rows(t: Tensor) -> Any:
    if t.dim() > _MOST_AXES:
        t = t.as_strided((t.numel(),), (1,), t.storage_offset())
    elif not t.is_contiguous():
        strides = t.stride()
        t = t.permute(sorted(range(t.dim()), key=lambda d: (-strides[d], d)))
    return cpu_elements(t)


host_view[Tensor] = rows


def memory(cell: Storage) -> Tensor:
    """Return a CPU tensor over all of a storage's memory, to be read. Raises NotLent."""
    if cell.__class__ is ColdStorage:
        return cell.cold
    if cell.shared and not cell.backend.host_visible:  # others may write it, and a copy would not see that
        raise NotLent
    lent_memory = cell.backend.lend(cell.array)
    if lent_memory is None:
        raise NotLent
    if lent_memory.__class__ is np.ndarray:
        return numpy_to_cpu(lent_memory)
    try:
        return _import(lent_memory.__dlpack__()).contiguous()  # XLA knows other layouts, too
    except (BufferError, TypeError, RuntimeError):  # a dtype that DLPack, or one of the two, has not
        raise NotLent from None


def ensure_owned(cell: Storage) -> None:
    """See to it that a storage's memory is its own, to be written. Raises NotLent."""
    if cell.__class__ is ColdStorage:
        base = cell.cold
        if base.is_inference() and not torch.is_inference_mode_enabled():  # the storage may be that of another tensor
            cell.cold = _alias(base, base.dtype, base.shape, base.stride(), 0)
        return
    cell.cool(memory(cell).clone())


def is_whole(t: Tensor, base: Tensor) -> bool:
    """Return True if the elements of a tensor are all those of its memory, row by row."""
    if t.dtype is not base.dtype or t.dtype is torch.complex32 or t.dim() > MOST_AXES or t.is_conj() or t.is_neg():
        return False
    return t.is_contiguous() and base.is_contiguous() and t.numel() == base.numel()


def is_owned(t: Any) -> bool:
    """Return True for a tensor whose storage has memory of its own, which may be written in any mode."""
    if t.__class__ is not Tensor and t.__class__ is not Parameter:
        return False
    cell = t.untyped_storage().cell  # type: ignore[attr-defined]
    return cell.__class__ is ColdStorage and not cell.cold.is_inference()


def _alias(base: Tensor, dtype: torch.dtype, shape: Any, strides: Any, offset: Any) -> Tensor:
    """Return a tensor of the present mode (`torch.inference_mode`) over the memory of another."""
    return torch.empty(0, dtype=dtype, device=_CPU).set_(base.untyped_storage(), offset, shape, strides)


def cpu_view(t: Tensor) -> Tensor:
    """Return a tensor on the device as a CPU tensor over the same memory, only to be read. Raises NotLent."""
    return geometric_view(memory(t.untyped_storage().cell), t)  # type: ignore[attr-defined]


def geometric_view(base: Tensor, t: Tensor) -> Tensor:
    """Return `base`, a CPU tensor over all of the memory of a tensor's storage, with the geometry of that tensor."""
    shape, strides, offset = t.size(), t.stride(), t.storage_offset()  # `shape` of an uninitialized parameter raises
    if base.dtype is not t.dtype:
        return _alias(base, t.dtype, shape, strides, offset)
    if not offset and base.shape == shape and base.stride() == strides:
        return base
    return base.as_strided(shape, strides, offset)


def computed(t: Tensor) -> Tensor | None:
    """Return a tensor on the device as in `cpu_view`; None where the host cannot read its memory without a copy."""
    if _now.capture is not None or t.is_conj() or t.is_neg():
        return None
    try:
        cell = cell_of(t)
        if cell.backend.cold is None or not (cell.backend.host_visible or cell.__class__ is ColdStorage):
            return None
        if cell.backend.records:
            cell.backend.flush()
        return cpu_view(t)
    except NotLent:
        return None


def hosted(slot: Slot, host: Tensor) -> Tensor:
    """Return a tensor on the device with the memory of `host`, which has no other reference and whose elements fill
    it."""
    shape, strides = tuple(host.shape), host.stride()
    return attach(
        ColdStorage(None, slot.backend, host), slot, host.dtype, shape, strides, host.untyped_storage().nbytes()
    )


def copied(slot: Slot, host: Tensor) -> Tensor:
    """Return a tensor on the device with the values of `host`, whatever its memory is, and its strides."""
    results, _ = describe(host)
    assert results is not None and results[0] is not None
    dtype, size, stride, nbytes = results[0]
    if is_dense(size, stride):
        return hosted(slot, torch.empty_strided(size, stride, dtype=dtype, device=_CPU).copy_(host))
    padded = torch.zeros(nbytes // dtype.itemsize, dtype=dtype, device=_CPU)
    padded.as_strided(size, stride).copy_(host)
    return attach(ColdStorage(None, slot.backend, padded), slot, dtype, size, stride, nbytes)


def tier(backend: Backend, elements: int) -> bool:
    """Return True if new tensors of a backend with so many elements may start in the cold tier."""
    begins = backend.host_visible or elements <= MOST_ELEMENTS
    return begins and tiers.tiered() and backend.cold is not None and _now.capture is None


# ---- copies ----------------------------------------------------------------------------------------------------------


def to_cpu(t: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor with the same values, in the same order of memory."""
    if t.dim() > MOST_AXES:
        squeezed = to_cpu(t.squeeze())
        return (
            squeezed.as_strided(t.size(), t.stride())
            if is_dense(tuple(t.size()), t.stride())
            else squeezed.reshape(t.size())
        )
    source = computed(t)
    if source is None:
        xp, array = cell_of(t).backend, concrete_array(t)
        host = looked_up(xp, array)
        if host is None and xp.is_traced(array) and not xp.is_differentiated(array):
            raise asked_for_values(t)
        host = xp.to_numpy(array) if host is None else host
        source = numpy_to_cpu(np.ascontiguousarray(host).reshape(tuple(t.size())))
    return torch.empty_strided(t.size(), kept_strides(t), dtype=t.dtype, device=_CPU).copy_(source)


def kept_strides(t: torch.Tensor) -> tuple[int, ...]:
    """Return the strides of a copy of a tensor, whose elements are in the same order of memory without gaps."""
    stride = t.stride()
    if is_dense(tuple(t.size()), stride):
        return stride
    return torch.empty_like(torch.empty_strided(t.size(), stride, device="meta")).stride()


def from_cpu(t: torch.Tensor, slot: Slot) -> torch.Tensor:
    """Return a tensor on the device with the values, and in the order of memory, of a CPU tensor."""
    if t.layout in absent_layouts.SPARSE:
        return t.to(slot.device)
    absent_layouts.check(t)
    numpy_dtype(t.dtype)
    xp = slot.backend
    shape = tuple(t.size())  # `shape` of an uninitialized parameter raises
    stride = kept_strides(t)
    if tier(xp, t.numel()):
        t = t.detach().resolve_conj().resolve_neg()
        return hosted(slot, torch.empty_strided(shape, stride, dtype=t.dtype, device=_CPU).copy_(t))
    order = sorted(range(t.dim()), key=lambda d: (-stride[d], d))

    def host(t: torch.Tensor) -> np.ndarray:
        inner = t.permute(order)
        if t.dim() > MOST_AXES:  # a storage's array may have any shape
            return np.ascontiguousarray(cpu_elements(inner.reshape(-1)))
        return np.ascontiguousarray(cpu_elements(inner)).reshape(
            stored_as(tuple([shape[d] for d in order]), t.dtype)[0]
        )

    with xp.scope():
        if state.now.capture is not None:
            array = state.now.capture.host_array(t, host)
            if isinstance(array, np.ndarray):
                state.now.capture.constants.append(array := xp.asarray(array))
        else:
            array = xp.asarray(host(t))
    cell = state.created(Storage(array, xp))
    return attach(cell, slot, t.dtype, shape, stride, t.numel() * t.element_size())
