"""New tensors on the device, by way of DLPack: the quickest way that PyTorch has to make one out of Python.

A tensor is imported from a header that describes it and has no memory. A header serves any number of tensors; it is
never freed, because each of them asks it for a deleter when it dies. The import makes an inference tensor in inference
mode, and a tensor on any device index, as PyTorch's own factories do.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import NamedTuple

import torch
from torch.utils.dlpack import to_dlpack

from tensorgraft.hub.dlpack import NAME, DLTensor, content
from tensorgraft.hub.straight_line import StraightLine


class Header(NamedTuple):
    address: int
    nbytes: int  # bytes of the storage of its tensors


_MOST = 1 << 12
CAPSULE_NAME = ctypes.c_char_p(NAME)
_known: dict[tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]], Header] = {}
_FIELDS = struct.Struct("PiiiBBHPPQPP")  # a DLManagedTensor
_kinds: dict[torch.dtype, tuple[int, int, int, int]] = {}
_SLAB = 1 << 16  # bytes of memory for headers that are taken at once
_slabs: list[ctypes.Array[ctypes.c_char]] = []
_next, _left = 0, 0
_lock = threading.Lock()
make_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
import_capsule = torch._C._from_dlpack


def header(index: int, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> Header | None:
    """Return the header of tensors at the beginning of their storage; None where there are too many already."""
    known_header = _known.get((index, dtype, size, stride))
    return _new_header(index, dtype, size, stride) if known_header is None and len(_known) < _MOST else known_header


def empty_header(index: int, dtype: torch.dtype) -> Header:
    """Return the header of tensors without elements."""
    return _known.get((index, dtype, (0,), (1,))) or _new_header(index, dtype, (0,), (1,))


def _new_header(index: int, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...]) -> Header:
    kind, code, bits, lanes = _kinds.get(dtype) or _kind(dtype)
    ndim = len(size)
    address = _allocate(_FIELDS.size + 16 * max(ndim, 1))
    shape, strides = address + _FIELDS.size, address + _FIELDS.size + 8 * ndim
    fields = _FIELDS.pack(0, kind, index, ndim, code, bits, lanes, shape, strides, 0, 0, 0)
    ctypes.memmove(address, fields, len(fields))
    numbers = struct.pack(f"{2 * ndim}q", *size, *stride)
    ctypes.memmove(shape, numbers, len(numbers))
    header = Header(address, imported(address).untyped_storage().nbytes())
    return _known.setdefault((index, dtype, size, stride), header)


def _kind(dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Return the device's type and the dtype as PyTorch itself writes them."""
    example = to_dlpack(torch._C._acc.create_empty_tensor((0,), dtype))
    tensor = DLTensor.from_address(content(example))
    return _kinds.setdefault(dtype, (tensor.device_type, tensor.code, tensor.bits, tensor.lanes))


def _allocate(n: int) -> int:
    """Return the address of `n` new bytes."""
    global _left, _next
    with _lock:
        if n > _left:
            _slabs.append(ctypes.create_string_buffer(max(n, _SLAB)))
            _next, _left = ctypes.addressof(_slabs[-1]), max(n, _SLAB)
        _next, _left = _next + n, _left - n
        return _next - n


def imported(address: int) -> torch.Tensor:
    """Return a tensor on a new storage, which has neither memory nor an array."""
    return import_capsule(make_capsule(address, CAPSULE_NAME, None))


def write_import(code: StraightLine, address: int) -> str:
    """Return the expression of `imported(address)`."""
    return f"{code.name(import_capsule)}({code.name(make_capsule)}({address}, {code.name(CAPSULE_NAME)}, None))"
