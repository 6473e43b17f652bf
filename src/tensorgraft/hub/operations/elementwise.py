"""Elementwise operations.

Operands of one call have one dtype, or are Python scalars, which take the arrays' dtype (Array API, section "Mixing
arrays with Python scalars"). Shapes broadcast. The result has the operands' dtype unless a method says otherwise.

An operation is a row of the tables. Without a method below it is a primitive; with one, a composite. Its rule of shapes
and dtypes, wrappers of backends, random operands of its test, and what is one-to-one with it in the front ends follow
from the row, and so do backends whose framework has it by the same name.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array, Scalar
from tensorgraft.hub.primitive import primitive

# name -> kinds of dtype it takes: b(ool), i(nteger), f(loating), c(omplex)
UNARY = {
    "abs": "ifc",  # complex: the modulus, in the real dtype
    "sign": "ifc",  # complex: x / |x|, 0 at 0
    "negative": "ifc",
    **dict.fromkeys(
        ["acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"], "fc"
    ),
    **dict.fromkeys(["exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal"], "fc"),
    "square": "ifc",
    **dict.fromkeys(["cbrt", "sigmoid"], "f"),
    **dict.fromkeys(["erf", "erfc", "erf_inv", "lgamma", "digamma", "bessel_i0e", "bessel_i1e"], "f"),
    **dict.fromkeys(["ceil", "floor", "trunc", "round"], "f"),  # round: halves to even
    "bitwise_invert": "bi",
    "real": "c",
    "imag": "c",
    "conj": "c",
}
PREDICATES = {"isnan": "fc", "isinf": "fc", "isfinite": "fc", "signbit": "f", "logical_not": "b"}
BINARY = {
    **dict.fromkeys(["add", "multiply"], "bifc"),  # bool: logical or, and
    "subtract": "ifc",
    "divide": "fc",  # true division
    "fmod": "if",  # C's: the sign of the dividend; integers by zero: unspecified
    "pow": "ifc",  # integers wrap; to negative powers they are the truncated reciprocal, as in C, and 0 of 0
    "atan2": "f",
    "nextafter": "f",
    **dict.fromkeys(["maximum", "minimum"], "bif"),  # NaN wins
    **dict.fromkeys(["bitwise_and", "bitwise_or", "bitwise_xor"], "bi"),
    # a shift to the right keeps the sign; by less than 0, or the width or more, 0 (or the sign) is left
    **dict.fromkeys(["bitwise_left_shift", "bitwise_right_shift"], "i"),
    **dict.fromkeys(["igamma", "igammac", "zeta"], "f"),
    **dict.fromkeys(["copysign", "hypot", "logaddexp"], "f"),
}
COMPARISONS = {
    **dict.fromkeys(["equal", "not_equal"], "bifc"),
    **dict.fromkeys(["less", "less_equal", "greater", "greater_equal"], "bif"),
    **dict.fromkeys(["logical_and", "logical_or", "logical_xor"], "b"),
}
ELEMENTWISE = {**UNARY, **PREDICATES, **BINARY, **COMPARISONS}


def kinds_of(dtype: np.dtype) -> str:
    """Return the letter of `ELEMENTWISE` for a dtype."""
    if dtypes.is_floating(dtype):
        return "f"
    return {"b": "b", "i": "i", "u": "i", "c": "c"}[dtype.kind]


def _declare(name: str, arity: int) -> Any:
    if arity == 1:

        def method(self: Any, x: Array, /) -> Array:
            raise NotImplementedError

    else:

        def method(self: Any, x: Array | Scalar, y: Array | Scalar, /) -> Array:  # type: ignore[misc]
            raise NotImplementedError

    method.__name__ = method.__qualname__ = name
    return primitive(method)


class Elementwise:
    """Elementwise operations. Primitives are the names in `ELEMENTWISE` that have no composite below, and a few
    others."""

    for _name in (*UNARY, *PREDICATES):
        locals()[_name] = _declare(_name, 1)
    for _name in (*BINARY, *COMPARISONS):
        locals()[_name] = _declare(_name, 2)
    del _name

    def __getattr__(self, name: str) -> Any:  # the tables' names, for type checkers; never found at run time
        raise AttributeError(f"{type(self).__name__} has no operation {name!r}")

    @primitive
    def where(self, condition: Array, x: Array | Scalar, y: Array | Scalar, /) -> Array:
        """Return `x` where `condition` (bool) holds, else `y`; all three broadcast."""
        raise NotImplementedError

    @primitive
    def complex(self, real: Array, imag: Array, /) -> Array:
        """Return a complex array from two floating arrays of one dtype (float32 or float64)."""
        raise NotImplementedError

    @primitive
    def astype(self, x: Array, dtype: np.dtype, /) -> Array:
        """Return `x` converted. Floating to integer truncates and, like a C cast on x86, wraps in integers narrower
        than 32 bits; NaN, infinities and values beyond int64 are unspecified. Complex to real drops the imaginary part;
        to bool: not equal to zero. What float8_e4m3fn, which has no infinity, does not reach (beyond 464) is NaN there,
        as in JAX and TensorFlow; PyTorch's front end saturates before. `x` itself where it has the dtype already."""
        raise NotImplementedError

    @primitive
    def bitcast(self, x: Array, dtype: np.dtype, /) -> Array:
        """Return a 1-d array's bytes as another dtype: (n,) -> (n * old size / new size,). Complex and bool
        included."""
        raise NotImplementedError

    @primitive
    def integer_floor_divide(self, x: Array | Scalar, y: Array | Scalar, /) -> Array:
        """Integers; rounds toward minus infinity. Division by zero: unspecified."""
        raise NotImplementedError

    # ---- composites ------------------------------------------------------------------------------------------------

    def square(self, x: Array) -> Array:
        return self.multiply(x, x)

    def reciprocal(self, x: Array) -> Array:
        return self.divide(1, x)

    def exp2(self, x: Array) -> Array:
        if dtypes.is_complex(self.dtype_of(x)):
            return self.exp(self.multiply(x, math.log(2)))
        return self.pow(self.full_like(x, 2), x)

    def cbrt(self, x: Array) -> Array:
        """Return the real cube root."""
        dtype = self.dtype_of(x)
        wide = self.astype(x, dtypes.accumulator(dtype))
        size = self.abs(wide)
        root = self.pow(size, 1 / 3)
        is_regular = self.logical_and(self.isfinite(root), self.greater(root, 0))
        safe = self.where(is_regular, root, self.ones_like(root))
        step = self.divide(self.subtract(self.divide(size, self.multiply(safe, safe)), safe), 3)  # 1/3 is not exact
        root = self.where(is_regular, self.add(safe, step), root)
        return self.astype(self.copysign(root, wide), dtype)

    def sigmoid(self, x: Array) -> Array:
        return self.reciprocal(self.add(self.exp(self.negative(x)), 1))

    def clip(self, x: Array, low: Any = None, high: Any = None) -> Array:
        """Return `x` limited to [`low`, `high`], either of which may be None; NaN bounds propagate."""
        if low is not None:
            x = self.maximum(x, low)
        return x if high is None else self.minimum(x, high)

    def remainder(self, x: Array | Scalar, y: Any) -> Array:
        """Return the remainder of floor division: the sign of the divisor."""
        r = self.fmod(x, y)
        other = self.not_equal(r, 0)
        differs = self.logical_and(
            other, self.not_equal(self.less(r, 0), self.less(y, 0) if self.is_array(y) else y < 0)
        )
        return self.where(differs, self.add(r, y), r)

    def floor_divide(self, x: Array | Scalar, y: Any) -> Array:
        """Return the floor of the exact quotient, as CPython and PyTorch divide floats; integers by zero:
        unspecified."""
        if dtypes.is_integer(self.dtype_of(x, y)):
            return self.integer_floor_divide(x, y)
        mod = self.fmod(x, y)
        div = self.divide(self.subtract(x, mod), y)
        below = self.less(y, 0) if self.is_array(y) else y < 0
        wrong_sign = self.logical_and(self.not_equal(mod, 0), self.not_equal(self.less(mod, 0), below))
        div = self.where(wrong_sign, self.subtract(div, 1), div)
        floor = self.floor(div)
        floor = self.where(self.greater(self.subtract(div, floor), 0.5), self.add(floor, 1), floor)
        quotient = self.divide(x, y)
        floor = self.where(self.equal(div, 0), self.multiply(quotient, 0), floor)  # zero has the quotient's sign
        if not self.is_array(y):
            return floor if y else quotient
        return self.where(self.equal(y, 0), quotient, floor)

    def hypot(self, x: Array, y: Array) -> Array:
        a, b = self.maximum(self.abs(x), self.abs(y)), self.minimum(self.abs(x), self.abs(y))
        ratio = self.divide(b, self.where(self.equal(a, 0), self.add(a, 1), a))
        root = self.multiply(a, self.sqrt(self.add(self.multiply(ratio, ratio), 1)))
        infinite = self.logical_or(self.isinf(x), self.isinf(y))  # whatever the other one is
        return self.where(infinite, self.full_like(root, math.inf), root)

    def logaddexp(self, x: Array, y: Array) -> Array:
        """Compute log(exp(x) + exp(y)), without overflow; infinities of one sign stay."""
        is_equal = self.equal(x, y)
        # half of the derivative for each of two equal operands; of a maximum, one of them has all on some backends
        high = self.where(is_equal, self.add(self.multiply(x, 0.5), self.multiply(y, 0.5)), self.maximum(x, y))
        difference = self.where(is_equal, self.zeros_like(high), self.negative(self.abs(self.subtract(x, y))))
        return self.add(high, self.log1p(self.exp(difference)))

    def copysign(self, x: Array, y: Array) -> Array:
        flip = self.not_equal(self.signbit(x), self.signbit(y))
        return self.where(flip, self.negative(x), x)

    def angle(self, x: Array) -> Array:
        """Return the argument of a complex number; of a real one 0 or pi."""
        if dtypes.is_complex(self.dtype_of(x)):
            return self.atan2(self.imag(x), self.real(x))
        zero = self.zeros_like(x)
        out = self.where(self.less(x, 0), self.add(zero, math.pi), zero)
        return self.where(self.isnan(x), x, out)

    def polygamma(self, n: Array, x: Array) -> Array:
        """Return the derivative of order `n` of digamma, (-1)^(n+1) n! zeta(n + 1, x); in double, for n! and zeta
        cancel."""
        order, wide = (self.astype(v, dtypes.float64) for v in (n, x))
        next_order = self.add(order, 1)
        even = self.equal(self.fmod(order, self.full_like(order, 2)), 0)
        factorial = self.exp(self.lgamma(next_order))
        higher = self.multiply(self.where(even, self.negative(factorial), factorial), self.zeta(next_order, wide))
        return self.astype(self.where(self.equal(order, 0), self.digamma(wide), higher), self.dtype_of(x))

    def softplus(self, x: Array) -> Array:
        return self.logaddexp(x, self.zeros_like(x))


COMPOSITES = tuple(name for name in ELEMENTWISE if not hasattr(getattr(Elementwise, name), "is_primitive"))
