"""Elementwise operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.exporting.onnx.rule import GraphBuilder, rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Var

_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor", "isnan": "IsNaN",
    "isinf": "IsInf", "log": "Log", "negative": "Neg", "round": "Round", "sign": "Sign", "sin": "Sin", "sinh": "Sinh",
    "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh", "logical_not": "Not", "sigmoid": "Sigmoid", "relu": "Relu",
    "reciprocal": "Reciprocal", "softplus": "Softplus", "stop_gradient": "Identity", "copy": "Identity",
}  # fmt: skip
_BINARY = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "pow": "Pow", "maximum": "Max",
    "minimum": "Min", "equal": "Equal", "greater": "Greater", "greater_equal": "GreaterOrEqual", "less": "Less",
    "less_equal": "LessOrEqual", "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor",
}  # fmt: skip
_BOOLEAN = {"add": "Or", "multiply": "And", "maximum": "Or", "minimum": "And"}
_BITWISE = {
    "bitwise_and": ("BitwiseAnd", "And"),
    "bitwise_or": ("BitwiseOr", "Or"),
    "bitwise_xor": ("BitwiseXor", "Xor"),
}
_ORDERED = {"greater", "greater_equal", "less", "less_equal", "maximum", "minimum", "divide", "pow"}
_COMPARISONS = {"equal", "greater", "greater_equal", "less", "less_equal"}


def computed_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which runtimes compute: they have few kernels for narrow and for unsigned integers."""
    if dtype.kind == "u" and dtype.itemsize >= 4:
        return dtypes.int64
    if dtype.kind in "iu" and dtype.itemsize < 4:
        return dtypes.int32
    return dtype


def ordered_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype in which runtimes compare. Raises NotImplementedError for uint64, which they do not."""
    if dtype == np.uint64:
        raise NotImplementedError("an operation on the order of uint64")
    return np.dtype(dtypes.int32) if dtype.kind == "b" else computed_dtype(dtype)


def dtype_of(*operands: Any) -> np.dtype:
    """Return the dtype of operands, of which some are numbers."""
    found = next((x.dtype for x in operands if isinstance(x, Var)), None)
    if found is not None:
        return np.dtype(found)
    return np.result_type(*(np.asarray(x) for x in operands))


def operand(g: GraphBuilder, x: Any, dtype: np.dtype, wide: np.dtype) -> str:
    """Return an operand in the dtype that is computed in."""
    name = g(x, dtype)
    return name if wide == dtype else g.cast(name, wide)


def _unary(kind: str) -> Any:
    def write(g: GraphBuilder, x: Var) -> str:
        dtype = np.dtype(x.dtype)
        if dtype.kind == "u" and kind in ("Abs", "Sign"):
            return g.cast(g.cast(x, np.bool_), dtype) if kind == "Sign" else str(g.op("Identity", x))
        wide = computed_dtype(dtype)
        if kind in ("Identity", "Not") or wide == dtype:
            if dtype.kind in "iub" and kind in ("Ceil", "Floor", "Round"):
                return g.op("Identity", x)
            return str(g.op(kind, x))
        y = g.op(kind, g.cast(x, wide))
        return g.cast(y, dtype) if g.results.dtype == dtype else y

    return write


def _binary(method: str, kind: str) -> Any:
    def write(g: GraphBuilder, x: Any, y: Any) -> str:
        dtype = dtype_of(x, y)
        if dtype.kind == "b" and method in _BOOLEAN:
            return str(g.op(_BOOLEAN[method], g(x, dtype), g(y, dtype)))
        wide = ordered_dtype(dtype) if method in _ORDERED else computed_dtype(dtype)
        z = g.op(kind, operand(g, x, dtype, wide), operand(g, y, dtype, wide))
        return str(z) if wide == dtype or method in _COMPARISONS else g.cast(z, dtype)

    return write


for _method, _kind in _UNARY.items():
    rule(_method)(_unary(_kind))
for _method, _kind in _BINARY.items():
    rule(_method)(_binary(_method, _kind))


@rule("not_equal")
def not_equal(g: GraphBuilder, x: Any, y: Any) -> str:
    return str(g.op("Not", _binary("equal", "Equal")(g, x, y)))


def _bitwise(method: str) -> Any:
    integers, booleans = _BITWISE[method]

    def write(g: GraphBuilder, x: Any, y: Any) -> str:
        dtype = dtype_of(x, y)
        return str(g.op(booleans if dtype.kind == "b" else integers, g(x, dtype), g(y, dtype)))

    return write


for _method in _BITWISE:
    rule(_method)(_bitwise(_method))


@rule("bitwise_invert")
def bitwise_invert(g: GraphBuilder, x: Var) -> str:
    return str(g.op("Not" if x.dtype == np.bool_ else "BitwiseNot", x))


@rule("bitwise_left_shift", "bitwise_right_shift")
def shift(g: GraphBuilder, x: Any, y: Any) -> str:
    dtype = dtype_of(x, y)
    if dtype.kind != "u":
        raise NotImplementedError(f"shifts of {dtype}")
    wide = dtypes.uint32 if dtype.itemsize < 4 else dtype
    z = g.op("BitShift", operand(g, x, dtype, wide), operand(g, y, dtype, wide),
             direction="LEFT" if g.method == "bitwise_left_shift" else "RIGHT")  # fmt: skip
    return str(z) if wide == dtype else g.cast(z, dtype)


@rule("where")
def where(g: GraphBuilder, condition: Any, x: Any, y: Any) -> str:
    dtype = dtype_of(x, y)
    return str(g.op("Where", condition, g(x, dtype), g(y, dtype)))


@rule("astype")
def astype(g: GraphBuilder, x: Var, dtype: np.dtype) -> str:
    if dtypes.is_complex(np.dtype(dtype)):
        raise NotImplementedError(f"an array of {dtype}")
    if x.dtype.kind == "f" and np.dtype(dtype).kind in "iu" and np.dtype(dtype).itemsize < 4:
        return g.cast(g.cast(x, dtypes.int64), dtype)  # wraps
    return g.cast(x, dtype)


@rule("rsqrt")
def rsqrt(g: GraphBuilder, x: Var) -> str:
    return str(g.op("Reciprocal", g.op("Sqrt", x)))


@rule("erfc")
def erfc(g: GraphBuilder, x: Var) -> str:
    return str(g.op("Sub", g(1.0, x.dtype), g.op("Erf", x)))


@rule("log2", "log10")
def other_logarithm(g: GraphBuilder, x: Var) -> str:
    return str(g.op("Div", g.op("Log", x), g(math.log(2 if g.method == "log2" else 10), x.dtype)))


@rule("log1p")
def log1p(g: GraphBuilder, x: Var) -> str:
    """x log(u) / (u - 1) of u = 1 + x, which rounds as x does (Kahan)."""
    one = g(1.0, x.dtype)
    u = g.op("Add", x, one)
    exact = g.op("Div", g.op("Mul", x, g.op("Log", u)), g.op("Sub", u, one))
    large = g.op("IsInf", u)
    return str(g.op("Where", g.op("Or", g.op("Equal", u, one), large), x, exact))


@rule("expm1")
def expm1(g: GraphBuilder, x: Var) -> str:
    """2 t / (1 - t) of t = tanh(x / 2), near zero."""
    one, two = g(1.0, x.dtype), g(2.0, x.dtype)
    t = g.op("Tanh", g.op("Div", x, two))
    near = g.op("Div", g.op("Mul", two, t), g.op("Sub", one, t))
    is_near = g.op("Less", g.op("Abs", x), g(0.5, x.dtype))
    return str(g.op("Where", is_near, near, g.op("Sub", g.op("Exp", x), one)))


@rule("trunc")
def trunc(g: GraphBuilder, x: Var) -> str:
    if x.dtype.kind in "iub":
        return str(g.op("Identity", x))
    return str(g.op("Mul", g.op("Sign", x), g.op("Floor", g.op("Abs", x))))


@rule("isfinite")
def isfinite(g: GraphBuilder, x: Var) -> str:
    if x.dtype.kind in "iub":
        return str(g.op("Equal", x, x))
    return str(g.op("Not", g.op("Or", g.op("IsInf", x), g.op("IsNaN", x))))


@rule("signbit")
def signbit(g: GraphBuilder, x: Var) -> str:
    if x.dtype.kind in "iu":
        return str(g.op("Less", operand(g, x, x.dtype, ordered_dtype(x.dtype)), g(0, ordered_dtype(x.dtype))))
    return _signbit(g, g(x), np.dtype(x.dtype))


def _signbit(g: GraphBuilder, x: str, dtype: np.dtype) -> str:
    zero = g(0, dtype)
    negative_zero = g.op("And", g.op("Equal", x, zero), g.op("Less", g.op("Reciprocal", x), zero))
    return str(g.op("Or", g.op("Less", x, zero), negative_zero))


@rule("fmod")
def fmod(g: GraphBuilder, x: Any, y: Any) -> str:
    dtype = dtype_of(x, y)
    return str(g.op("Mod", g(x, dtype), g(y, dtype), fmod=1))


@rule("integer_floor_divide")
def integer_floor_divide(g: GraphBuilder, x: Any, y: Any) -> str:
    dtype = dtype_of(x, y)
    wide = ordered_dtype(dtype)
    a, b = operand(g, x, dtype, wide), operand(g, y, dtype, wide)
    q = g.op("Div", a, b)  # rounds towards zero
    if dtype.kind != "u":
        zero = g(0, wide)
        rest = g.op("Sub", a, g.op("Mul", q, b))
        lower = g.op("And", g.op("Not", g.op("Equal", rest, zero)), g.op("Xor", g.op("Less", rest, zero),
                                                                          g.op("Less", b, zero)))  # fmt: skip
        q = g.op("Sub", q, g.cast(lower, wide))
    return str(q) if wide == dtype else g.cast(q, dtype)


@rule("atan2")
def atan2(g: GraphBuilder, x: Any, y: Any) -> str:
    """Return the angle of the point (y, x)."""
    dtype = dtype_of(x, y)
    a, b = g(x, dtype), g(y, dtype)
    zero = g(0.0, dtype)
    both = g.op("And", g.op("Equal", a, zero), g.op("Equal", b, zero))
    angle = g.op("Where", both, a, g.op("Atan", g.op("Div", a, b)))
    turn = g.op("Where", _signbit(g, a, dtype), g(-math.pi, dtype), g(math.pi, dtype))
    return str(g.op("Where", _signbit(g, b, dtype), g.op("Add", angle, turn), angle))


@rule("gelu", since=20)
def gelu(g: GraphBuilder, x: Var, approximate: bool = False) -> str:
    return str(g.op("Gelu", x, approximate="tanh" if approximate else "none"))


@rule("leaky_relu")
def leaky_relu(g: GraphBuilder, x: Var, slope: float = 0.01) -> str:
    return str(g.op("LeakyRelu", x, alpha=float(slope)))


@rule("elu")
def elu(g: GraphBuilder, x: Var, alpha: float = 1.0) -> str:
    return str(g.op("Elu", x, alpha=float(alpha)))


@rule("selu")
def selu(g: GraphBuilder, x: Var) -> str:
    return str(g.op("Selu", x))


@rule("hard_sigmoid")
def hard_sigmoid(g: GraphBuilder, x: Var) -> str:
    return str(g.op("HardSigmoid", x, alpha=1 / 6, beta=0.5))


@rule("hard_silu")
def hard_silu(g: GraphBuilder, x: Var) -> str:
    return str(g.op("HardSwish", x))


@rule("mish", since=18)
def mish(g: GraphBuilder, x: Var) -> str:
    return str(g.op("Mish", x))


@rule("silu")
def silu(g: GraphBuilder, x: Var) -> str:
    return str(g.op("Mul", x, g.op("Sigmoid", x)))


@rule("optimization_barrier", "constrain")
def identity(g: GraphBuilder, x: Var, *others: Any, **named: Any) -> str:
    return str(g.op("Identity", x))


# ---- bits ------------------------------------------------------------------------------------------------------------

_POWERS = np.ldexp(1.0, np.arange(-150, 151))  # of two, in double precision


@rule("bitcast")
def bitcast(g: GraphBuilder, x: Var, dtype: np.dtype) -> str:
    """Write the bits of float32 as a number, and back, by arithmetic in double precision, which is exact: ONNX has no
    operator for it before opset 26. A NaN becomes the one without a sign."""
    old, new = np.dtype(x.dtype), np.dtype(dtype)
    if old == new:
        return g(x)
    if old.kind in "iu" and new.kind in "iu" and old.itemsize == new.itemsize:
        return g.cast(x, new)
    if old == np.float32 and new in (np.int32, np.uint32):
        return g.cast(g.cast(_bits(g, x), np.int64), new)
    if old in (np.int32, np.uint32) and new == np.float32:
        return g.cast(_from_bits(g, g.cast(x, np.int64)), new)
    raise NotImplementedError(f"the bits of {old} as {new}")


def _power(g: GraphBuilder, exponent: str) -> str:
    """Return 2 to an integer in double precision."""
    return str(g.op("Gather", _POWERS, g.cast(g.op("Add", exponent, g(150.0, np.float64)), np.int64)))


def _bits(g: GraphBuilder, x: Var) -> str:
    real = lambda value: g(value, np.float64)  # noqa: E731
    a = g.op("Abs", g.cast(x, np.float64))
    finite = g.op("Less", a, real(math.inf))
    a = g.op("Where", finite, a, real(1.0))
    clip = lambda e: g.op("Min", g.op("Max", e, real(-126.0)), real(127.0))  # noqa: E731
    guess = clip(g.op("Floor", g.op("Div", g.op("Log", a), real(math.log(2)))))
    power = _power(g, guess)
    above = g.cast(g.op("GreaterOrEqual", a, g.op("Mul", power, real(2.0))), np.float64)
    exponent = clip(g.op("Sub", g.op("Add", guess, above), g.cast(g.op("Less", a, power), np.float64)))
    mantissa = g.op("Mul", a, _power(g, g.op("Sub", real(23.0), exponent)))
    bits = g.op("Add", mantissa, g.op("Mul", g.op("Add", exponent, real(126.0)), real(2.0**23)))
    special = g.op("Where", g.op("IsNaN", x), real(float(0x7FC00000)), real(float(0x7F800000)))
    bits = g.op("Where", finite, bits, special)
    return str(g.op("Where", _signbit(g, g(x), np.dtype(x.dtype)), g.op("Sub", bits, real(2.0**31)), bits))


def _from_bits(g: GraphBuilder, bits: str) -> str:
    integer, real = (lambda value: g(value, np.int64)), (lambda value: g(value, np.float64))
    bits = g.op("Where", g.op("Less", bits, integer(0)), g.op("Add", bits, integer(2**32)), bits)
    negative = g.op("GreaterOrEqual", bits, integer(2**31))
    bits = g.op("Where", negative, g.op("Sub", bits, integer(2**31)), bits)
    exponent = g.op("Div", bits, integer(2**23))
    mantissa = g.cast(g.op("Sub", bits, g.op("Mul", exponent, integer(2**23))), np.float64)
    none, all_ones = g.op("Equal", exponent, integer(0)), g.op("Equal", exponent, integer(255))
    whole = g.op("Where", none, mantissa, g.op("Add", mantissa, real(2.0**23)))
    scale = g.op("Where", none, integer(-149), g.op("Sub", exponent, integer(150)))
    scale = g.op("Where", all_ones, integer(0), scale)
    value = g.op("Mul", whole, _power(g, g.cast(scale, np.float64)))
    special = g.op("Where", g.op("Equal", mantissa, real(0.0)), real(math.inf), real(math.nan))
    value = g.op("Where", all_ones, special, value)
    sign = g.op("Where", negative, real(-1.0), real(1.0))  # Neg of the runtime loses that of zero
    return str(g.op("Mul", value, sign))
