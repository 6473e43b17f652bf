"""ONNX's element types as dtypes of the hub.

The hub has no dtype for elements of less than 8 bits, nor for scales of 8 bits (`float8_e8m0fnu`). Arrays of them are
`Carried`: their values in a dtype that holds them exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto
from onnx.helper import tensor_dtype_to_np_dtype

from tensorgraft.hub import dtypes

# a dtype that the hub lacks -> the dtype that holds its values
CARRIERS: dict[np.dtype, np.dtype] = {
    **{np.dtype(getattr(ml_dtypes, name)): dtypes.int8 for name in ("int2", "int4")},
    **{np.dtype(getattr(ml_dtypes, name)): dtypes.uint8 for name in ("uint2", "uint4")},
    np.dtype(ml_dtypes.float4_e2m1fn): dtypes.float32,
    np.dtype(ml_dtypes.float8_e8m0fnu): dtypes.float32,
}
STRING = np.dtype(object)


@dataclass(frozen=True, eq=False)
class Carried:
    """An array whose elements have the type `dtype`, which the hub lacks; `array` has their values in its carrier."""

    array: Any
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def mapped(self, fn: Callable[[Any], Any]) -> Carried:
        return Carried(fn(self.array), self.dtype)


def dtype_of(code: int) -> np.dtype:
    """Return the dtype of one of ONNX's codes of element types. Raises TypeError for a code that there is not."""
    if code == TensorProto.STRING:
        return STRING
    try:
        return np.dtype(tensor_dtype_to_np_dtype(code))
    except KeyError:
        raise TypeError(f"ONNX has no element type {code}") from None


def wrapped(x: np.ndarray) -> Any:
    """Return a host array as rules take it: `Carried` if the hub lacks its dtype."""
    carrier = CARRIERS.get(x.dtype)
    return x if carrier is None else Carried(x.astype(carrier), x.dtype)
