"""Names of dtypes and rules that several tables of PyTorch use."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.hub import dtypes

NARROW_FLOATS = (dtypes.float16, dtypes.bfloat16)
_KNOWN = (*dtypes.ALL, *dtypes.FLOAT8)


def dtype_name(dtype: np.dtype) -> str:
    if dtype not in _KNOWN:
        raise NotExpressibleError(f"PyTorch has no tensors of {dtype}")
    return f"torch.{dtype.name}"


def unless_float32(dtype: np.dtype) -> Any:
    """Return the dtype of a new array, or None for PyTorch's default."""
    return None if dtype == dtypes.float32 else dtype


def zeros_or_ones(name: str) -> Callable[..., ast.expr]:
    return lambda w, shape, dtype: w.fill(
        f"torch.{name}(shape, dtype=dtype)", shape=tuple(shape), dtype=unless_float32(dtype)
    )
