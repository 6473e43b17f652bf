"""Hurwitz's zeta function and polygamma by the formula of XLA, in its dtype: where exponents are large, or arguments
far left of 0, what rounds and overflows there is the result (https://github.com/openxla/stablehlo, CHLO)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.frontends.jax.rules.elementwise import digamma
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

_TERMS = 9  # beside the first one


def _corrections(count: int) -> list[float]:
    """Return B(2k) / (2k)! for k = 1, 2, ... `count`, of Euler and Maclaurin's formula."""
    numbers = [Fraction(1)]  # of Bernoulli
    for n in range(1, 2 * count + 1):
        numbers.append(-sum(math.comb(n + 1, k) * b for k, b in enumerate(numbers)) / Fraction(n + 1))
    return [float(numbers[2 * k] / math.factorial(2 * k)) for k in range(1, count + 1)]


_FIRST, *_OTHERS = _corrections(12)


def _is_even(xp: Backend, x: Array) -> Array:
    half = xp.multiply(x, 0.5)
    return xp.equal(half, xp.floor(half))


@rule("zeta")
def zeta(xp: Backend, s: Array, q: Array, **_: Any) -> Array:
    """The sum of (q + n)^-s over n. At a pole infinity for even exponents, whose terms have one sign, else NaN; left
    of 0 exponents are whole."""
    exponent = xp.negative(s)
    total = xp.pow(q, exponent)
    a = q
    for _n in range(_TERMS):
        a = xp.add(a, 1.0)
        total = xp.add(total, xp.pow(a, exponent))
    a = xp.add(a, 1.0)
    last = xp.pow(a, exponent)
    total = xp.add(total, xp.divide(xp.multiply(last, a), xp.subtract(s, 1.0)))
    square, rest = xp.divide(1.0, xp.multiply(a, a)), xp.zeros_like(a)
    for k, c in reversed(list(enumerate(_OTHERS))):
        rising = xp.multiply(xp.add(s, 2.0 * k + 2), xp.add(s, 2.0 * k + 1))
        rest = xp.multiply(xp.multiply(rising, square), xp.add(rest, c))
    tail = xp.add(xp.multiply(xp.divide(s, a), xp.add(rest, _FIRST)), 0.5)
    out = xp.add(total, xp.multiply(last, tail))
    left, pole = xp.less_equal(q, 0.0), xp.equal(q, xp.floor(q))
    broken = xp.logical_and(left, xp.not_equal(s, xp.floor(s)))
    out = xp.where(xp.logical_or(xp.less(s, 1.0), broken), xp.full_like(out, math.nan), out)
    at_pole = xp.where(_is_even(xp, s), xp.full_like(out, math.inf), xp.full_like(out, math.nan))
    out = xp.where(xp.logical_and(left, pole), at_pole, out)
    return xp.where(xp.equal(s, 1.0), xp.full_like(out, math.inf), out)


@rule("polygamma")
def polygamma(xp: Backend, n: Array, x: Array, **_: Any) -> Array:
    """(-1)^(n+1) n! zeta(n + 1, x); NaN for orders that are no natural numbers."""
    dtype = xp.dtype_of(x)
    factorial = xp.astype(xp.exp(xp.lgamma(xp.add(xp.astype(n, dtypes.float64), 1.0))), dtype)
    size = xp.multiply(factorial, zeta(xp, xp.add(n, 1.0), x))
    out = xp.where(_is_even(xp, n), xp.negative(size), size)
    out = xp.where(xp.equal(n, 0.0), digamma(xp, x), out)
    natural = xp.logical_and(xp.greater_equal(n, 0.0), xp.equal(n, xp.floor(n)))
    return xp.where(natural, out, xp.full_like(out, math.nan))
