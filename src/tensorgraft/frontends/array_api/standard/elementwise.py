"""Elementwise functions of the standard: most are made from a table, some have kernels of their own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core import scalars
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import (
    LOOSE,
    accepted,
    backend_of,
    broadcast_shape,
    check_kind,
    converted,
    dtype_of_call,
    fail,
    of_python,
    operand,
    show,
)
from tensorgraft.frontends.array_api.core.promotion import kind
from tensorgraft.frontends.array_api.core.traced_numbers import Number, plain_number
from tensorgraft.hub import cold, dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations import elementwise
from tensorgraft.storage import Storage

Kernel = Callable[..., Any]  # (the backend, its arrays of one dtype) -> an array of it


def _unary(name: str, kinds: str, kernel: Kernel | None = None, identity_kinds: str = "") -> Callable[[Array], Array]:
    """Make a function of one array. `identity_kinds`: kinds of dtypes for which the result is a copy of the operand."""
    loose = kinds in LOOSE

    def fn(x: Any, /) -> Any:
        if x.__class__ is not Array and (python := scalars.function(name, x)) is not None:
            return python(x)
        if loose and x.__class__ is Array and kind(x.dtype) not in kinds:
            (x,) = accepted(kinds, x)
        xp = operand(name, x, kinds)
        with xp.scope():
            value = x._value()
            if identity_kinds and kind(x.dtype) in identity_kinds:
                y = xp.copy(value)
            else:
                y = getattr(xp, name)(value) if kernel is None else _run(xp, name, kernel, value)
            return new_array(y, xp) if xp.compound else Array(Storage(xp.ensure_owned(y) if xp.mutable else y, xp))

    fn.__name__ = fn.__qualname__ = name
    return fn


def _binary(name: str, kinds: str, kernel: Kernel | None = None) -> Callable[[Any, Any], Array]:
    """Make a function of two operands that broadcast."""
    takes_scalars = kernel is None and name not in elementwise.COMPOSITES
    if not takes_scalars and kernel is None:
        kernel = _composite(name)
    loose = kinds in LOOSE
    checks_values = name == "pow"

    def fn(x1: Any, x2: Any, /) -> Any:
        # two arrays of one dtype on one device are the common case, and take the short way
        if x1.__class__ is Array and x2.__class__ is Array and (xp := x1._cell.backend) is x2._cell.backend:
            dtype = x1.dtype
            if dtype == x2.dtype and kind(dtype) in kinds and not checks_values:
                with xp.scope():
                    return computed(xp, x1, x2, x1._value(), x2._value())
        return converting(x1, x2)

    def computed(xp: Backend, x1: Any, x2: Any, a: Any, b: Any) -> Array:
        try:
            y = getattr(xp, name)(a, b) if kernel is None else _run(xp, name, kernel, a, b)
        except Exception:
            _check_broadcast(name, x1, x2)
            raise
        return new_array(y, xp) if xp.compound else Array(Storage(xp.ensure_owned(y) if xp.mutable else y, xp))

    def converting(x1: Any, x2: Any) -> Any:
        if x1.__class__ is not Array or x2.__class__ is not Array:
            x1, x2 = of_python(x1), of_python(x2)
        if x1.__class__ is not Array and x2.__class__ is not Array:
            python = scalars.function(name, x1, x2)
            if python is not None:
                return python(x1, x2)
        if isinstance(x2, Number) and name == "pow":
            x2 = plain_number(x2)  # exponents are static: most powers are products, which are faster and more exact
        xp = backend_of(name, x1, x2)
        if loose:
            x1, x2 = accepted(kinds, x1, x2)
        if name == "multiply":
            x1, x2 = _of_mask(x1, x2), _of_mask(x2, x1)
        dtype = dtype_of_call(name, (x1, x2))
        if kind(dtype) not in kinds:
            check_kind(name, kinds, dtype, (x1, x2))
        if name == "pow" and dtype.kind == "i":
            _check_exponent(x1, x2)
        as_array = _as_operand if takes_scalars else converted
        with xp.scope():
            return computed(xp, x1, x2, as_array(xp, x1, dtype), as_array(xp, x2, dtype))

    fn.__name__ = fn.__qualname__ = name
    return fn


def _check_exponent(x: Any, y: Any) -> None:
    """Raise ValueError for a negative exponent of integers, as NumPy does, when its value is known. In a compiled
    function it is not: the power is then the truncated reciprocal."""
    message = f"pow({show((x, y))}): integers have no negative integer powers: convert one with astype"
    if not isinstance(y, Array):
        if y < 0:
            raise ValueError(message)
        return
    xp = y._cell.backend
    with xp.scope():
        value = y._value()
        if xp.is_traced(value) or not xp.size(value):
            return
        least = xp.min(value)

        def check(least: np.ndarray) -> None:
            if least < 0:
                raise ValueError(message)

        if not xp.is_traced(least):
            xp.when_known(least, check)


def _of_mask(x: Any, other: Any) -> Any:
    """Convert an array of booleans to the dtype of the array of numbers that it is multiplied with, which goes beyond
    the standard."""
    if x.__class__ is Array and other.__class__ is Array and kind(x.dtype) == "b" and kind(other.dtype) != "b":
        with x._cell.backend.scope():
            return new_array(x._cell.backend.astype(x._value(), other.dtype), x._cell.backend)
    return x


def _as_operand(xp: Backend, x: Any, dtype: np.dtype) -> Any:
    """Return an operand for the hub, which accepts Python scalars together with arrays: this saves creating an array of
    each."""
    if isinstance(x, Array) or (type(x) is int and not -(2**63) <= x < 2**63):
        return converted(xp, x, dtype)
    return x if type(x) in (int, float) else converted(xp, x, dtype)


def _composite(name: str) -> Kernel:
    return lambda xp, *values: getattr(xp, name)(*values)


def _run(xp: Backend, name: str, kernel: Kernel, *values: Any) -> Any:
    """Run a kernel of several hub operations: as one program if the backend compiles and no trace is active."""
    if xp.compiles and not any(map(xp.is_traced, values)):
        out = cold.attempt(xp, (name, kernel), kernel, values)
        return _program(xp, name, kernel)(*values)[0] if out is None else out[0]
    return kernel(xp, *values)


@functools.cache
def _program(xp: Backend, name: str, kernel: Kernel) -> Callable[..., tuple[Any, ...]]:
    def fn(*values: Any) -> tuple[Any, ...]:
        return (kernel(xp, *values),)

    method = getattr(type(xp), name, None)
    method = getattr(method, "__wrapped__", method)  # a backend with a cold tier wraps its methods
    overridden = method is not None and method is not getattr(Backend, name, None)
    return fn if overridden and name not in REFINED else xp.compile(fn)


def _check_broadcast(name: str, *operands: Any) -> None:
    """Raise an error about the shapes if they do not broadcast; called after a backend has raised."""
    arrays = [x for x in operands if isinstance(x, Array)]
    broadcast_shape(name, arrays, [x.shape for x in arrays])


# ---- kernels ---------------------------------------------------------------------------------------------------------


def _all_equal_to(value: bool) -> Kernel:
    return lambda xp, x: xp.full(xp.shape(x), value, dtypes.bool_)


def _of_inexact(name: str, constant_value: bool) -> Kernel:
    """Make a predicate of NaN or infinity, which is constant for integers."""
    constant = _all_equal_to(constant_value)
    return lambda xp, x: getattr(xp, name)(x) if dtypes.is_inexact(xp.dtype_of(x)) else constant(xp, x)


def _abs(xp: Backend, x: Any) -> Any:
    return xp.copy(x) if xp.dtype_of(x).kind == "u" else xp.abs(x)


def _round(xp: Backend, x: Any) -> Any:
    """Round to integers, halves to even; of complex numbers both parts."""
    if dtypes.is_complex(xp.dtype_of(x)):
        return xp.complex(xp.round(xp.real(x)), xp.round(xp.imag(x)))
    return xp.round(x)


def _floor_divide(xp: Backend, x: Any, y: Any) -> Any:
    """Compute floor division. For infinite operands and zeros the result is that of division: an infinity, NaN, or a
    signed zero."""
    out = xp.floor_divide(x, y)
    if dtypes.is_integer(xp.dtype_of(x)):
        return out
    exact = xp.logical_or(xp.logical_or(xp.isinf(x), xp.isinf(y)), xp.equal(x, 0))
    return xp.where(exact, xp.divide(x, y), out)


def _remainder(xp: Backend, x: Any, y: Any) -> Any:
    """Compute the remainder; zeros have the sign of the divisor."""
    out = xp.remainder(x, y)
    if dtypes.is_integer(xp.dtype_of(x)):
        return out
    return xp.where(xp.equal(out, 0), xp.copysign(xp.zeros_like(out), xp.broadcast_to(y, xp.shape(out))), out)


def _expm1(xp: Backend, x: Any) -> Any:
    """Compute exp(x) - 1. Of complex numbers the values at infinities and NaN are those of the standard, from which
    most libraries differ."""
    if not dtypes.is_complex(xp.dtype_of(x)):
        return xp.expm1(x)
    a, b = xp.real(x), xp.imag(x)
    along_real = xp.expm1(a)
    half = xp.sin(xp.multiply(b, 0.5))
    size = xp.exp(a)
    real = xp.subtract(xp.multiply(along_real, xp.cos(b)), xp.multiply(xp.square(half), 2))
    imag = xp.multiply(size, xp.sin(b))
    on_axis = xp.equal(b, 0)
    # infinite with an undefined angle: the result is -1 or infinity
    is_undefined = xp.logical_and(xp.isinf(a), xp.logical_not(xp.isfinite(b)))
    real = xp.where(xp.logical_or(on_axis, is_undefined), xp.add(along_real, 0), real)
    imag = xp.where(is_undefined, xp.where(xp.less(a, 0), xp.zeros_like(b), xp.full_like(b, math.nan)), imag)
    return xp.complex(real, xp.where(on_axis, b, imag))


def _log1p(xp: Backend, x: Any) -> Any:
    """Compute log(1 + x), accurate near 0; complex numbers as in `_expm1`."""
    if not dtypes.is_complex(xp.dtype_of(x)):
        return xp.log1p(x)
    a, b = xp.real(x), xp.imag(x)
    shifted = xp.add(a, 1)
    near = xp.multiply(xp.log1p(xp.add(xp.multiply(a, xp.add(a, 2)), xp.square(b))), 0.5)
    far = xp.log(xp.hypot(shifted, b))
    real = xp.where(xp.less(xp.maximum(xp.abs(a), xp.abs(b)), 0.5), near, far)
    infinite = xp.logical_or(xp.isinf(a), xp.isinf(b))
    return xp.complex(xp.where(infinite, xp.full_like(a, math.inf), real), xp.atan2(b, shifted))


# kernels that correct the hub's operation of their name
REFINED = {"expm1", "floor_divide", "log1p", "remainder"}

# name: (kinds of dtype, kernel or None for the hub's method of that name, kinds that are returned unchanged)
_AS_IN_THE_HUB = """
    acos acosh asin asinh atan atanh bitwise_invert cos cosh exp imag log log10 log2 logical_not negative reciprocal
    sign signbit sin sinh sqrt square tan tanh
    atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign divide equal hypot
    logaddexp logical_and logical_or logical_xor nextafter not_equal pow subtract
"""
ROWS: dict[str, tuple[Any, ...]] = {
    **{name: (elementwise.ELEMENTWISE[name],) for name in _AS_IN_THE_HUB.split()},
    "abs": ("ifc", _abs),
    **dict.fromkeys(["ceil", "floor", "trunc"], ("if", None, "i")),
    **dict.fromkeys(["conj", "real"], ("ifc", None, "if")),
    "expm1": ("fc", _expm1),
    "isfinite": ("bifc", _of_inexact("isfinite", True)),
    "isinf": ("bifc", _of_inexact("isinf", False)),
    "isnan": ("bifc", _of_inexact("isnan", False)),
    "log1p": ("fc", _log1p),
    "positive": ("ifc", None, "ifc"),
    "round": ("ifc", _round, "i"),
    **dict.fromkeys(["add", "multiply"], ("ifc",)),
    "floor_divide": ("if", _floor_divide),
    "remainder": ("if", _remainder),
    **dict.fromkeys(["maximum", "minimum", "greater", "greater_equal", "less", "less_equal"], ("if",)),
}
_TWO = {*elementwise.BINARY, *elementwise.COMPARISONS, "floor_divide", "remainder"}
BINARY = {name: row for name, row in ROWS.items() if name in _TWO}
UNARY = {name: row for name, row in ROWS.items() if name not in _TWO}

for _name, _row in UNARY.items():
    globals()[_name] = _unary(_name, *_row)
for _name, _row in BINARY.items():
    globals()[_name] = _binary(_name, *_row)


# ---- other signatures ------------------------------------------------------------------------------------------------


def rounded(x: Array, decimals: int) -> Array:
    """Return `x` to so many decimals, halves to even, as NumPy computes it; not of the standard.

    Raises TypeError for integers to be rounded to tens."""
    out: Any = globals()
    if not decimals or (kind(x.dtype) == "i" and decimals > 0):
        return out["round"](x)
    if kind(x.dtype) == "i":
        fail("round", (x,), f"floating-point numbers to be rounded to {decimals} decimals", TypeError)
    up, down = ("multiply", "divide") if decimals > 0 else ("divide", "multiply")
    scale = 10.0 ** abs(decimals)
    return out[down](out["round"](out[up](x, scale)), scale)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """Return `x` limited to bounds of its kind, which broadcast with it; the result has the dtype of `x`."""
    min, max = of_python(min), of_python(max)
    bounds = [v for v in (min, max) if v is not None]
    if not any(isinstance(v, Array) for v in (x, *bounds)):
        python = scalars.function("clip", x, *bounds)
        if python is not None:
            return python(x, min, max)
    operand("clip", x, "if")
    xp = backend_of("clip", x, *bounds)
    for bound in bounds:
        if isinstance(bound, Array):
            if kind(bound.dtype) != kind(x.dtype):
                fail("clip", (x, bound), "bounds of the kind of the array's dtype", TypeError)
        else:
            dtype_of_call("clip", (x, bound))
    arrays = [v for v in (x, *bounds) if isinstance(v, Array)]
    shape = broadcast_shape("clip", arrays, [v.shape for v in arrays])
    with xp.scope():
        out = x._value() if shape == x.shape else xp.broadcast_to(x._value(), shape)
        if min is not None:
            out = xp.maximum(out, converted(xp, min, x.dtype))
        if max is not None:
            out = xp.minimum(out, converted(xp, max, x.dtype))
        return new_array(out, xp, x)


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """Return `x1` where `condition` (bool) holds, else `x2`; all three broadcast."""
    x1, x2 = of_python(x1), of_python(x2)
    xp = backend_of("where", condition, x1, x2)
    operands = (condition, x1, x2)
    if not isinstance(condition, Array) or condition.dtype != dtypes.bool_:
        fail("where", operands, "a condition that is an array of booleans", TypeError)
    if not isinstance(x1, Array) and not isinstance(x2, Array):
        fail("where", operands, "an array beside the condition", TypeError)
    dtype = dtype_of_call("where", (x1, x2))
    arrays = [v for v in operands if isinstance(v, Array)]
    broadcast_shape("where", arrays, [v.shape for v in arrays])
    with xp.scope():
        return new_array(xp.where(condition._value(), converted(xp, x1, dtype), converted(xp, x2, dtype)), xp)


__all__ = [*UNARY, *BINARY, "clip", "where"]
