"""Initial values of parameters, and the meaning of arguments of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorgraft.array_api as xp
from tensorgraft import random
from tensorgraft.array_api import Array
from tensorgraft.frontends.array_api.core.promotion import checked
from tensorgraft.hub import dtypes


def dtype_or_default(dtype: Any) -> Any:
    """Return float32 where nothing is said."""
    return dtypes.float32 if dtype is None else checked(dtype)


def uniform(key: Array, shape: tuple[int, ...], dtype: Any, limit: float) -> Array:
    """Uniform in [-limit, limit), of complex numbers in both parts."""
    if dtypes.is_complex(dtype):
        real_key, imag_key = xp.unstack(random.split(key, 2))
        part = dtypes.real_dtype(dtype)
        real = random.uniform(real_key, shape, part, -limit, limit)
        return xp.astype(real, dtype) + 1j * xp.astype(random.uniform(imag_key, shape, part, -limit, limit), dtype)
    return random.uniform(key, shape, dtype, -limit, limit)


def keys(key: Array, n: int) -> list[Array]:
    return list(xp.unstack(random.split(key, n)))


def per_axis(name: str, x: int | Sequence[int], n: int) -> tuple[int, ...]:
    """Return one int for each of `n` axes. Raises ValueError for another number of them."""
    if isinstance(x, int):
        return (x,) * n
    numbers = tuple(x)
    if len(numbers) != n:
        raise ValueError(f"{name}: expected an int or {n} of them, got {numbers}")
    return numbers
