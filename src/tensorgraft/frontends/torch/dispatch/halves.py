"""Rounding in the arithmetic of complex32 that CPU PyTorch has, which rounds operands and products as well as results.

CUDA's other operators compute with the operands that they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import from_halves, to_halves

_ELEMENTWISE = [f"{name}.{form}" for name in ("add", "sub", "rsub", "mul", "eq", "ne") for form in ("Tensor", "Scalar")]
# operators that round their operands, by name
ON_CPU = frozenset([*_ELEMENTWISE, "addcmul"])


def rounded(xp: Backend, x: Array) -> Array:
    """Return complex64 values rounded to complex32."""
    return from_halves(xp, to_halves(xp, x))


def rounding(name: str, fn: Callable[..., Array]) -> Callable[..., Array]:
    """Return the kernel of an operator, `fn`, with its products rounded. `name`: "add.Tensor"."""
    stem = name.partition(".")[0]
    return partial(_PRODUCTS[stem], fn) if stem in _PRODUCTS else fn


def _sum(fn: Callable[..., Array], xp: Backend, x: Array, other: Array, alpha: Any = 1) -> Array:
    return fn(xp, x, other if _is_one(alpha) else rounded(xp, xp.multiply(other, alpha)))


def _reversed_difference(fn: Callable[..., Array], xp: Backend, x: Array, other: Array, alpha: Any = 1) -> Array:
    return fn(xp, x if _is_one(alpha) else rounded(xp, xp.multiply(x, alpha)), other)


def _sum_of_product(fn: Callable[..., Array], xp: Backend, x: Array, a: Array, b: Array, value: Any = 1) -> Array:
    if not _is_one(value):
        is_number = isinstance(value, int | float | complex)
        factor = xp.full((), value, xp.dtype_of(a)) if is_number else xp.astype(value, xp.dtype_of(a))
        a = rounded(xp, xp.multiply(a, rounded(xp, factor)))
    return xp.add(x, rounded(xp, xp.multiply(a, b)))


def _is_one(number: Any) -> bool:
    return isinstance(number, int | float | complex) and number == 1


_PRODUCTS: dict[str, Callable[..., Array]] = {
    "add": _sum,
    "sub": _sum,
    "rsub": _reversed_difference,
    "addcmul": _sum_of_product,
}
