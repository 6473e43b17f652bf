"""Functions of JAX arrays as methods of the backend, and conversion of operands to one dtype and shape."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.compilation.program_cache import INLINE, KeptProgram
from tensorgraft.backends.jax.tracing import is_tracing
from tensorgraft.hub.array import NativeArray as Array

Tracer = jax.core.Tracer


def operation(fn: Callable[..., Any], static: Sequence[str] = ()) -> Callable[..., Any]:
    """Make a method of the backend from a function of arrays and of hashable `static` arguments.

    Eagerly the function is one compiled program, however many `lax` operations it has. In a trace the function itself
    is called: tracing through a jitted function takes three times as long and gives the same program.
    """
    eager = KeptProgram(fn, static_argnames=tuple(static), inline=INLINE)

    @functools.wraps(fn)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        for x in args:
            if isinstance(x, Tracer):
                return fn(*args, **kwargs)
        return fn(*args, **kwargs) if is_tracing() else eager(*args, **kwargs)

    return method


_FEW = 4  # requests before a program is compiled
_MOST = 1 << 13  # keys that are counted
_uses: dict[Any, int] = {}  # {key: number of requests so far, at most _FEW}


def is_common(key: Any) -> bool:
    """Count a request for the program of `key`, and return True if there were several before, so that compiling it is
    worthwhile: it takes as long as a thousand calls."""
    n = _uses.get(key, 0)
    if n < _FEW:
        if len(_uses) >= _MOST:
            _uses.clear()
        _uses[key] = n + 1
    return n >= _FEW


def _cast_scalar(x: Any, dtype: np.dtype) -> Array:
    if isinstance(x, jax.Array):  # a Python scalar that is an argument of a compiled function
        return lax.convert_element_type(x, dtype)
    value = np.asarray(x)
    if value.dtype.kind == "c" and dtype.kind != "c":
        value = value.real
    return value.astype(dtype)


def is_weak(x: Any) -> bool:
    """Return True for a Python scalar, and for a weakly typed tracer that represents one."""
    return isinstance(x, (bool, int, float, complex)) or getattr(x, "weak_type", False)


def with_one_dtype(*operands: Any) -> list[Array]:
    """Return the operands as arrays; Python scalars, traced ones included, get the dtype of the arrays."""
    dtype = None
    for x in operands:
        if not is_weak(x) and (dtype is None or np.ndim(x)):  # a traced Python bool is 0-d, but not weak
            dtype = x.dtype
    if dtype is None:
        return [jnp.asarray(x) for x in operands]
    return [x if getattr(x, "dtype", None) == dtype and not is_weak(x) else _as_operand(x, dtype) for x in operands]


def _as_operand(x: Any, dtype: np.dtype) -> Array:
    if is_weak(x) or (x.dtype == np.bool_ and not x.shape):
        return _cast_scalar(x, dtype)
    return x  # lax raises the error for dtypes that differ


def broadcast(*arrays: Array) -> Sequence[Array]:
    """Return the arrays broadcast to their common shape."""
    shape = np.broadcast_shapes(*{x.shape for x in arrays})
    return [x if x.shape == shape else broadcast_to(x, shape) for x in arrays]


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    return lax.broadcast_in_dim(x, shape, range(len(shape) - len(x.shape), len(shape)))


def axes_of(x: Array, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the axes of a reduction as non-negative numbers."""
    n = len(x.shape)
    if axis is None:
        return tuple(range(n))
    return tuple(a % n for a in ((axis,) if isinstance(axis, int) else axis)) if n else ()
