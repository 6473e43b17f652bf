"""log(exp(x) + exp(y)) of complex numbers, as the CPU has it for infinite ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.hub.value import AnyArray, Value, with_operators


@with_operators
def complex_logaddexp(xp: Any, x: Value, y: Value) -> Value:
    """Compute log(exp(x) + exp(y)); the greater real part, or the first of equal ones, is taken out of the logarithm.
    Of two infinite ones of one sign the second of the negative stays, as its angle means nothing, and the positive are
    added as vectors of infinite length."""
    swap = xp.real(x) < xp.real(y)
    high, low = xp.where(swap, y, x), xp.where(swap, x, y)
    real = xp.real(high)
    equal_infinite = (real == xp.real(low)) & xp.isinf(real)
    difference = low - xp.where(equal_infinite, xp.zeros_like(high), high)
    out = high + xp.log1p(xp.exp(difference))
    infinite = xp.where(real < 0, y, _sum_of_infinite(xp, high, low))
    out = xp.where(equal_infinite, infinite, out)
    is_nan = xp.isnan(x) | xp.isnan(y)
    return xp.where(is_nan, xp.full_like(out, complex(np.nan, np.nan)), out)


def _sum_of_infinite(xp: Any, x: AnyArray, y: AnyArray) -> AnyArray:
    """Compute log(exp(x) + exp(y)) of x and y with a real part of plus infinity."""

    def long(part: AnyArray) -> AnyArray:
        return xp.where(xp.equal(part, 0), part, xp.multiply(part, np.inf))

    real, imag = (xp.add(*(long(f(xp.imag(v))) for v in (x, y))) for f in (xp.cos, xp.sin))
    either_infinite = xp.logical_or(xp.isinf(real), xp.isinf(imag))
    size = xp.where(either_infinite, xp.full_like(real, np.inf), xp.full_like(real, np.nan))
    return xp.complex(size, xp.atan2(imag, real))
