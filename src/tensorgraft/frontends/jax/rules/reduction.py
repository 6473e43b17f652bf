"""Reductions and scans along axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.frontends.jax.rules.associative_scan import combine_function, folded, scanned
from tensorgraft.frontends.jax.rules.scalar_functions import scalar_function
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend, with_operators

Ints = Sequence[int]


def identity(name: str, dtype: np.dtype) -> Any:
    """Return the value that a sum, prod, max, min, and, or, xor starts from."""
    if name in ("max", "min"):
        value = dtypes.lowest(dtype) if name == "max" else dtypes.highest(dtype)
        return complex(value) if dtypes.is_complex(dtype) else value
    if name == "and":
        return True if dtypes.is_bool(dtype) else -1
    return {"sum": 0, "prod": 1, "or": 0, "xor": 0}[name]


def is_identity(constant: Any, name: str) -> bool:
    """Return whether a constant is the identity of the named reduction."""
    if constant is None:
        return False
    value = np.asarray(constant)
    return value.shape == () and bool(value == np.asarray(identity(name, value.dtype)).astype(value.dtype))


def reduced(xp: Backend, x: Array, name: str, axes: Ints) -> Array:
    """Return the reduction of a name over axes, for every dtype that JAX takes."""
    axes = tuple(axes)
    if not axes:
        return x
    dtype = xp.dtype_of(x)
    if dtypes.is_bool(dtype):
        native = {"and": "all", "or": "any", "max": "any", "min": "all", "sum": "any", "prod": "all"}.get(name)
        if native is not None:
            return getattr(xp, native)(x, axis=axes)
    if name in ("sum", "prod") or (name in ("max", "min") and not dtypes.is_complex(dtype)):
        return getattr(xp, name)(x, axis=axes)
    shape = xp.shape(x)
    if math.prod(shape[a] for a in axes) == 0:
        out_shape = tuple(n for a, n in enumerate(shape) if a not in axes)
        return xp.full(out_shape, identity(name, dtype), dtype)
    return folded(xp, [x], axes, combine_function(name, dtype))[0]


def _reduction(name: str) -> Callable[..., Any]:
    def run(xp: Backend, x: Array, *, axes: Ints, **_: Any) -> Array:
        return reduced(xp, x, name, axes)

    return run


for _name in ("sum", "prod", "max", "min", "and", "or", "xor"):
    rule(f"reduce_{_name}")(_reduction(_name))


@rule("reduce")
def reduce(
    xp: Backend, *operands: Array, jaxpr: Any, dimensions: Ints, out: Any, known: Any, **_: Any
) -> Sequence[Array]:
    """Reduce by any associative function, of several operands together, from initial values."""
    half = len(operands) // 2
    arrays, initial = operands[:half], operands[half:]
    shape = tuple(out[0].shape)
    starts = [xp.broadcast_to(x, shape) for x in initial]
    if not dimensions:  # XLA takes the initial values for an identity
        return arrays
    if not xp.size(arrays[0]):
        return starts
    function = scalar_function(jaxpr)
    if half == 1 and function.monoid is not None:
        outputs: Sequence[Array] = [reduced(xp, arrays[0], function.monoid, dimensions)]
        if is_identity(known[half], function.monoid):
            return outputs
    else:
        outputs = folded(xp, arrays, tuple(dimensions), function.combine)
    return function.combine(xp, starts, outputs)


# ---- positions -----------------------------------------------------------------------------------------------------


@rule("argmax")
def argmax(xp: Backend, x: Array, *, axes: Ints, index_dtype: Any) -> Array:
    return xp.astype(xp.argmax(x, axis=axes[0]), np.dtype(index_dtype))


@rule("argmin")
def argmin(xp: Backend, x: Array, *, axes: Ints, index_dtype: Any) -> Array:
    return xp.astype(xp.argmin(x, axis=axes[0]), np.dtype(index_dtype))


# ---- scans ---------------------------------------------------------------------------------------------------------


def _along_axis(fn: Callable[[Backend, Array, int], Array]) -> Callable[..., Any]:
    def run(xp: Backend, x: Array, *, axis: int, reverse: bool, **_: Any) -> Array:
        if not xp.size(x):
            return x
        if reverse:
            return xp.flip(fn(xp, xp.flip(x, (axis,)), axis), (axis,))
        return fn(xp, x, axis)

    return run


def _cumulative(name: str) -> Callable[..., Any]:
    def scan(xp: Backend, x: Array, axis: int) -> Array:
        if name in ("max", "min") and dtypes.is_complex(xp.dtype_of(x)):
            return scanned(xp, [x], axis, combine_function(name, xp.dtype_of(x)))[0]
        return getattr(xp, f"cum{name}")(x, axis=axis)

    return _along_axis(scan)


for _name in ("sum", "prod", "max", "min"):
    rule(f"cum{_name}")(_cumulative(_name))


@with_operators
def _cumlogsumexp(xp: ValueBackend, x: Value, axis: int) -> Value:
    """Return the cumulative logsumexp; of complex numbers the imaginary part is in [-pi, pi)."""
    out = xp.cumlogsumexp(x, axis)
    if not dtypes.is_complex(x.dtype):
        return out
    shifted = xp.imag(out) + math.pi
    turns = xp.floor(shifted * (1 / (2 * math.pi)))
    angle = shifted - turns * (2 * math.pi) - math.pi
    return xp.complex(xp.real(out), angle)


rule("cumlogsumexp")(_along_axis(_cumlogsumexp))
