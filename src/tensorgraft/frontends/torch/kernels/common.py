"""Helpers of many kernels: axes as PyTorch writes them, numbers in an array's dtype, accumulation dtypes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.dispatch.program import as_dtype
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray


def axes_of(dim: int | Sequence[int] | None, n: int) -> tuple[int, ...]:
    """Return the axes of a reduction of a tensor with `n` axes: none given means all."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(n))
    return tuple(d % n for d in ((dim,) if isinstance(dim, int) else dim)) if n else ()


def wide(xp: Any, x: AnyArray) -> AnyArray:
    """Return `x` in the dtype in which PyTorch computes: 16-bit floats in float32."""
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(x)))


def number(xp: Any, value: Any, dtype: np.dtype) -> Any:
    """Return a Python number, a traced one included, as a 0-d array; integers wrap as in C."""
    return as_dtype(xp, value, dtype)


def at_least_1d(xp: Any, x: Array) -> Array:
    """Return a 0-d array as one of one element: PyTorch lets `dim=0` of a 0-d tensor stand for that."""
    return x if xp.ndim(x) else xp.reshape(x, (1,))


def scalar_name(dtype: torch.dtype) -> str:
    """ATen's word for a dtype in its messages: "Float", "ComplexDouble"."""
    return torch.empty(0, dtype=dtype, device="cpu").type().removeprefix("torch.").removesuffix("Tensor")


def gradients(xp: Any, fn: Callable[..., Array], primals: Sequence[Array], grad: Array) -> tuple[Array, ...]:
    """Return the results of a backward operator, derived from its forward one: the cotangents of `primals` where
    `fn(backend, *primals)` has the cotangent `grad`. What `fn` reads from outside is to be `lifted`."""
    return xp.vjp(lambda inner, *xs: (fn(inner, *xs),), *primals)[1]((grad,))


# names of dtypes in PyTorch's messages
_C_NAMES = {dtypes.float32: "float", dtypes.float64: "double", dtypes.bfloat16: "c10::BFloat16"} | {
    dtype: f"{dtype.name}_t" for dtype in dtypes.INTEGER
}
_C_NAMES[dtypes.int32] = "int"


def check_fits(value: complex, dtype: np.dtype) -> None:
    """Raises where C++ does not convert a number. Integers below zero wrap around in unsigned ones."""
    if dtype == np.bool_:  # a boolean is whether the number is 0
        return
    fits = True
    if dtypes.is_integer(dtype):
        low, high = int(dtypes.iinfo(dtype).min), int(dtypes.iinfo(dtype).max)
        fits = low - (high if not low and isinstance(value, int) else 0) <= value.real <= high  # NaN is in no range
    if not fits or (value.imag and not dtypes.is_complex(dtype)):
        raise RuntimeError(f"value cannot be converted to type {_C_NAMES.get(dtype, dtype.name)} without overflow")
