"""How tensors of any device go into a program of a backend, and how its results become tensors.

Nothing is copied where the memory can be shared: CPU tensors go in as NumPy arrays over their memory (JAX takes them as
they are where they are aligned to 64 bytes, as PyTorch's own allocations are), those of other devices by DLPack, and
results come out by DLPack. The memory of what goes in is never written and never given away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from tensorgraft.frontends.torch.devices import TYPE, Slot
from tensorgraft.frontends.torch.metadata import Metadata
from tensorgraft.frontends.torch.tensors import cell_of, cpu_to_numpy, from_array, numpy_dtype, numpy_to_cpu
from tensorgraft.storage import contiguous_strides, is_dense, same_strides

Array = Any
Tensor = torch.Tensor

from_capsule = torch._C._from_dlpack


@dataclass(slots=True)
class Entrance:
    """How a tensor that looks like a given one goes into a program."""

    take: Callable[[Tensor], Array]
    metadata: Metadata  # how it looks at the array that `take` gives


def entrance(t: Tensor, slot: Slot) -> Entrance:
    """Raises TypeError for dtypes that no backend has, RuntimeError for tensors on another device of ours."""
    dtype = numpy_dtype(t.dtype)
    if t.device.type == TYPE:
        if cell_of(t).backend is not slot.backend:
            raise RuntimeError(
                f"the graph is compiled for {slot.name}, but an input is on {t.device}: move it, or choose the device"
                ' with options={"device": ...}'
            )
        return Entrance(lambda t: cell_of(t).array, Metadata.of(t))
    size, stride = tuple(t.size()), t.stride()
    if is_dense(size, stride):
        arranged, extent = _row_major(size, stride), t.numel()
    else:  # what lies between the elements comes along
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if t.numel() else 0
        arranged = lambda t: t.as_strided((extent,), (1,))  # noqa: E731
    if t.device.type != "cpu":
        take = _foreign(t, arranged, slot)
    elif dtype.kind in "bif" and dtype.type.__module__ == "numpy" and not t.is_neg():
        take = (lambda t: t.detach().numpy()) if arranged is None else lambda t: arranged(t.detach()).numpy()
    else:
        take = cpu_to_numpy if arranged is None else lambda t: cpu_to_numpy(arranged(t.detach()))
    if t.is_conj() or t.is_neg():  # values of their own: a copy, row-major
        take, stride = cpu_to_numpy, t.detach().resolve_conj().resolve_neg().stride()
    return Entrance(take, Metadata(t.dtype, size, stride, 0, extent * t.element_size()))


def _row_major(size: tuple[int, ...], stride: tuple[int, ...]) -> Callable[[Tensor], Tensor] | None:
    """The axes of a dense tensor in the order of its memory; None: they are."""
    if same_strides(size, stride, contiguous_strides(size)):
        return None
    order = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    return lambda t: t.permute(order)


def _foreign(t: Tensor, arranged: Callable[[Tensor], Tensor] | None, slot: Slot) -> Callable[[Tensor], Array]:
    """By DLPack where the backend can be on the tensor's device, else over the host."""

    def plain(t: Tensor) -> Tensor:
        t = t.detach().resolve_conj().resolve_neg()
        return t if arranged is None else arranged(t)

    xp = slot.backend
    try:
        xp.from_dlpack(plain(t))
    except (BufferError, RuntimeError, TypeError):
        return lambda t: cpu_to_numpy(plain(t).cpu())
    return lambda t: xp.from_dlpack(plain(t))


def departure(slot: Slot, device: torch.device) -> Callable[[Array], Any]:
    """What makes a tensor on a device of a result of a program: with the array's shape and dtype."""
    if device.type == TYPE:
        return lambda array: from_array(array, slot)
    give = _from_numpy if slot.backend.mutable else _from_dlpack
    if device.type == "cpu":
        return give
    return lambda array: give(array).to(device)


def _from_dlpack(array: Array) -> Tensor:
    return from_capsule(array.__dlpack__())


def _from_numpy(array: Array) -> Tensor:
    return numpy_to_cpu(np.asarray(array))


def view_of(metadata: Metadata, base: Metadata) -> Callable[[Tensor], Tensor]:
    """What makes, of a tensor that looks at a storage as `base` says, the one that looks at it as `metadata` says."""
    size, stride, dtype = metadata.size, metadata.stride, metadata.dtype
    if dtype == base.dtype:
        if metadata.offset == base.offset and size == base.size and same_strides(size, stride, base.stride):
            return lambda t: t
        ahead = metadata.offset - base.offset
        return lambda t: t.as_strided(size, stride, t.storage_offset() + ahead)

    def other(t: Tensor) -> Tensor:
        start = (t.storage_offset() - base.offset) * base.dtype.itemsize // dtype.itemsize
        made = torch.empty((0,), dtype=dtype, device=t.device)
        return made.set_(t.untyped_storage(), start + metadata.offset, size, stride)  # type: ignore[call-overload]

    return other
