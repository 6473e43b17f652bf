"""Elementary functions of float32 in operations that XLA vectorises. For its own, XLA calls a function of the C library
for each element on a CPU, or takes several operations that cost as much.

Intermediate values are float64, so that results are off by little more than half a unit in the last place. Denormal
operands count as zero, as elsewhere in XLA on a CPU. Derivatives are those of XLA's functions.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

Fn = Callable[..., Array]
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def _instead_of(native: Fn) -> Callable[[Fn], Fn]:
    """A decorator: the function computes what `native` does, for float32; other dtypes, and derivatives, are left to
    `native`, and so is a program without 64-bit types."""

    def decorate(fn: Fn) -> Fn:
        value = jax.custom_jvp(fn)
        value.defjvp(lambda primals, tangents: (value(*primals), jax.jvp(native, primals, tangents)[1]))

        @functools.wraps(fn)
        def function(*xs: Array) -> Array:
            if xs[0].dtype != _FLOAT32 or not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
                return native(*xs)
            return value(*xs)

        return function

    return decorate


def _wide(x: Array) -> Array:
    return lax.convert_element_type(x, _FLOAT64)


def _narrow(x: Array) -> Array:
    return lax.convert_element_type(x, _FLOAT32)


def _polynomial(u: Array, coefficients: Sequence[float]) -> Array:
    """Evaluate a polynomial, highest power first."""
    out = jnp.full_like(u, coefficients[0])
    for c in coefficients[1:]:
        out = out * u + c
    return out


# ---- sine, cosine, tangent -------------------------------------------------------------------------------------------

# pi / 2 in two parts. The first has 24 bits, so its product with a number of turns of up to 29 bits is exact.
_HIGH = float(np.float32(math.pi / 2))
_LOW = -4.371139000186241438857e-08
_FAR = float(1 << 20)  # above, XLA's own function is called

# Taylor's coefficients, highest power first: on [-pi / 4, pi / 4] the rest is below 2^-35 of the value
_SINE = [(-1) ** k / math.factorial(2 * k + 1) for k in range(6, 0, -1)]
_COSINE = [(-1) ** k / math.factorial(2 * k) for k in range(6, 0, -1)]


def _quadrant(x: Array) -> tuple[Array, Array, Array]:
    """Return (the number of the quarter turn nearest to x, sine and cosine of the rest), in float64."""
    wide = _wide(x)
    turns = lax.round(wide * (2 / math.pi), lax.RoundingMethod.TO_NEAREST_EVEN)
    r = lax.select(turns == 0, wide, (wide - turns * _HIGH) - turns * _LOW)  # -0 is its own sine
    u = r * r
    near = lax.select(lax.abs(wide) < _FAR, turns, jnp.zeros_like(turns))  # else unused, and beyond int32
    return (
        lax.convert_element_type(near, np.int32),
        r * (1 + u * _polynomial(u, _SINE)),
        1 + u * _polynomial(u, _COSINE),
    )


def _circular(native: Fn, of_quadrant: Callable[[Array, Array, Array], Array]) -> Fn:
    @_instead_of(native)
    def function(x: Array) -> Array:
        if jax.device_count() > 1:  # where arrays may be split, and the question below is one to all devices
            return native(x)
        is_far = jnp.any((lax.abs(x) >= _FAR) & lax.is_finite(x))
        return lax.cond(is_far, native, lambda x: _narrow(of_quadrant(*_quadrant(x))), x)

    return function


def _sine(quarter: Array, sine: Array, cosine: Array) -> Array:
    value = lax.select(quarter & 1 == 0, sine, cosine)
    return lax.select(quarter & 2 == 0, value, -value)


def _tangent(quarter: Array, sine: Array, cosine: Array) -> Array:
    odd = quarter & 1 == 1
    return lax.select(odd, -cosine, sine) / lax.select(odd, sine, cosine)


sin = _circular(lax.sin, _sine)
cos = _circular(lax.cos, lambda quarter, sine, cosine: _sine(quarter + 1, sine, cosine))
tan = _circular(lax.tan, _tangent)


# ---- powers of two, their logarithms, roots --------------------------------------------------------------------------


_EXPONENTIAL = [1 / math.factorial(k) for k in range(8, -1, -1)]  # on [-log(2) / 2, log(2) / 2] to 2^-37


@_instead_of(lambda x: lax.pow(jnp.full_like(x, 2), x))
def exp2(x: Array) -> Array:
    wide = lax.clamp(-1000.0, _wide(x), 1000.0)
    whole = lax.round(wide, lax.RoundingMethod.TO_NEAREST_EVEN)
    exponent = lax.convert_element_type(lax.select(wide == wide, whole, jnp.zeros_like(whole)), np.int64) + 1023
    power = lax.bitcast_convert_type(exponent << 52, _FLOAT64)
    return _narrow(_polynomial((wide - whole) * math.log(2), _EXPONENTIAL) * power)


def exact_log2(x: Array) -> Array:
    """Return the logarithm, exact of powers of two: log(8) / log(2) is not 3 in every precision."""
    y = jnp.log2(x)
    if dtypes.is_complex(x.dtype):
        return y
    power = lax.round(y, lax.RoundingMethod.TO_NEAREST_EVEN)
    exponent = lax.convert_element_type(lax.select(lax.is_finite(y), power, lax.full_like(y, 0)), np.int32)
    exact = jnp.ldexp(lax.full_like(x, 1), exponent) == x
    return y + lax.stop_gradient(lax.select(exact, power - y, lax.full_like(y, 0)))


_LEAST = float(np.finfo(np.float32).tiny)
_LOGARITHM = [1 / k for k in range(15, 1, -2)]  # log(m) / 2 is a series of odd powers of (m - 1) / (m + 1)


@_instead_of(exact_log2)
def log2(x: Array) -> Array:
    """The exponent, and the logarithm of what is left between the square roots of 1/2 and 2; exact for powers of 2."""
    bits = lax.bitcast_convert_type(x, np.int32)
    exponent = (bits - 0x3F3504F3) >> 23  # that of the square root of 1/2 on
    mantissa = _wide(lax.bitcast_convert_type(bits - (exponent << 23), _FLOAT32))
    s = (mantissa - 1) / (mantissa + 1)
    u = s * s
    near = _narrow(_wide(exponent) + (s + s * u * _polynomial(u, _LOGARITHM)) * (2 / math.log(2)))
    limits = jnp.where(x < _LEAST, jnp.where(x > -_LEAST, -np.inf, np.nan), x)
    return lax.select((x >= _LEAST) & (x < np.inf), near, limits.astype(_FLOAT32))


@_instead_of(lax.rsqrt)
def rsqrt(x: Array) -> Array:
    """XLA makes `lax.rsqrt` of the quotient by a root, whatever the root is, unless there is a selection between."""
    return 1 / lax.select(x == 0, x, lax.sqrt(x))


# ---- remainders ------------------------------------------------------------------------------------------------------

_LARGEST = float(1 << 29)  # of quotients whose product with 24 bits is exact in float64


@_instead_of(lax.rem)
def rem(x: Array, y: Array) -> Array:
    """The rest of a division, which float64 has exactly while the quotient has at most 29 bits."""
    if jax.device_count() > 1:
        return lax.rem(x, y)
    quotient = lax.abs(_wide(x) / _wide(y))
    is_large = jnp.any((quotient >= _LARGEST) & lax.is_finite(quotient))
    return lax.cond(is_large, lax.rem, _near_rem, x, y)


def _near_rem(x: Array, y: Array) -> Array:
    a, b = lax.abs(_wide(x)), lax.abs(_wide(y))
    rest = a - lax.floor(a / b) * b
    rest = jnp.where(rest < 0, rest + b, rest)  # the quotient was rounded up to an integer
    rest = jnp.where((b == np.inf) & (a < np.inf), a, rest)
    return jnp.copysign(_narrow(rest), x)
