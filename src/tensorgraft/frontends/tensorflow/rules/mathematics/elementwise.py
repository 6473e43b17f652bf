"""Operations element by element. Shapes broadcast."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.values import EitherOptional, OptionalValue, TensorList, added, lifted
from tensorgraft.frontends.tensorflow.variants import CompressedMatrix, RaggedRows
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS, PREDICATES, UNARY
from tensorgraft.hub.value import Value, ValueBackend, with_operators

# ---- one to one ------------------------------------------------------------------------------------------------------

# The hub's name -> TensorFlow's names, where they are not the same but for capitals
OTHERWISE = {
    "add": "Add AddV2",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "RealDiv",
    "negative": "Neg",
    "bitwise_invert": "Invert",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "round": "Rint",
    "isnan": "IsNan",
    "isinf": "IsInf",
    "isfinite": "IsFinite",
    "nextafter": "NextAfter",
    "bessel_i0e": "BesselI0e",
    "bessel_i1e": "BesselI1e",
}
SAME = {
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh", "exp", "expm1"),
    *("log", "log1p", "sqrt", "rsqrt", "square", "sigmoid", "erf", "erfc", "lgamma", "ceil", "floor", "sign"),
    *("logical_not", "logical_and", "logical_or", "maximum", "minimum", "atan2"),
    *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "real", "imag"),
}


def _hub(name: str) -> Callable[..., Any]:
    def unary(xp: Backend, x: Array) -> Array:
        return getattr(xp, name)(x)

    def binary(xp: Backend, x: Array, y: Array) -> Array:
        return getattr(xp, name)(x, y)

    return binary if name in BINARY or name in COMPARISONS else unary


for _name in (*UNARY, *PREDICATES, *BINARY, *COMPARISONS):
    if _name in SAME or _name in OTHERWISE:
        _camel = "".join(part.capitalize() for part in _name.split("_"))
        rule(*OTHERWISE.get(_name, _camel).split())(_hub(_name))


@rule("Abs", "ComplexAbs")
def abs_(xp: Backend, x: Array) -> Array:
    return xp.abs(x)


@rule("Conj")
def conj(xp: Backend, x: Any) -> Any:
    if isinstance(x, CompressedMatrix):
        return x.conjugate(xp)
    return xp.conj(x) if dtypes.is_complex(xp.dtype_of(x)) else x


@rule("Complex")
def complex_(xp: Backend, real: Array, imag: Array) -> Array:
    return xp.complex(real, imag)


@rule("Angle")
def angle(xp: Backend, x: Array) -> Array:
    return xp.angle(x)


@rule("ZerosLike", either=EVERY)
def zeros_like(xp: Backend, x: Any) -> Any:
    if isinstance(x, TensorList):
        if x.items is not None:
            return TensorList(x.dtype, x.shape, (None,) * len(x.items))
        return TensorList(x.dtype, x.shape, None, xp.zeros_like(x.stack), x.length)
    if isinstance(x, OptionalValue):
        return OptionalValue(None if x.values is None else tuple([zeros_like(xp, v) for v in x.values]))
    if isinstance(x, EitherOptional):
        return EitherOptional(zeros_like(xp, x.yes), zeros_like(xp, x.no))
    return x.zeros(xp) if isinstance(x, RaggedRows) else xp.zeros_like(lifted(xp, x))


@rule("OnesLike")
def ones_like(xp: Backend, x: Array) -> Array:
    return xp.ones_like(x)


@rule("Cast")
def cast(xp: Backend, x: Array, *, DstT: np.dtype) -> Array:
    source = xp.dtype_of(x)
    if dtypes.is_complex(source) and not dtypes.is_complex(DstT) and DstT.kind != "b":
        x = xp.real(x)
    return xp.astype(x, DstT)


@rule("Bitcast")
def bitcast(xp: Backend, x: Array, *, type: np.dtype) -> Array:
    shape, source = xp.shape(x), xp.dtype_of(x)
    flat = xp.bitcast(xp.reshape(x, (math.prod(shape),)), type)
    if type.itemsize == source.itemsize:
        return xp.reshape(flat, shape)
    if type.itemsize < source.itemsize:
        return xp.reshape(flat, (*shape, source.itemsize // type.itemsize))
    return xp.reshape(flat, shape[:-1])


@rule("AddN", "AccumulateNV2", either=EVERY)
def add_n(xp: Backend, *xs: Any) -> Any:
    if isinstance(xs[0], TensorList):
        return added(xp, xs)
    if isinstance(xs[0], RaggedRows):
        return functools.reduce(lambda a, b: a.added(xp, b), xs)
    total, *rest = (lifted(xp, x) for x in xs)
    for x in rest:
        total = xp.add(total, x)
    return total


@rule("BiasAdd", "BiasAddV1")
def bias_add(xp: Backend, x: Array, bias: Array, *, data_format: str = "NHWC") -> Array:
    if data_format == "NCHW":
        bias = xp.reshape(bias, (*xp.shape(bias), *[1] * (xp.ndim(x) - 2)))
    return xp.add(x, bias)


@rule("BiasAddGrad")
def bias_add_grad(xp: Backend, d: Array, *, data_format: str = "NHWC") -> Array:
    channel_axis = 1 if data_format == "NCHW" else xp.ndim(d) - 1
    return xp.sum(d, axis=tuple(a for a in range(xp.ndim(d)) if a != channel_axis))


# ---- division and powers ---------------------------------------------------------------------------------------------


def _is_integer(xp: Backend, x: Array) -> bool:
    return dtypes.is_integer(xp.dtype_of(x))


def _divisor(xp: Backend, y: Array) -> Array:
    """Return the divisor. Integer division by zero is an error in TensorFlow; if values are not read, 0 is replaced by
    1."""
    return xp.where(xp.equal(y, 0), xp.ones_like(y), y)


@rule("FloorDiv")
def floor_div(xp: Backend, x: Array, y: Array) -> Array:
    if _is_integer(xp, x):
        return xp.integer_floor_divide(x, _divisor(xp, y))
    return xp.floor(xp.divide(x, y))


@rule("FloorMod")
def floor_mod(xp: Backend, x: Array, y: Array) -> Array:
    return xp.remainder(x, _divisor(xp, y) if _is_integer(xp, x) else y)


@rule("Mod", "TruncateMod")
def truncate_mod(xp: Backend, x: Array, y: Array) -> Array:
    return xp.fmod(x, _divisor(xp, y) if _is_integer(xp, x) else y)


@rule("Round")
def round_(xp: Backend, x: Array) -> Array:
    return x if _is_integer(xp, x) else xp.round(x)


@rule("Div")
def div(xp: Any, x: Any, y: Any) -> Any:
    return truncate_div(xp, x, y) if _is_integer(xp, x) else xp.divide(x, y)


@rule("TruncateDiv")
def truncate_div(xp: Backend, x: Array, y: Array) -> Array:
    if not _is_integer(xp, x):
        return xp.trunc(xp.divide(x, y))
    y = _divisor(xp, y)
    return xp.integer_floor_divide(xp.subtract(x, xp.fmod(x, y)), y)


@rule("DivNoNan")
def div_no_nan(xp: Backend, x: Array, y: Array) -> Array:
    zero = xp.equal(y, 0)
    quotient = xp.divide(x, xp.where(zero, xp.ones_like(y), y))
    return xp.where(zero, xp.zeros_like(quotient), quotient)


@rule("MulNoNan")
def mul_no_nan(xp: Backend, x: Array, y: Array) -> Array:
    product = xp.multiply(x, y)
    return xp.where(xp.equal(y, 0), xp.zeros_like(product), product)


@rule("Pow")
def pow_(xp: Backend, x: Array, y: Array) -> Array:
    return xp.pow(x, y)


@rule("Reciprocal", "Inv")
def reciprocal(xp: Backend, x: Array) -> Array:
    return div(xp, xp.ones_like(x), x)


@rule("SquaredDifference")
def squared_difference(xp: Backend, x: Array, y: Array) -> Array:
    d = xp.subtract(x, y)
    return xp.multiply(xp.conj(d), d) if dtypes.is_complex(xp.dtype_of(d)) else xp.multiply(d, d)


@rule("LeftShift")
def left_shift(xp: Backend, x: Array, y: Array) -> Array:
    return xp.bitwise_left_shift(x, _shift(xp, x, y))


@rule("RightShift")
def right_shift(xp: Backend, x: Array, y: Array) -> Array:
    return xp.bitwise_right_shift(x, _shift(xp, x, y))


def _shift(xp: Backend, x: Array, y: Array) -> Array:
    """Return a shift, clipped to the width of the dtype."""
    most = xp.dtype_of(x).itemsize * 8 - 1
    return xp.minimum(xp.maximum(y, xp.zeros_like(y)), xp.full_like(y, most))


def _where_zero(xp: Backend, x: Array, value: Array) -> Array:
    return xp.where(xp.equal(x, 0), xp.zeros_like(value), value)


@rule("Xlogy")
def xlogy(xp: Backend, x: Array, y: Array) -> Array:
    return _where_zero(xp, x, xp.multiply(x, xp.log(y)))


@rule("Xlog1py")
def xlog1py(xp: Backend, x: Array, y: Array) -> Array:
    return _where_zero(xp, x, xp.multiply(x, xp.log1p(y)))


@rule("Xdivy")
def xdivy(xp: Backend, x: Array, y: Array) -> Array:
    return _where_zero(xp, x, xp.divide(x, y))


# ---- choices ---------------------------------------------------------------------------------------------------------


@rule("SelectV2")
def select_v2(xp: Backend, condition: Array, x: Array, y: Array) -> Array:
    return xp.where(condition, x, y)


@rule("Select")
def select(xp: Backend, condition: Array, x: Array, y: Array) -> Array:
    """Choose elements; a vector chooses rows."""
    if xp.ndim(condition) == 1 and xp.ndim(x) > 1:
        condition = xp.reshape(condition, (*xp.shape(condition), *[1] * (xp.ndim(x) - 1)))
    return xp.where(condition, x, y)


@rule("ClipByValue")
def clip_by_value(xp: Backend, x: Array, low: Array, high: Array) -> Array:
    """Clip to [low, high]; complex numbers in both parts."""
    if dtypes.is_complex(xp.dtype_of(x)):
        parts = (clip_by_value(xp, *map(part, (x, low, high))) for part in (xp.real, xp.imag))
        return xp.complex(*parts)
    return xp.maximum(xp.minimum(x, high), low)


@rule("ApproximateEqual")
@with_operators
def approximate_equal(xp: ValueBackend, x: Value, y: Value, *, tolerance: float) -> Value:
    return abs(x - y) < tolerance
