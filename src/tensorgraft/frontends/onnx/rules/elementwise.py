"""Rules for elementwise operators, logic, casts and activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.element_types import CARRIERS, STRING, Carried, dtype_of
from tensorgraft.frontends.onnx.rule import rule, rules_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import with_operators

PLAIN = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
    "BitwiseNot": "bitwise_invert", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Exp": "exp",
    "Floor": "floor", "IsNaN": "isnan", "Log": "log", "Neg": "negative", "Not": "logical_not",
    "Reciprocal": "reciprocal", "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin", "Sinh": "sinh",
    "Softplus": "softplus", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh", "Relu": "relu", "Mish": "mish",
    "HardSwish": "hard_silu",
    "MatMul": "matmul", "Where": "where",
}  # fmt: skip
BINARY = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
    "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater", "GreaterOrEqual": "greater_equal",
}  # fmt: skip
VARIADIC = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


def _binary(name: str) -> Any:
    """Return the rule of an operator of two inputs, whose shapes broadcast (of `axis` of old versions: from there)."""

    def fn(xp: Any, a: Any, b: Any, *, axis: int | None = None, broadcast: int = 1) -> Any:
        return getattr(xp, name)(a, aligned(xp, a, b, axis))

    return fn


def aligned(xp: Any, a: Any, b: Any, axis: int | None) -> Any:
    """Return `b` with axes of one element at its end, so that its first axis is `axis` of `a` (before opset 7)."""
    if axis is None:
        return b
    n, m = len(a.shape), len(b.shape)
    return xp.reshape(b, (*b.shape, *(1,) * (n - axis % n - m)))


def _variadic(name: str) -> Any:
    def fn(xp: Any, *data: Any) -> Any:
        total, *rest = data
        for x in rest:
            total = getattr(xp, name)(total, x)
        return total

    return fn


def _plain(name: str) -> Any:
    return lambda xp, *inputs: getattr(xp, name)(*inputs)


for _op, _name in PLAIN.items():
    rule(_op)(_plain(_name))
for _op, _name in BINARY.items():
    rule(_op)(_binary(_name))
for _op, _name in VARIADIC.items():
    rule(_op)(_variadic(_name))


@rule("Equal")
def equal(xp: Any, a: Any, b: Any, *, axis: int | None = None, broadcast: int = 1) -> Any:
    if isinstance(a, np.ndarray) and a.dtype == object:
        return np.asarray(a == b, bool)
    return xp.equal(a, aligned(xp, a, b, axis))


@rule("Div")
def divide(xp: Any, a: Any, b: Any, *, axis: int | None = None, broadcast: int = 1) -> Any:
    b = aligned(xp, a, b, axis)
    if not dtypes.is_integer(xp.dtype_of(a)):
        return xp.divide(a, b)
    quotient = xp.integer_floor_divide(a, b)
    if xp.dtype_of(a) in dtypes.UNSIGNED:
        return quotient
    exact = xp.equal(xp.multiply(quotient, b), a)  # rounded towards zero
    negative = xp.less(quotient, 0)
    return xp.where(xp.logical_and(negative, xp.logical_not(exact)), xp.add(quotient, 1), quotient)


@rule("Mod")
def modulo(xp: Any, a: Any, b: Any, *, fmod: int) -> Any:
    if fmod or xp.dtype_of(a) in dtypes.UNSIGNED:
        return xp.fmod(a, b)
    return xp.remainder(a, b)


@rule("Pow")
def power(xp: Any, x: Any, y: Any, *, axis: int | None = None, broadcast: int = 1) -> Any:
    dtype, other = xp.dtype_of(x), xp.dtype_of(y)
    y = aligned(xp, x, y, axis)
    if dtype == other:
        return xp.pow(x, y)
    if dtypes.is_integer(dtype) and dtypes.is_integer(other):
        return xp.pow(x, xp.astype(y, dtype))
    wide = np.result_type(*(d if d.kind != "V" else np.float32 for d in (dtype, other)))
    return xp.astype(xp.pow(xp.astype(x, wide), xp.astype(y, wide)), dtype)


rules_of({
    "BitShift": lambda xp, x, y, *, direction: (
        xp.bitwise_left_shift(x, y) if direction == "LEFT" else xp.bitwise_right_shift(x, y)
    ),
    "Mean": with_operators(lambda xp, *data: sum(data[1:], data[0]) / len(data)),
})  # fmt: skip


@rule("IsInf")
def isinf(xp: Any, x: Any, *, detect_negative: int, detect_positive: int) -> Any:
    counted = xp.isinf(x) if detect_negative else xp.equal(x, math.inf)
    return counted if detect_positive else xp.logical_and(counted, xp.less(x, 0))


@rule("Clip")
def clip(xp: Any, x: Any, min_: Any = None, max_: Any = None) -> Any:
    bounds = [None if b is None else xp.astype(xp.reshape(b, ()), xp.dtype_of(x)) for b in (min_, max_)]
    return xp.clip(x, *bounds)


# ---- casts -----------------------------------------------------------------------------------------------------------


@rule("Cast", "CastLike")
def cast(xp: Any, x: Any, like: Any = None, *, to: int = 0, saturate: int = 1, round_mode: str = "up") -> Any:
    dtype = dtype_of(to) if to else like.dtype if isinstance(like, Carried | np.ndarray) else xp.dtype_of(like)
    return converted(xp, x, dtype, bool(saturate), round_mode)


def converted(xp: Any, x: Any, dtype: np.dtype, saturate: bool = True, round_mode: str = "up") -> Any:
    """Return `x` as another element type, by the rules of `Cast`."""
    if isinstance(x, Carried):
        x = x.array
    source = x.dtype if isinstance(x, np.ndarray) else xp.dtype_of(x)
    if dtype == STRING:
        return np.array([_written(v) for v in np.ravel(x)], object).reshape(np.shape(x))
    if source == STRING:
        values = [_parsed(v) for v in np.ravel(x)]
        wide = np.array(values, np.float64 if dtypes.is_inexact(dtype) or dtype in CARRIERS else object)
        return converted(xp, wide.astype(np.float64 if dtype not in dtypes.INTEGER else dtype).reshape(x.shape), dtype)
    if dtype in CARRIERS:
        return _carried(xp, x, dtype, saturate, round_mode)
    if dtype in dtypes.FLOAT8 and dtypes.is_floating(source):
        return _to_float8(xp, x, dtype, saturate)
    if dtypes.is_floating(source) and dtype in dtypes.INTEGER:
        return xp.astype(xp.astype(x, dtypes.int64) if dtype.itemsize < 4 else x, dtype)
    return xp.astype(x, dtype)


def _written(x: Any) -> str:
    if isinstance(x, np.bool_ | bool):
        return str(int(x))
    return str(x)


def _parsed(x: Any) -> Any:
    text = str(x).strip()
    return float(text) if any(c in text.lower() for c in ".ena") else int(text)


def _to_float8(xp: Any, x: Any, dtype: np.dtype, saturate: bool) -> Any:
    """Round to float8; values beyond the greatest become it or, without saturation, infinite (NaN if it has no
    infinity)."""
    finite = float(dtypes.finfo(dtype).max)
    wide = xp.astype(x, dtypes.float32)
    narrow = xp.astype(xp.clip(wide, -finite, finite), dtype)
    if not saturate:
        beyond = math.inf if dtype == dtypes.float8_e5m2 else math.nan
        full = xp.where(xp.less(wide, 0), xp.full((), -beyond, dtype), xp.full((), beyond, dtype))
        halfway = finite * (1 + 2.0 ** -(2 + dtypes.finfo(dtype).nmant))  # what is less is rounded to `finite`
        narrow = xp.where(xp.greater(xp.abs(wide), halfway), full, narrow)
    return xp.where(xp.isnan(wide), xp.full((), math.nan, dtype), narrow)


def _carried(xp: Any, x: Any, dtype: np.dtype, saturate: bool, round_mode: str) -> Carried:
    carrier = CARRIERS[dtype]
    if dtype.name.startswith(("int", "uint")):
        bits = int(dtype.name.lstrip("uint"))
        whole = xp.astype(x, dtypes.int32)
        whole = xp.bitwise_and(whole, (1 << bits) - 1)
        if dtype.name.startswith("int"):
            whole = xp.subtract(xp.bitwise_xor(whole, 1 << bits - 1), 1 << bits - 1)
        return Carried(xp.astype(whole, carrier), dtype)
    wide = xp.astype(x, dtypes.float32)
    return Carried(
        float4(xp, wide) if dtype.name.startswith("float4") else _power_of_two(xp, wide, round_mode, saturate), dtype
    )


def float4(xp: Any, x: Any) -> Any:
    """Round to the values of float4_e2m1fn (0, 0.5, 1, 1.5, 2, 3, 4, 6), halves to even, beyond 6 to 6, NaN to -0."""
    size = xp.minimum(xp.abs(x), 6.0)
    half, one, two = (xp.full((), v, dtypes.float32) for v in (0.5, 1.0, 2.0))
    step = xp.where(xp.less(size, 2.0), half, xp.where(xp.less(size, 4.0), one, two))
    rounded = xp.multiply(xp.round(xp.divide(size, step)), step)
    return xp.where(xp.isnan(x), xp.full((), -0.0, dtypes.float32), xp.copysign(rounded, x))


def _power_of_two(xp: Any, x: Any, round_mode: str, saturate: bool) -> Any:
    """Round to the powers of two of float8_e8m0fnu, from 2^-127 to 2^127."""
    bits = xp.reshape(xp.bitcast(xp.reshape(x, (xp.size(x),)), dtypes.int32), xp.shape(x))
    exponent = xp.bitwise_and(xp.bitwise_right_shift(bits, xp.full((), 23, dtypes.int32)), 255)
    mantissa = xp.bitwise_and(bits, (1 << 23) - 1)
    if round_mode == "up":
        more = xp.greater(mantissa, 0)
    elif round_mode == "nearest":
        more = xp.greater_equal(mantissa, 1 << 22)
    else:
        more = xp.zeros(xp.shape(x), dtypes.bool_)
    if saturate:
        more = xp.logical_and(more, xp.less(exponent, 254))
    exponent = xp.add(exponent, xp.astype(more, dtypes.int32))
    value = xp.pow(xp.full((), 2.0, dtypes.float64), xp.astype(xp.subtract(exponent, 127), dtypes.float64))
    value = xp.astype(value, dtypes.float32)
    return xp.where(xp.logical_or(xp.isnan(x), xp.equal(exponent, 255)), xp.full((), math.nan, dtypes.float32), value)


@rule("BitCast")
def bitcast(xp: Any, x: Any, *, to: int) -> Any:
    dtype = dtype_of(to)
    if isinstance(x, Carried) or dtype in CARRIERS:
        source = x.dtype if isinstance(x, Carried) else xp.dtype_of(x)
        values = np.asarray(xp.to_numpy(x.array if isinstance(x, Carried) else x)).astype(source)
        bits = values.view(np.uint8) & (0xF if source.name.endswith(("int4", "e2m1fn")) else 0xFF)
        viewed = bits.view(dtype)
        return Carried(viewed.astype(CARRIERS[dtype]), dtype) if dtype in CARRIERS else viewed
    flat = xp.bitcast(xp.reshape(x, (xp.size(x),)), dtype)
    return xp.reshape(flat, xp.shape(x))


# ---- activations -----------------------------------------------------------------------------------------------------


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "LeakyRelu": lambda xp, x, *, alpha=0.01: xp.leaky_relu(x, alpha),
    "Elu": lambda xp, x, *, alpha=1.0: xp.elu(x, alpha),
    "Gelu": lambda xp, x, *, approximate="none": xp.gelu(x, approximate == "tanh"),
    "Swish": with_operators(lambda xp, x, *, alpha=1.0: x * xp.sigmoid(x * alpha if alpha != 1 else x)),
    "HardSigmoid": with_operators(lambda xp, x, *, alpha=0.2, beta=0.5: xp.clip(x * alpha + beta, 0.0, 1.0)),
}
rules_of(ACTIVATIONS)


@rule("PRelu")
def prelu(xp: Any, x: Any, slope: Any, *, opset: int) -> Any:
    if len(slope.shape) == 1 and opset < 7 and slope.shape[0] > 1:
        slope = xp.reshape(slope, (slope.shape[0], *(1,) * (len(x.shape) - 2)))
    return xp.where(xp.less(x, 0), xp.multiply(x, slope), x)
