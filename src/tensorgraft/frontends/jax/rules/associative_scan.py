"""Folds and scans by any associative function, in a logarithmic number of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend, with_operators

Ints = Sequence[int]
# (xp, one array an operand, as many others of the same shapes) -> as many
Combine = Callable[[Backend, Sequence[Array], Sequence[Array]], Sequence[Array]]


@with_operators
def greater(xp: ValueBackend, a: Value, b: Value) -> Value:
    """Return where `a` is greater in the lexicographic order of complex numbers, which is that of JAX."""
    a_real, b_real = xp.real(a), xp.real(b)
    equal_reals = (a_real == b_real) & (xp.imag(a) > xp.imag(b))
    return (a_real > b_real) | equal_reals


def _lexicographic(name: str) -> Combine:
    """max or min of complex numbers: by the real parts, then by the imaginary ones."""

    def combine(xp: Backend, a: Sequence[Array], b: Sequence[Array]) -> Sequence[Array]:
        first = greater(xp, a[0], b[0]) if name == "max" else greater(xp, b[0], a[0])
        return (xp.where(first, a[0], b[0]),)

    return combine


# the name of a reduction -> the hub's operation of two arrays
_OPERATIONS = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
_OPERATIONS.update({name: f"bitwise_{name}" for name in ("and", "or", "xor")})


def combine_function(name: str, dtype: np.dtype) -> Combine:
    """Return the function that combines two elements in the named reduction."""
    if name in ("max", "min") and dtypes.is_complex(dtype):
        return _lexicographic(name)

    def combine(xp: Backend, a: Sequence[Array], b: Sequence[Array]) -> Sequence[Array]:
        return (getattr(xp, _OPERATIONS[name])(a[0], b[0]),)

    return combine


def folded(xp: Backend, arrays: Sequence[Array], axes: Ints, combine: Combine) -> Sequence[Array]:
    """Return arrays of one shape, reduced together over axes that are not empty. The order of the elements is kept, and
    pairs are combined as in a balanced tree."""
    shape = xp.shape(arrays[0])
    kept_axes = [a for a in range(len(shape)) if a not in axes]
    n = math.prod(shape[a] for a in axes)
    order = (*axes, *kept_axes)
    flat = (n, *(shape[a] for a in kept_axes))
    rows = [xp.reshape(xp.permute_dims(x, order), flat) for x in arrays]
    while n > 1:
        half = n // 2
        low = [xp.take_slice(x, 0, 0, 2 * half, 2) for x in rows]
        high = [xp.take_slice(x, 0, 1, 2 * half, 2) for x in rows]
        pairs = combine(xp, low, high)
        if n % 2:
            pairs = [xp.concat([p, xp.take_slice(x, 0, n - 1, n)], axis=0) for p, x in zip(pairs, rows, strict=True)]
        rows, n = list(pairs), half + n % 2
    return [xp.reshape(x, flat[1:]) for x in rows]


def scanned(xp: Backend, arrays: Sequence[Array], axis: int, combine: Combine) -> Sequence[Array]:
    """Inclusive scans along an axis (Hillis and Steele 1986)."""
    n = xp.shape(arrays[0])[axis]
    step = 1
    while step < n:
        front = [xp.take_slice(x, axis, 0, step) for x in arrays]
        shifted = [xp.take_slice(x, axis, 0, n - step) for x in arrays]
        combined = combine(xp, shifted, [xp.take_slice(x, axis, step, n) for x in arrays])
        arrays = [xp.concat([f, m], axis=axis) for f, m in zip(front, combined, strict=True)]
        step *= 2
    return arrays
