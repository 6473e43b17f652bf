"""Conversion of tensors on any device to operands of a program, and of its results to tensors.

Nothing is copied where the memory can be shared: CPU tensors go in as NumPy arrays over their memory (JAX takes them as
they are where they are aligned to 64 bytes, as PyTorch's own allocations are), those of other devices by DLPack, and
results come out by DLPack. The memory of what goes in is never written and never given away.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack

from tensorgraft.frontends.torch.core.devices import TYPE, Slot
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.tensors import cell_of, cpu_elements, from_array, numpy_dtype, numpy_to_cpu
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.storage import Storage, contiguous_strides, is_dense, same_strides

Tensor = torch.Tensor

from_capsule = torch._C._from_dlpack


@dataclass(slots=True)
class Entrance:
    """The conversion of tensors with an example's metadata to operands of a program."""

    take: Callable[[Tensor], Array]
    metadata: Metadata  # the geometry with respect to the array that `take` returns
    lazily: Callable[[Tensor], Tensor]  # conjugates or negates, where that is still to be done

    def tensor(self, cell: Storage) -> Tensor:
        """Return the tensor inside the program, on the storage of the array."""
        return self.lazily(self.metadata.on(cell))


def entrance(example: Tensor, slot: Slot) -> Entrance:
    """Raises TypeError for dtypes that no backend has, RuntimeError for tensors on another device of ours."""
    numpy_dtype(example.dtype)
    lazily = _lazily(example)
    if example.device.type == TYPE:
        if cell_of(example).backend is not slot.backend:
            raise RuntimeError(
                f"the graph is compiled for {slot.name}, but an input is on {example.device}: move the input, or"
                ' choose the device with options={"device": ...}'
            )
        return Entrance(lambda t: cell_of(t).array, Metadata.of(example), lazily)
    size, stride = tuple(example.size()), example.stride()
    if is_dense(size, stride):
        extent, arranged = example.numel(), _row_major(size, stride)
    else:  # memory between the elements is included
        extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if example.numel() else 0
        arranged = lambda t: t.as_strided((extent,), (1,))  # noqa: E731
    metadata = Metadata(example.dtype, size, stride, 0, extent * example.element_size())
    if example.device.type != "cpu":
        return Entrance(_foreign(lambda t: arranged(lazily(t.detach())), example, slot), metadata, lazily)
    if arranged is _identity and lazily is _identity:
        native = numpy_dtype(example.dtype).type.__module__ == "numpy" and example.dtype is not torch.complex32
        take = (lambda t: t.detach().numpy()) if native else cpu_elements
    else:
        take = lambda t: cpu_elements(arranged(lazily(t.detach())))  # noqa: E731
    is_parameter = isinstance(example, torch.nn.Parameter)
    return Entrance(KeptParameter(take, slot) if is_parameter else take, metadata, lazily)


class KeptParameter:
    """The conversion of a parameter, which is the same at every call: its array is kept while the parameter has the
    same memory (the array sees writes of the program). Copies are not kept, and neither is anything after the
    parameter's life."""

    __slots__ = ("_address", "_array", "_over_memory", "_owner", "_take")

    def __init__(self, take: Callable[[Tensor], np.ndarray], slot: Slot) -> None:
        self._take, self._over_memory = take, slot.backend.over_memory
        self._owner: Callable[[], Tensor | None] = _no_reference
        self._address = 0
        self._array: Any = None

    def __call__(self, t: Tensor) -> Array:
        if self._owner() is t and t.data_ptr() == self._address:
            return self._array
        host = self._take(t)
        self._array = self._over_memory(host)
        if self._array is None:
            self._owner = _no_reference
            return host
        self._owner, self._address = weakref.ref(t, self._forget), t.data_ptr()
        return self._array

    def _forget(self, owner: Any) -> None:
        if self._owner is owner:
            self._owner, self._array = _no_reference, None


def _no_reference() -> None:
    return None


def _identity(t: Tensor) -> Tensor:
    return t


def _lazily(t: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function from a lazy conjugate or negative, such as `t`, to the tensor on the same memory without it,
    which is also its inverse."""
    if t.is_conj():
        return (lambda t: torch.ops.aten._neg_view.default(torch.conj(t))) if t.is_neg() else torch.conj
    return torch.ops.aten._neg_view.default if t.is_neg() else _identity


def _row_major(size: tuple[int, ...], stride: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Return a function that puts the axes of a dense tensor in the order of its memory."""
    if same_strides(size, stride, contiguous_strides(size)):
        return _identity
    order = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    return lambda t: t.permute(order)


def _foreign(plain: Callable[[Tensor], Tensor], example: Tensor, slot: Slot) -> Callable[[Tensor], Array]:
    """Return the conversion of foreign tensors: by DLPack if the backend can be on their device, else over the host."""
    xp = slot.backend
    try:
        xp.from_dlpack(plain(example))
    except (BufferError, RuntimeError, TypeError):
        return lambda t: cpu_elements(plain(t).cpu())
    return lambda t: xp.from_dlpack(plain(t))


def departure(slot: Slot, device: torch.device) -> Callable[[Array], Any]:
    """Return the conversion of a program's results to tensors on a device, with the array's shape and dtype."""
    if device.type == TYPE:
        return lambda array: from_array(array, slot)
    if device.type == "cpu":
        return _resizable(_from_numpy if slot.backend.mutable else _from_dlpack)
    if slot.backend.mutable:
        return lambda array: _from_numpy(array).to(device)
    return lambda array: torch.from_dlpack(array).to(device)  # `from_dlpack` orders the streams of both devices


def _resizable(depart: Callable[[Array], Tensor]) -> Callable[[Array], Tensor]:
    """Give results without elements memory of PyTorch's own, since they may be resized as `out=`."""

    def departed(array: Array) -> Tensor:
        t = depart(array)
        return t if t.numel() else t.new_empty(t.shape)

    return departed


def _from_dlpack(array: Array) -> Tensor:
    t = from_capsule(array.__dlpack__())  # waits
    return t if t.is_cpu else t.cpu()


def _from_numpy(array: Array) -> Tensor:
    return numpy_to_cpu(np.asarray(array))


def view_of(result: Tensor, base: Metadata) -> Callable[[Tensor], Tensor]:
    """Return a function that takes a tensor with the metadata `base`, and returns the view of its storage with the
    metadata of `result`."""
    metadata, lazily = Metadata.of(result), _lazily(result)
    size, stride, dtype = metadata.size, metadata.stride, metadata.dtype
    extra_offset = metadata.offset - base.offset

    def other(t: Tensor) -> Tensor:
        """Return the view of another dtype."""
        start = (t.storage_offset() - base.offset) * base.dtype.itemsize // dtype.itemsize
        probe = torch.empty((0,), dtype=dtype, device=t.device)
        return probe.set_(t.untyped_storage(), start + metadata.offset, size, stride)

    if dtype != base.dtype:
        view = other
    elif (
        not extra_offset
        and size == base.size
        and (same_strides(size, stride, base.stride) if result.numel() else stride == base.stride)
    ):
        view = _identity
    else:
        view = lambda t: t.as_strided(size, stride, t.storage_offset() + extra_offset)  # noqa: E731
    return view if lazily is _identity else lambda t: lazily(view(t))
