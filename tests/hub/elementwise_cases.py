"""The table of elementwise primitives: references, domains and tolerances where they are not the usual ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as sp
from tests.hub.draw import Draw

from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS, ELEMENTWISE


# Those that NumPy calls something else, or does not have. Operands are float64, complex128, or integers as they are.
def _power(x: Any, y: Any) -> Any:
    """Of integers to negative powers the truncated reciprocal, and 0 of 0."""
    if np.result_type(x).kind not in "iu":
        return np.power(x, y)
    whole = np.power(x, np.where(y < 0, -y, y))
    return np.where(y < 0, np.where(np.abs(x) == 1, whole, 0), whole)


REFERENCES: dict[str, Callable[..., Any]] = {
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "round": np.rint,
    "atan2": np.arctan2,
    "erf_inv": sp.erfinv,
    "lgamma": sp.gammaln,
    "bessel_i0e": sp.i0e,
    "bessel_i1e": sp.i1e,
    "igamma": sp.gammainc,
    "igammac": sp.gammaincc,
    "pow": _power,
    "sigmoid": sp.expit,
}

# name -> the range of each operand; elsewhere [-3, 3], with NaN, infinities and zeros of both signs among the floats
DOMAINS: dict[str, tuple[tuple[float, float], ...]] = {
    "acosh": ((1, 5),),
    "atanh": ((-1, 1),),
    "acos": ((-1, 1),),
    "asin": ((-1, 1),),
    "erf_inv": ((-1, 1),),
    "lgamma": ((0.1, 20),),
    "digamma": ((0.1, 20),),
    "igamma": ((0.5, 9), (0.5, 9)),
    "igammac": ((0.5, 9), (0.5, 9)),
    "zeta": ((1.5, 9), (0.5, 9)),
    "reciprocal": ((1, 9),),
}
INTEGER_DOMAINS: dict[str, tuple[tuple[float, float], ...]] = {
    "fmod": ((-100, 100), (1, 100)),
    "integer_floor_divide": ((-100, 100), (1, 100)),
    "pow": ((-9, 9), (-3, 5)),
    "bitwise_left_shift": ((-100, 100), (-9, 70)),
    "bitwise_right_shift": ((-100, 100), (-9, 70)),
}

# name -> units in the last place that a backend may be off, where more than 8
UNITS = {
    **dict.fromkeys(("igamma", "igammac", "zeta", "digamma", "lgamma"), 64),
    "pow": 32,
}
COMPLEX_UNITS = 64  # parts that cancel


def reference(name: str) -> Callable[..., Any]:
    return REFERENCES.get(name) or getattr(np, name, None) or getattr(sp, name)


def arity(name: str) -> int:
    return 2 if name in (*BINARY, *COMPARISONS, "integer_floor_divide") else 1


def arguments(name: str) -> Callable[[Draw], tuple[Any, ...]]:
    def draw(d: Draw) -> tuple[Any, ...]:
        integers = d.dtype.kind in "iu"
        domain = (INTEGER_DOMAINS if integers else DOMAINS).get(name)
        shapes = d.broadcastable(arity(name))
        if domain is None:
            return tuple(d.array(s, special=True) for s in shapes)
        return tuple(d.array(s, low=low, high=high) for s, (low, high) in zip(shapes, domain, strict=True))

    return draw


__all__ = ["COMPLEX_UNITS", "ELEMENTWISE", "UNITS", "arguments", "reference"]
