"""The structures of DLPack's C interface (https://dmlc.github.io/dlpack/latest/c_api.html), what capsules hold, and
arrays of NumPy over it for the dtypes of `ml_dtypes`, which NumPy's own `from_dlpack` refuses (bfloat16, float8)."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes

NAME = b"dltensor"
CPU = 1  # DLDeviceType


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def content(capsule: object) -> int:
    """Return the address of the DLManagedTensor in a capsule, which begins with its DLTensor."""
    return _pointer(capsule, NAME)


# DLDataTypeCode -> the dtype of one lane
_CODES = {
    4: dtypes.bfloat16,
    10: dtypes.float8_e4m3fn,
    11: dtypes.float8_e4m3fnuz,
    12: dtypes.float8_e5m2,
    13: dtypes.float8_e5m2fnuz,
}


class _Memory:
    """The memory of a capsule, as bytes; whoever holds it holds the capsule, which frees the memory at its end."""

    def __init__(self, capsule: Any, address: int, size: int) -> None:
        self.capsule = capsule
        self.__array_interface__ = {"version": 3, "typestr": "|u1", "shape": (size,), "data": (address, False)}


def _view(capsule: Any) -> np.ndarray:
    tensor = DLTensor.from_address(content(capsule))
    dtype = _CODES.get(tensor.code)
    if tensor.device_type != CPU or dtype is None or tensor.lanes != 1:
        raise BufferError(
            f"NumPy cannot hold a DLPack array of device type {tensor.device_type}, dtype code {tensor.code} and"
            f" {tensor.lanes} lanes: copy it to the CPU, in a dtype of NumPy or ml_dtypes"
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    if strides is None:
        strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    size = (1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))) * dtype.itemsize
    memory = np.asarray(_Memory(capsule, tensor.data + tensor.byte_offset, size))
    return np.ndarray(shape, dtype, memory, 0, tuple(s * dtype.itemsize for s in strides))


def from_dlpack(x: Any) -> np.ndarray:
    """Return an array over the memory of `x`, which has `__dlpack__`."""
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:  # the type depends on NumPy's version
        if "dtype" not in str(error):
            raise
        return _view(x.__dlpack__())
