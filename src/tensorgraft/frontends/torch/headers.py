"""New tensors on the device, by way of DLPack: the quickest way that PyTorch has to make one out of Python.

A tensor is imported from a header that describes it and has no memory. A header serves any number of tensors; it is
never freed, because each of them asks it for a deleter when it dies. The import makes an inference tensor in inference
mode, and a tensor on any device index, as PyTorch's own factories do.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from tensorgraft.hub.dlpack import NAME, DLManagedTensor, DLTensor, content


class Header(NamedTuple):
    address: int
    nbytes: int  # of the storage of its tensors


_MOST = 1 << 16
_NAME = ctypes.c_char_p(NAME)
_known: dict[tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]], Header] = {}
_kept: list[object] = []
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_import = torch._C._from_dlpack


def header(index: int, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> Header | None:
    """The header of tensors at the beginning of their storage; None where there are too many already."""
    found = _known.get((index, dtype, size, stride))
    return _made(index, dtype, size, stride) if found is None and len(_known) < _MOST else found


def empty_header(index: int, dtype: torch.dtype) -> Header:
    """The header of tensors without elements."""
    return _known.get((index, dtype, (0,), (1,))) or _made(index, dtype, (0,), (1,))


def _made(index: int, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> Header:
    # PyTorch itself says how it writes the dtype and the device
    example = torch._C._to_dlpack(torch._C._acc.create_empty_tensor((0,), dtype))
    managed = DLManagedTensor()
    ctypes.memmove(ctypes.addressof(managed), content(example), ctypes.sizeof(DLTensor))
    numbers = [(ctypes.c_int64 * max(len(values), 1))(*values) for values in (size, stride)]
    tensor = managed.tensor
    tensor.data, tensor.byte_offset = None, 0
    tensor.device_id, tensor.ndim = index, len(size)
    tensor.shape, tensor.strides = (ctypes.cast(n, ctypes.POINTER(ctypes.c_int64)) for n in numbers)
    _kept.append((managed, numbers))
    address = ctypes.addressof(managed)
    made = Header(address, imported(address).untyped_storage().nbytes())
    return _known.setdefault((index, dtype, size, stride), made)


def imported(address: int) -> torch.Tensor:
    """A tensor on a new storage, which has neither memory nor an array."""
    return _import(_capsule(address, _NAME, None))
