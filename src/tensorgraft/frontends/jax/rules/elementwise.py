"""Primitives that work element by element. Their operands have one shape, or none at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.extend.core import primitives

from tensorgraft.frontends.jax import releases
from tensorgraft.frontends.jax.rule import RULES, rule
from tensorgraft.frontends.jax.rules import bits  # noqa: F401  (it registers rules)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations.elementwise import ELEMENTWISE
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators


def _is_complex(xp: Any, x: Array) -> bool:
    return dtypes.is_complex(xp.dtype_of(x))


# ---- order -----------------------------------------------------------------------------------------------------------


@with_operators
def _is_before(xp: ValueBackend, x: Value, y: Value) -> Value:
    """Return whether `x` is before `y`, complex numbers in lexicographic order."""
    real, other = xp.real(x), xp.real(y)
    tied = (real == other) & (xp.imag(x) < xp.imag(y))
    return (real < other) | tied


@rule("max")
def maximum(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
    return xp.where(_is_before(xp, y, x), x, y) if _is_complex(xp, x) else xp.maximum(x, y)


@rule("min")
def minimum(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
    return xp.where(_is_before(xp, x, y), x, y) if _is_complex(xp, x) else xp.minimum(x, y)


@rule("clamp")
def clamp(xp: Backend, low: Array, x: Array, high: Array, **_: Any) -> Array:
    return minimum(xp, maximum(xp, x, low), high)


@rule("select_n")
def select_n(xp: Backend, index: Array, *cases: Array, **_: Any) -> Array:
    if len(cases) == 1:
        return cases[0]
    if xp.dtype_of(index) == np.bool_:
        return xp.where(index, cases[1], cases[0])
    selected = cases[0]
    for i, case in enumerate(cases[1:], start=1):
        selected = xp.where(xp.equal(index, i), case, selected)
    return selected


# ---- division --------------------------------------------------------------------------------------------------------


def _is_integer(xp: Backend, x: Array) -> bool:
    return dtypes.is_integer(xp.dtype_of(x))


@with_operators
def _safe_divisor(xp: ValueBackend, x: Value, y: Value) -> tuple[Value, Value, Value | None]:
    """Return (1 where a processor would trap, else y; where y is 0; where the quotient overflows)."""
    zero, overflow, dtype = y == 0, None, x.dtype
    odd = zero
    if dtype.kind == "i":
        overflow = (x == dtypes.lowest(dtype)) & (y == -1)
        odd = zero | overflow
    return xp.where(odd, xp.ones_like(y), y), zero, overflow


@rule("div")
def div(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
    """Integers: toward zero; by zero -1; the least number by -1 is itself (XLA)."""
    if not _is_integer(xp, x):
        return xp.divide(x, y)
    safe, zero = _safe_divisor(xp, x, y)[:2]
    quotient = xp.integer_floor_divide(xp.subtract(x, xp.fmod(x, safe)), safe)
    return xp.where(zero, xp.bitwise_invert(xp.zeros_like(quotient)), quotient)


@rule("rem")
def rem(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
    """Integers: by zero the dividend (XLA)."""
    if not _is_integer(xp, x):
        return xp.fmod(x, y)
    safe, zero, overflow = _safe_divisor(xp, x, y)
    rest = xp.where(zero, x, xp.fmod(x, safe))
    return rest if overflow is None else xp.where(overflow, xp.zeros_like(rest), rest)


# ---- powers ----------------------------------------------------------------------------------------------------------


@rule("integer_pow")
def integer_pow(xp: Backend, x: Array, *, y: int, **_: Any) -> Array:
    """Raise to an integer power by squaring, as JAX does."""
    if y == 0:
        return xp.ones_like(x)
    if y < 0:
        return xp.reciprocal(integer_pow(xp, x, y=-y))
    power: Any = None
    left = y
    if y == 3:
        return xp.multiply(xp.multiply(x, x), x)
    while left:
        if left & 1:
            power = x if power is None else xp.multiply(power, x)
        left >>= 1
        if left:
            x = xp.multiply(x, x)
    return power


@rule("pow")
def pow_(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
    """Compute x^y; the exponent may be an integer."""
    y = xp.astype(y, xp.dtype_of(x))
    return _complex_power(xp, x, y) if _is_complex(xp, x) else xp.pow(x, y)


@with_operators
def _complex_power(xp: ValueBackend, x: Value, y: Value) -> Value:
    """Anything ** 0 is 1, and 0 ** y is 0 for real y > 0 alone."""
    real, imag = xp.real(y), xp.imag(y)
    zero_power = xp.where((real > 0) & (imag == 0), xp.zeros_like(y), xp.full_like(y, complex("nan+nanj")))
    power = xp.where(x == 0, zero_power, x**y)
    return xp.where(y == 0, xp.ones_like(y), power)


@rule("atan2")
def atan2(xp: Backend, x: Array, y: Array, **_: Any) -> Array:
    return _complex_atan2(xp, x, y) if _is_complex(xp, x) else xp.atan2(x, y)


@with_operators
def _complex_atan2(xp: ValueBackend, x: Value, y: Value) -> Value:
    return xp.log((y + x * 1j) / xp.sqrt(x * x + y * y)) * -1j


# ---- the rest --------------------------------------------------------------------------------------------------------


@rule("round")
@with_operators
def round_(xp: ValueBackend, x: Value, *, rounding_method: Any, **_: Any) -> Value:
    if int(rounding_method) == 1:
        return xp.round(x)
    truncated = xp.trunc(x)
    return xp.where(abs(x - truncated) >= 0.5, truncated + xp.sign(x), truncated)


@rule("digamma")
def digamma(xp: Any, x: AnyArray, **_: Any) -> AnyArray:
    """Compute digamma with JAX's value at zeros, where the hub has PyTorch's infinity of the other sign."""
    return xp.where(xp.equal(x, 0), releases.DIGAMMA_OF_ZERO, xp.digamma(x))


@rule("erf_inv")
def erf_inv(xp: Backend, x: Array, **_: Any) -> Array:
    """Zeros keep their sign."""
    return xp.where(xp.equal(x, 0), x, xp.erf_inv(x))


@rule("bessel_i1e")
def bessel_i1e(xp: Backend, x: Array, **_: Any) -> Array:
    """Zeros keep their sign."""
    return xp.where(xp.equal(x, 0), x, xp.bessel_i1e(x))


@rule("conj")
def conj(xp: Backend, x: Array, **_: Any) -> Array:
    return xp.conj(x) if _is_complex(xp, x) else xp.complex(x, xp.zeros_like(x))


@rule("convert_element_type")
def convert_element_type(xp: Backend, x: Array, *, new_dtype: Any, **_: Any) -> Array:
    """Floating to integer saturates, and NaN becomes 0 (XLA)."""
    source, dtype = xp.dtype_of(x), np.dtype(new_dtype)
    if dtypes.is_complex(source) and not dtypes.is_complex(dtype) and dtype.kind != "b":
        x, source = xp.real(x), dtypes.real_dtype(source)
    if not (dtypes.is_floating(source) and dtypes.is_integer(dtype)):
        return xp.astype(x, dtype)
    wide = xp.astype(x, dtypes.accumulator(source))
    least, most = int(dtypes.iinfo(dtype).min), int(dtypes.iinfo(dtype).max)
    low, high = xp.less_equal(wide, float(least)), xp.greater_equal(wide, float(most))
    odd = xp.logical_or(xp.logical_or(low, high), xp.isnan(wide))
    converted = xp.astype(xp.where(odd, xp.zeros_like(wide), wide), dtype)
    converted = xp.where(low, xp.full((), least, dtype), converted)
    return xp.where(high, xp.full((), most, dtype), converted)


@rule("mul")
def multiply(xp: Backend, x: Array, y: Array, *, out_dtype: Any = None, **_: Any) -> Array:
    """Multiply, in the dtype `out_dtype` where it is given (since JAX 0.11)."""
    if out_dtype is not None:
        x, y = (convert_element_type(xp, operand, new_dtype=out_dtype) for operand in (x, y))
    return xp.multiply(x, y)


# ---- one to one ------------------------------------------------------------------------------------------------------

# JAX's name -> the hub's, where it is another
OTHERWISE = {"add_any": "add", "sub": "subtract", "neg": "negative", "logistic": "sigmoid"}
OTHERWISE |= {"is_finite": "isfinite", "eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}
OTHERWISE |= {"gt": "greater", "ge": "greater_equal", "not": "bitwise_invert", "zeros_like": "zeros_like"}
OTHERWISE |= {name: f"bitwise_{name}" for name in ("and", "or", "xor")}
_NAMES = (*[name for name in ELEMENTWISE if name != "zeta"], "complex")  # zeta has a module of its own


def _same_name(name: str) -> Callable[..., Array]:
    def run(xp: Backend, *operands: Array, **_: Any) -> Array:
        return getattr(xp, name)(*operands)

    return run


for _name in (*OTHERWISE, *_NAMES):
    if _name not in RULES and (_name in OTHERWISE or hasattr(primitives, f"{_name}_p")):
        rule(_name)(_same_name(OTHERWISE.get(_name, _name)))
