"""DLPack for the dtypes of `ml_dtypes`, which NumPy's own `from_dlpack` refuses (bfloat16, float8)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.dlpack import CPU, DLTensor, content

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
            f"NumPy can hold no DLPack array of device type {tensor.device_type}, dtype code {tensor.code} and"
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
    """An array over the memory of `x`, which has `__dlpack__`."""
    try:
        return np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:  # which of them depends on NumPy's version
        if "dtype" not in str(error):
            raise
        return _view(x.__dlpack__())
