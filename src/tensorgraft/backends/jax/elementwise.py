"""Elementwise operations, as tables of functions of `lax`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax import elementary, inverse_trigonometric, special
from tensorgraft.backends.jax.operation import broadcast, operation, with_one_dtype
from tensorgraft.backends.jax.quotient import quotient
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS, ELEMENTWISE, PREDICATES

Fn = Callable[..., Array]


def _in_float32(fn: Fn) -> Fn:
    """Wrap `fn` so that 16-bit floats are computed in float32: expansions of `lax` are not accurate in less."""

    @functools.wraps(fn)
    def wide(*xs: Array) -> Array:
        dtype = xs[0].dtype
        if not dtypes.is_floating(dtype) or dtype.itemsize > 2:
            return fn(*xs)
        return lax.convert_element_type(fn(*(lax.convert_element_type(x, np.float32) for x in xs)), dtype)

    return wide


def _for_unsigned(fn: Fn, unsigned: Fn) -> Fn:
    return lambda x: unsigned(x) if x.dtype.kind == "u" else fn(x)


def _for_bool(fn: Fn, logical: Fn) -> Fn:
    return lambda x, y: logical(x, y) if x.dtype == np.bool_ else fn(x, y)


def _trunc(x: Array) -> Array:
    return lax.select(x < 0, lax.ceil(x), lax.floor(x))


def _pow(x: Array, y: Array) -> Array:
    if not dtypes.is_integer(x.dtype):
        return lax.pow(x, y)
    if x.dtype.kind == "u":
        return jnp.power(x, y)
    # a negative exponent, which is none to XLA, gives the truncated reciprocal, as in C
    inverse = jnp.where(jnp.abs(x) == 1, jnp.where(y & 1 == 1, x, jnp.ones_like(x)), jnp.zeros_like(x))
    return jnp.where(y < 0, inverse, jnp.power(x, jnp.maximum(y, 0)))


def _shift_right(x: Array, y: Array) -> Array:
    return (lax.shift_right_logical if x.dtype.kind == "u" else lax.shift_right_arithmetic)(x, y)


def _identity(x: Array) -> Array:
    return x


def _by_sign_of_zero(fn: Fn, negate_imag: bool = False) -> Fn:
    """Numbers on a branch cut lie on the side that the sign of their imaginary part says, also where that is -0, which
    XLA takes for 0. turned: the result's imaginary part has the other sign (C99, annex G)."""

    def function(x: Array) -> Array:
        y = fn(x)
        if not dtypes.is_complex(x.dtype):
            return y
        side = lax.imag(x)
        return lax.complex(lax.real(y), jnp.copysign(lax.imag(y), lax.neg(side) if negate_imag else side))

    return function


# Operations that are not simply the function of `lax` with their name, in float32 for narrower floats. None: the hub's
# composite is used.
_OTHERS: dict[str, Fn | None] = {
    "abs": _for_unsigned(lax.abs, _identity),
    "negative": lax.neg,
    "trunc": _trunc,
    "round": functools.partial(lax.round, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN),
    "bitwise_invert": lax.bitwise_not,
    "isnan": jnp.isnan,
    "isinf": jnp.isinf,
    "isfinite": jnp.isfinite,
    "signbit": jnp.signbit,
    "logical_not": lax.bitwise_not,
    "log2": elementary.exact_log2,
    "log10": jnp.log10,
    "sqrt": _by_sign_of_zero(lax.sqrt),
    "acosh": _by_sign_of_zero(lax.acosh),
    "digamma": special.digamma,
    "add": _for_bool(lax.add, lax.bitwise_or),
    "multiply": _for_bool(lax.mul, lax.bitwise_and),
    "subtract": lax.sub,
    "fmod": lax.rem,
    "pow": _pow,
    "maximum": lax.max,
    "minimum": lax.min,
    "bitwise_left_shift": lax.shift_left,
    "bitwise_right_shift": _shift_right,
    "igamma": special.igamma,
    "igammac": special.igammac,
    "zeta": special.zeta,
    "equal": lax.eq,
    "not_equal": lax.ne,
    "less": lax.lt,
    "less_equal": lax.le,
    "greater": lax.gt,
    "greater_equal": lax.ge,
    "logical_and": lax.bitwise_and,
    "logical_or": lax.bitwise_or,
    "logical_xor": lax.bitwise_xor,
    **dict.fromkeys(("square", "reciprocal", "divide")),  # a product; quotients, see `divide`
    **dict.fromkeys(("cbrt", "exp2")),  # XLA's are off by more
}
# `lax` has these in 16-bit floats themselves
_EXACT = {"abs", "negative", "ceil", "floor", "trunc", "round", "add", "multiply", "subtract", "fmod"}
_EXACT |= {"maximum", "minimum", "nextafter", "real", "imag", "conj", *PREDICATES, *COMPARISONS}


def _function(name: str) -> Fn | None:
    fn = _OTHERS[name] if name in _OTHERS else getattr(lax, name, None)
    return fn if fn is None or name in _EXACT or not set("fc") & set(ELEMENTWISE[name]) else _in_float32(fn)


def _binary(fn: Fn) -> Fn:
    def method(x: Any, y: Any) -> Array:
        x, y = with_one_dtype(x, y)
        # lax accepts scalars without broadcasting
        return fn(x, y) if not x.shape or not y.shape else fn(*broadcast(x, y))

    return method


def _where(condition: Array, x: Array, y: Array) -> Array:
    return lax.select(*broadcast(condition, *with_one_dtype(x, y)))


def _truncate(x: Array, dtype: np.dtype) -> Array:
    """Convert floats to integers as x86 does: numbers out of range become the least integer; narrow integers wrap."""
    if dtype == dtypes.uint64:
        low = lax.convert_element_type(_truncate(x, dtypes.int64), dtype)
        return lax.select(x < 2.0**63, low, lax.convert_element_type(x, dtype))
    if dtype == dtypes.uint32:
        return lax.convert_element_type(_truncate(x, dtypes.int64), dtype)
    if dtype.itemsize < 4:
        return lax.convert_element_type(_truncate(x, dtypes.int32), dtype)
    bound = 2.0 ** (8 * dtype.itemsize - 1)
    if x.dtype == dtypes.float16:
        return lax.convert_element_type(_truncate(lax.convert_element_type(x, np.float32), dtype), dtype)
    least = lax.full_like(x, dtypes.iinfo(dtype).min, dtype)
    return lax.select(lax.abs(x) < bound, lax.convert_element_type(x, dtype), least)


def _astype(x: Array, dtype: np.dtype) -> Array:
    source = x.dtype
    if dtypes.is_complex(source) and dtypes.is_bool(dtype):
        return x != 0  # XLA's conversion looks at the real part only
    if dtypes.is_complex(source) and not dtypes.is_complex(dtype):
        return _astype(lax.real(x), dtype)
    if dtypes.is_floating(source) and dtypes.is_integer(dtype):
        return _truncate(x if source.itemsize > 1 else lax.convert_element_type(x, np.float32), dtype)
    if dtypes.is_bool(source) and not dtypes.is_integer(dtype):
        x = lax.convert_element_type(x, np.int8)  # XLA makes a product with a converted bool a selection: NaN * 0 is 0
    return lax.convert_element_type(x, dtype)


def _bitcast(x: Array, dtype: np.dtype) -> Array:
    if x.dtype == np.bool_:
        return _bitcast(lax.convert_element_type(x, np.uint8), dtype)
    if dtypes.is_complex(x.dtype):
        return _bitcast(jnp.stack([lax.real(x), lax.imag(x)], axis=1).reshape(-1), dtype)
    if dtype == np.bool_:
        return lax.ne(_bitcast(x, dtypes.uint8), np.uint8(0))
    if dtypes.is_complex(dtype):
        parts = _bitcast(x, dtypes.real_dtype(dtype)).reshape(-1, 2)
        return lax.complex(parts[:, 0], parts[:, 1])
    if dtype.itemsize > x.dtype.itemsize:
        x = x.reshape(-1, dtype.itemsize // x.dtype.itemsize)
    return lax.bitcast_convert_type(x, dtype).reshape(-1)


def _unary(fn: Fn) -> Fn:
    return lambda x: fn(x)  # jit cannot wrap every function of lax directly


def _inverse(fn: Fn, negate_imag: bool = False) -> Fn:
    return _unary(_in_float32(_by_sign_of_zero(fn, negate_imag)))


def _by_platform(on_cpu: Fn, on_others: Fn) -> Fn:
    for_cpus, for_others = operation(on_cpu), operation(on_others)

    def method(self: Any, /, *xs: Array) -> Array:
        return (for_cpus if self.for_cpu else for_others)(self, *xs)

    return method


_convert = operation(_astype, ("dtype",))
_recast = operation(_bitcast, ("dtype",))


class JaxElementwise:
    for _name in ELEMENTWISE:
        if (_fn := _function(_name)) is not None:
            locals()[_name] = operation((_binary if _name in BINARY or _name in COMPARISONS else _unary)(_fn))
    del _name, _fn
    integer_floor_divide = operation(_binary(jnp.floor_divide))

    device: Any
    for_cpu: bool

    # elsewhere the reciprocal is what other frameworks take too, and a barrier would keep kernels apart
    divide = _by_platform(_binary(quotient), _binary(lax.div))
    # XLA's own call a function for each element
    asin = _by_platform(_inverse(inverse_trigonometric.asin), _inverse(lax.asin))
    acos = _by_platform(_inverse(inverse_trigonometric.acos, True), _inverse(lax.acos, True))
    atan = _by_platform(_unary(_in_float32(inverse_trigonometric.atan)), _unary(_in_float32(lax.atan)))
    atan2 = _by_platform(_binary(_in_float32(inverse_trigonometric.atan2)), _binary(_in_float32(lax.atan2)))
    sin = _by_platform(_unary(_in_float32(elementary.sin)), _unary(_in_float32(lax.sin)))
    cos = _by_platform(_unary(_in_float32(elementary.cos)), _unary(_in_float32(lax.cos)))
    tan = _by_platform(_unary(_in_float32(elementary.tan)), _unary(_in_float32(lax.tan)))
    log2 = _by_platform(_unary(_in_float32(elementary.log2)), _unary(_in_float32(elementary.exact_log2)))
    rsqrt = _by_platform(_unary(_in_float32(elementary.rsqrt)), _unary(_in_float32(lax.rsqrt)))
    fmod = _by_platform(_binary(elementary.rem), _binary(lax.rem))
    where = operation(_where)
    complex = operation(lambda real, imag: lax.complex(*broadcast(real, imag)))

    def exp2(self, x: Array) -> Array:
        if self.for_cpu and dtypes.accumulator(x.dtype) == np.float32:
            return self._exp2(x)
        return super().exp2(x)  # type: ignore[misc]

    _exp2 = operation(_unary(_in_float32(elementary.exp2)))

    def astype(self, x: Array, dtype: np.dtype, /) -> Array:
        if x.dtype == dtype and not getattr(x, "weak_type", False):
            return x
        return _convert(self, x, dtype=np.dtype(dtype))

    def bitcast(self, x: Array, dtype: np.dtype, /) -> Array:
        return _recast(self, x, dtype=np.dtype(dtype))
