"""Hurwitz's zeta function and polygamma by the formula of XLA, in its dtype: where exponents are large, or arguments
far left of 0, what rounds and overflows there is the result (https://github.com/openxla/stablehlo, CHLO)."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.frontends.jax.rules.elementwise import digamma
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

_TERMS = 9  # in addition to the first one


def _corrections(count: int) -> list[float]:
    """Return B(2k) / (2k)! for k = 1, 2, ... `count`, of Euler and Maclaurin's formula."""
    numbers = [Fraction(1)]  # Bernoulli numbers
    for n in range(1, 2 * count + 1):
        numbers.append(-sum(math.comb(n + 1, k) * b for k, b in enumerate(numbers)) / Fraction(n + 1))
    return [float(numbers[2 * k] / math.factorial(2 * k)) for k in range(1, count + 1)]


_FIRST, *_OTHERS = _corrections(12)


def _is_even(xp: Any, x: AnyArray) -> AnyArray:
    half = xp.multiply(x, 0.5)
    return xp.equal(half, xp.floor(half))


@rule("zeta")
@with_operators
def zeta(xp: ValueBackend, s: Value, q: Value, **_: Any) -> Value:
    """Return the sum of (q + n)^-s over n. At a pole infinity for even exponents, whose terms have one sign, else NaN;
    left of 0 exponents are whole."""
    exponent = -s
    total = q**exponent
    a = q
    for _n in range(_TERMS):
        a = a + 1.0
        total = total + a**exponent
    a = a + 1.0
    last = a**exponent
    total = total + last * a / (s - 1.0)
    square, rest = 1.0 / (a * a), xp.zeros_like(a)
    for k, c in reversed(list(enumerate(_OTHERS))):
        rising = (s + (2.0 * k + 2)) * (s + (2.0 * k + 1))
        rest = rising * square * (rest + c)
    tail = s / a * (rest + _FIRST) + 0.5
    out = total + last * tail
    left, pole = q <= 0.0, q == xp.floor(q)
    is_undefined = left & (s != xp.floor(s))
    out = xp.where((s < 1.0) | is_undefined, xp.full_like(out, math.nan), out)
    at_pole = xp.where(_is_even(xp, s), xp.full_like(out, math.inf), xp.full_like(out, math.nan))
    out = xp.where(left & pole, at_pole, out)
    return xp.where(s == 1.0, xp.full_like(out, math.inf), out)


@rule("polygamma")
@with_operators
def polygamma(xp: ValueBackend, n: Value, x: Value, **_: Any) -> Value:
    """Compute (-1)^(n+1) n! zeta(n + 1, x); NaN for orders that are no natural numbers."""
    dtype = x.dtype
    factorial = xp.astype(xp.exp(xp.lgamma(xp.astype(n, dtypes.float64) + 1.0)), dtype)
    size = factorial * zeta(xp, n + 1.0, x)
    out = xp.where(_is_even(xp, n), -size, size)
    out = xp.where(n == 0.0, digamma(xp, x), out)
    natural = (n >= 0.0) & (n == xp.floor(n))
    return xp.where(natural, out, xp.full_like(out, math.nan))
