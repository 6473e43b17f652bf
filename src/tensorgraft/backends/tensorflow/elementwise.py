"""Elementwise operations, as tables of raw operations; there are functions where TensorFlow's operation differs, or
lacks a kernel for a dtype."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow import special
from tensorgraft.backends.tensorflow.float8 import from_bytes, nearest, to_bytes
from tensorgraft.backends.tensorflow.framework import EagerTensor, raw, tf
from tensorgraft.backends.tensorflow.graph import order_of
from tensorgraft.backends.tensorflow.operation import (
    FLOAT8_AS_FLOAT32,
    MOST_AXES,
    MOST_BROADCAST,
    OF_KIND,
    TF,
    Fn,
    broadcast_to,
    broadcastable,
    cast,
    constant,
    dtype_of,
    in_float32,
    ints,
    is_symbolic,
    is_weak,
    mark_weak,
    shape_of,
    via_carriers,
)
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.elementwise import BINARY, COMPARISONS, ELEMENTWISE, PREDICATES

_NARROW_INTEGERS = {
    **dict.fromkeys((dtypes.int8, dtypes.int16, dtypes.uint8, dtypes.uint16), dtypes.int32),
    dtypes.uint32: dtypes.int64,
}


def _unary(name: str) -> Fn:
    operation = getattr(raw, name)
    return lambda x: operation(x=x)


def _binary(name: str) -> Fn:
    operation = getattr(raw, name)
    return lambda x, y: operation(x=x, y=y)


def _by_kind(fn: Fn, **variants: Fn) -> Fn:
    """Choose among functions by the kind of the dtype: b(ool), u(nsigned), i(nteger, of either sign), c(omplex); `fn`
    for the rest."""

    variants = {"u": variants["i"], **variants} if "i" in variants else variants
    table = {dtype: variants.get(dtype.kind, fn) for dtype in TF}

    @functools.wraps(fn)
    def by_kind(x: Array, *rest: Array) -> Array:
        return table[dtype_of(x)](x, *rest)

    return by_kind


def _like(x: Array, value: Any) -> Array:
    return constant(value, dtype_of(x))


def select(condition: Array, x: Array, y: Array) -> Array:
    """Return x where the condition is true, else y, broadcast. The kernel limits the number of axes: arrays of more are
    flattened."""
    shapes = {shape_of(a) for a in (condition, x, y)}
    most = max(map(len, shapes))
    if most <= MOST_BROADCAST or (most <= MOST_AXES and len(shapes) == 1):
        return raw.SelectV2(condition=condition, t=x, e=y)
    shape = np.broadcast_shapes(*shapes)
    condition, x, y = (tf.reshape(broadcast_to(a, shape), (-1,)) for a in (condition, x, y))
    return raw.Reshape(tensor=raw.SelectV2(condition=condition, t=x, e=y), shape=ints(shape))


def real(x: Array) -> Array:
    return raw.Real(input=x, Tout=TF[dtypes.real_dtype(dtype_of(x))])


def imag(x: Array) -> Array:
    return raw.Imag(input=x, Tout=TF[dtypes.real_dtype(dtype_of(x))])


def make_complex(re: Array, im: Array) -> Array:
    return raw.Complex(real=re, imag=im, Tout=TF[dtypes.complex_dtype(dtype_of(re))])


def _modulus(x: Array) -> Array:
    return raw.ComplexAbs(x=x, Tout=TF[dtypes.real_dtype(dtype_of(x))])


def _trunc(x: Array) -> Array:
    return select(x < _like(x, 0), raw.Ceil(x=x), raw.Floor(x=x))


def _of_parts(name: str, combine: str) -> Fn:
    """Return a predicate that combines those of the parts of a complex number."""
    predicate, joined = _unary(name), _binary(combine)
    return _by_kind(predicate, c=lambda x: joined(predicate(real(x)), predicate(imag(x))))


def _principal(fn: Fn) -> Fn:
    """Return a complex function that XLA does not simplify with its operand: XLA would replace log(exp(z)) by z,
    sqrt(z * z) by |z| and exp(z) ** p by exp(z * p), which holds for real numbers only. In a graph, the real part is
    multiplied by a 1 that is an input, and therefore unknown to XLA."""

    def hidden(x: Array, *rest: Array) -> Array:
        if is_symbolic(x):
            with tf.init_scope():
                opaque_one = tf.constant(1, TF[dtypes.real_dtype(dtype_of(x))])
            x = make_complex(raw.Mul(x=real(x), y=opaque_one), imag(x))
        return fn(x, *rest)

    return hidden


_BRANCHED = {
    **{name.lower(): _unary(name) for name in ("Log", "Sqrt", "Rsqrt")},
    "log2": special.log2,
    "log10": special.log10,
}


# ---- integers ------------------------------------------------------------------------------------------------------


def _safe_divisor(x: Array, y: Array) -> Array:
    """Return `y` with 0 and -1 replaced by 1. Division by 0, and of the least integer by -1, would trap on the CPU or
    be an error of TensorFlow's; callers compute the result for -1 separately."""
    unsafe = raw.Equal(x=y, y=_like(y, 0))
    if dtype_of(y).kind == "i":
        unsafe = raw.LogicalOr(x=unsafe, y=raw.Equal(x=y, y=_like(y, -1)))
    return select(unsafe, _like(y, 1), y)


def _floor_divide(x: Array, y: Array) -> Array:
    quotient = raw.FloorDiv(x=x, y=_safe_divisor(x, y))
    if dtype_of(x).kind == "u":
        return quotient
    return select(raw.Equal(x=y, y=_like(y, -1)), raw.Neg(x=x), quotient)


def _remainder(x: Array, y: Array) -> Array:
    name = "FloorMod" if dtype_of(x).kind == "u" else "TruncateMod"
    return getattr(raw, name)(x=x, y=_safe_divisor(x, y))


def _float_remainder(x: Array, y: Array) -> Array:
    """Return the remainder of the truncated quotient. TensorFlow has no derivative of it."""
    if tf.executing_eagerly() and not order_of((x, y)):
        return raw.TruncateMod(x=x, y=y)
    shape = tf.broadcast_dynamic_shape(raw.Shape(input=x), raw.Shape(input=y))
    return _differentiable_remainder(*(raw.BroadcastTo(input=a, shape=shape) for a in (x, y)))


@tf.custom_gradient
def _differentiable_remainder(x: Array, y: Array) -> Any:
    def gradient(g: Array) -> tuple[Array, Array]:
        quotient = raw.RealDiv(x=x, y=y)
        whole = select(raw.Less(x=quotient, y=_like(quotient, 0)), raw.Ceil(x=quotient), raw.Floor(x=quotient))
        return g, raw.Neg(x=raw.Mul(x=g, y=whole))

    return raw.TruncateMod(x=x, y=y), gradient


def _integer_power(x: Array, y: Array) -> Array:
    """Return integer powers. TensorFlow refuses negative exponents: they give the reciprocal truncated to an
    integer."""
    if dtype_of(x) == dtypes.uint64:
        signed = (raw.Bitcast(input=a, type=tf.int64) for a in (x, y))
        return raw.Bitcast(input=raw.Pow(x=next(signed), y=raw.Maximum(x=next(signed), y=_zero64())), type=tf.uint64)
    if dtype_of(x).kind == "u":
        return raw.Pow(x=x, y=y)
    zero, one_like = _like(y, 0), _like(x, 1)
    power = raw.Pow(x=x, y=raw.Maximum(x=y, y=zero))
    odd = raw.Equal(x=raw.BitwiseAnd(x=y, y=one_like), y=one_like)
    inverse = select(raw.Equal(x=raw.Abs(x=x), y=one_like), select(odd, x, one_like), zero)
    return select(raw.Less(x=y, y=zero), inverse, power)


def _zero64() -> Array:
    return constant(0, dtypes.int64)


def _is_small_shift(y: Array, bits: int) -> bool:
    """Return True if `y` is a scalar of known value by which an integer of `bits` bits can be shifted."""
    if shape_of(y):
        return False
    value = tf.get_static_value(y)
    return value is not None and 0 <= int(value) < bits


def _shift(name: str) -> Fn:
    def shift(x: Array, y: Array) -> Array:
        """Shift by any number of bits: all bits, or more, give 0, or the sign for a right shift of signed integers.
        TensorFlow's result is defined for fewer than all bits."""
        bits, signed = 8 * dtype_of(x).itemsize, dtype_of(x).kind == "i"
        if _is_small_shift(y, bits):
            return getattr(raw, name)(x=x, y=y)
        in_range = raw.Less(x=y, y=_like(y, bits))
        if signed:
            in_range = raw.LogicalAnd(x=in_range, y=raw.GreaterEqual(x=y, y=_like(y, 0)))
        if signed and name == "RightShift":
            return raw.RightShift(x=x, y=select(in_range, y, _like(y, bits - 1)))
        return select(in_range, getattr(raw, name)(x=x, y=y), _like(x, 0))

    return shift


# ---- extremes ------------------------------------------------------------------------------------------------------


def nan_wins(x: Array) -> bool:
    """Return True if TensorFlow's own maximum and minimum of `x` propagate NaN: its CPU kernels do, XLA does not."""
    return not dtypes.is_floating(dtype_of(x)) or (isinstance(x, EagerTensor) and "CPU" in x.device)


def _extreme(name: str, better: str, logical: str) -> Fn:
    plain, compare = _binary(name), _binary(better)

    def extreme(x: Array, y: Array) -> Array:
        if nan_wins(x) and nan_wins(y):
            return plain(x, y)
        return select(raw.LogicalOr(x=compare(x, y), y=raw.IsNan(x=x)), x, y)

    return _by_kind(extreme, b=_binary(logical))


def _quotient(x: Array, y: Array) -> Array:
    """Divide, rounded as IEEE 754 requires. Grappler and XLA replace division by a constant by a product with its
    reciprocal, which often differs in the last bit, so that `round` of a quotient gives another integer. A known
    divisor is therefore passed as an input of the graph."""
    number = _number(y) if is_symbolic(y) and y.dtype.is_floating else None
    if number is not None and abs(np.frexp(np.float64(number))[0]) != 0.5:  # powers of two have exact reciprocals
        shape = shape_of(y)
        with tf.init_scope():
            y = tf.constant(np.asarray(number), y.dtype)
        y = broadcast_to(y, shape) if np.broadcast_shapes(shape_of(x), shape) != shape_of(x) else y
    return raw.RealDiv(x=x, y=y)


def _complex_quotient(x: Array, y: Array) -> Array:
    """Divide by the larger part of the divisor (R. L. Smith, "Algorithm 116: Complex division", 1962), as NumPy does.
    Whether TensorFlow's kernel gives NaN for a divisor of 0 or infinity depends on the element's position in memory."""
    a, b, c, d = real(x), imag(x), real(y), imag(y)
    swapped = raw.Less(x=raw.Abs(x=c), y=raw.Abs(x=d))
    most, least, p, q = select(swapped, d, c), select(swapped, c, d), select(swapped, b, a), select(swapped, a, b)
    ratio = raw.RealDiv(x=least, y=most)
    size = raw.AddV2(x=most, y=raw.Mul(x=least, y=ratio))
    share = raw.Mul(x=p, y=ratio)
    re = raw.RealDiv(x=raw.AddV2(x=p, y=raw.Mul(x=q, y=ratio)), y=size)
    im = raw.RealDiv(x=select(swapped, raw.Sub(x=share, y=q), raw.Sub(x=q, y=share)), y=size)
    length = raw.Abs(x=most)
    none = raw.Equal(x=raw.AddV2(x=length, y=raw.Abs(x=least)), y=_like(length, 0))
    return make_complex(*(select(none, raw.RealDiv(x=top, y=length), part) for top, part in ((a, re), (b, im))))


def _number(x: Array) -> Any:
    """Return the number that all elements of a tensor in a graph are known to equal, or None."""
    kind, inputs = x.op.type, x.op.inputs
    if kind in ("BroadcastTo", "Reshape", "Identity"):
        return _number(inputs[0])
    if kind == "Fill":
        return _number(inputs[1])
    value = tf.get_static_value(x) if x.shape.num_elements() == 1 else None
    return None if value is None else value.reshape(())[()]


def _compared(name: str) -> Fn:
    plain = _binary(name)
    return _by_kind(plain, b=lambda x, y: plain(cast(x, dtypes.uint8), cast(y, dtypes.uint8)))


# Operations that are not simply the raw operation of their name (bessel_i0e is `BesselI0e`, in float32 for narrower
# floats). None: the hub's composite is used.
_OTHERS: dict[str, Fn | None] = {
    "abs": _by_kind(_unary("Abs"), u=lambda x: x, c=_modulus),
    "sign": _by_kind(_unary("Sign"), u=lambda x: cast(raw.NotEqual(x=x, y=_like(x, 0)), dtype_of(x))),
    "negative": _by_kind(_unary("Neg"), u=lambda x: raw.AddV2(x=raw.Invert(x=x), y=_like(x, 1))),
    "trunc": _trunc,
    "round": _unary("Rint"),
    "bitwise_invert": _by_kind(_unary("Invert"), b=_unary("LogicalNot")),
    "real": real,
    "imag": imag,
    "conj": lambda x: raw.Conj(input=x),
    "isnan": _of_parts("IsNan", "LogicalOr"),
    "isinf": _of_parts("IsInf", "LogicalOr"),
    "isfinite": _of_parts("IsFinite", "LogicalAnd"),
    **{name: getattr(special, name) for name in special.__all__},
    **{name: _by_kind(fn, c=_principal(fn)) for name, fn in _BRANCHED.items()},
    "add": _by_kind(_binary("AddV2"), b=_binary("LogicalOr")),
    "multiply": _by_kind(_binary("Mul"), b=_binary("LogicalAnd")),
    "subtract": _binary("Sub"),
    "divide": _by_kind(_quotient, c=_complex_quotient),
    "fmod": _by_kind(_float_remainder, i=via_carriers(_NARROW_INTEGERS, _remainder)),
    "pow": _by_kind(
        _binary("Pow"),
        i=via_carriers({**dict.fromkeys((dtypes.uint8, dtypes.uint16, dtypes.uint32), dtypes.int64)}, _integer_power),
        c=_principal(_binary("Pow")),
    ),
    "atan2": lambda y, x: raw.Atan2(y=y, x=x),
    "maximum": _extreme("Maximum", "GreaterEqual", "LogicalOr"),
    "minimum": _extreme("Minimum", "LessEqual", "LogicalAnd"),
    "bitwise_and": _by_kind(_binary("BitwiseAnd"), b=_binary("LogicalAnd")),
    "bitwise_or": _by_kind(_binary("BitwiseOr"), b=_binary("LogicalOr")),
    "bitwise_xor": _by_kind(_binary("BitwiseXor"), b=_binary("NotEqual")),
    "bitwise_left_shift": _shift("LeftShift"),
    "bitwise_right_shift": _shift("RightShift"),
    "less": _compared("Less"),
    "less_equal": _compared("LessEqual"),
    "greater": _compared("Greater"),
    "greater_equal": _compared("GreaterEqual"),
    "logical_xor": _binary("NotEqual"),
    **dict.fromkeys(("square", "reciprocal", "sigmoid")),  # XLA's and the kernels' differ
}
# these are computed in 16-bit floats, the others in float32
_EXACT = {"abs", "sign", "negative", "ceil", "floor", "trunc", "add", "multiply", "subtract", "divide", "nextafter"}
_EXACT |= {"maximum", "minimum", "real", "imag", "conj", *PREDICATES, *COMPARISONS}


def _function(name: str) -> Fn | None:
    if name in _OTHERS:
        fn = _OTHERS[name]
    else:
        known = "".join(part.capitalize() for part in name.split("_"))
        fn = (_binary if name in TWO else _unary)(known) if hasattr(raw, known) else None
    return fn if fn is None or name in _EXACT or not set("fc") & set(ELEMENTWISE[name]) else in_float32(fn)


TWO = {*BINARY, *COMPARISONS}
FUNCTIONS = {name: fn for name in ELEMENTWISE if (fn := _function(name)) is not None}


# ---- conversions ---------------------------------------------------------------------------------------------------


def _truncate(x: Array, dtype: np.dtype) -> Array:
    """Convert floats to integers as x86 does: numbers out of range become the least integer; narrow integers wrap."""
    if dtype == dtypes.uint64:
        big = raw.GreaterEqual(x=x, y=_like(x, 2.0**63)) if dtype_of(x) != dtypes.float16 else None
        low = cast(_truncate(x, dtypes.int64), dtype)
        return low if big is None else select(big, cast(x, dtype), low)
    if dtype == dtypes.uint32:
        return cast(_truncate(x, dtypes.int64), dtype)
    if dtype.itemsize < 4:
        return cast(_truncate(x, dtypes.int32), dtype)
    if dtype_of(x) == dtypes.float16 or (isinstance(x, EagerTensor) and "CPU" in x.device):
        return cast(x, dtype)  # every float16 is in range, and the CPU converts as x86 does
    in_range = raw.Less(x=raw.Abs(x=x), y=_like(x, 2.0 ** (8 * dtype.itemsize - 1)))
    return select(in_range, cast(x, dtype), constant(dtypes.iinfo(dtype).min, dtype))


def astype(x: Array, dtype: np.dtype) -> Array:
    source = dtype_of(x)
    if source == dtype:
        return raw.Identity(input=x) if is_weak(x) else x
    if dtypes.is_complex(source) and dtypes.is_bool(dtype):
        return raw.NotEqual(x=x, y=_like(x, 0))
    if dtypes.is_complex(source) and not dtypes.is_complex(dtype):
        return astype(real(x), dtype)
    if source in FLOAT8_AS_FLOAT32:
        return astype(cast(x, dtypes.float32), dtype)
    if dtype in FLOAT8_AS_FLOAT32:
        wide = cast(x, dtypes.float32)
        return cast(nearest(wide, dtype) if is_symbolic(wide) else wide, dtype)
    if dtypes.is_floating(source) and dtypes.is_integer(dtype):
        return _truncate(x, dtype)
    if dtypes.is_bool(source) and not dtypes.is_integer(dtype):
        x = cast(x, dtypes.int8)  # XLA makes a product with a converted bool a selection, where NaN * 0 is 0
    return cast(x, dtype)


def with_one_dtype(*operands: Any) -> list[Array]:
    """Return the operands as tensors. Python scalars, and weakly typed tensors that represent them in a trace, take the
    dtype of the arrays."""
    strong = next((x for x in operands if not is_weak(x)), None)
    if strong is None:
        kinds = [dtype_of(x) if isinstance(x, tf.Tensor) else OF_KIND[type(x)] for x in operands]
        dtype = max(kinds, key=list(OF_KIND.values()).index)
    else:
        dtype = dtype_of(strong)
    return [_of_dtype(x, dtype) if is_weak(x) else x for x in operands]


def _of_dtype(x: Any, dtype: np.dtype) -> Array:
    return astype(x, dtype) if isinstance(x, tf.Tensor) else constant(x, dtype)


def bitcast(x: Array, dtype: np.dtype) -> Array:
    source = dtype_of(x)
    if source == dtype:
        return x
    if source in FLOAT8_AS_FLOAT32 or dtype in FLOAT8_AS_FLOAT32:
        if is_symbolic(x):
            if source in FLOAT8_AS_FLOAT32:
                return bitcast(to_bytes(x, source), dtype)
            return from_bytes(bitcast(x, dtypes.uint8), dtype)
        return tf.constant(x.numpy().view(dtype))
    if source == dtypes.bool_:
        return bitcast(cast(x, dtypes.uint8), dtype)
    if dtypes.is_complex(source):
        return bitcast(_flat(raw.Pack(values=[real(x), imag(x)], axis=1)), dtype)
    if dtype == dtypes.bool_:
        return raw.NotEqual(x=bitcast(x, dtypes.uint8), y=constant(0, dtypes.uint8))
    if dtypes.is_complex(dtype):
        parts = bitcast(x, dtypes.real_dtype(dtype))
        re, im = raw.Unpack(value=tf.reshape(parts, (-1, 2)), num=2, axis=1)
        return make_complex(re, im)
    if dtype.itemsize > source.itemsize:
        x = tf.reshape(x, (-1, dtype.itemsize // source.itemsize))
    return _flat(raw.Bitcast(input=x, type=TF[dtype]))


def _flat(x: Array) -> Array:
    return tf.reshape(x, (-1,))


# ---- methods -------------------------------------------------------------------------------------------------------


def _unary_method(fn: Fn) -> Fn:
    fn = via_carriers(FLOAT8_AS_FLOAT32, fn)

    def method(self: Any, x: Array, /) -> Array:
        return fn(x)

    return method


def _binary_method(fn: Fn) -> Fn:
    fn = via_carriers(FLOAT8_AS_FLOAT32, fn)

    def method(self: Any, x: Any, y: Any, /) -> Array:
        if type(x) is EagerTensor and type(y) is EagerTensor:
            if x._rank() <= MOST_BROADCAST and y._rank() <= MOST_BROADCAST:
                return fn(x, y)
            return fn(*broadcastable(x, y))
        weak = is_weak(x) and is_weak(y)
        out = fn(*broadcastable(*with_one_dtype(x, y)))
        return mark_weak(out) if weak and is_symbolic(out) else out

    return method


class TensorFlowElementwise:
    for _name, _fn in FUNCTIONS.items():
        locals()[_name] = (_binary_method if _name in TWO else _unary_method)(_fn)
    del _name, _fn
    integer_floor_divide = _binary_method(_floor_divide)

    def where(self, condition: Array, x: Array, y: Array, /) -> Array:
        x, y = with_one_dtype(x, y)
        return via_carriers(FLOAT8_AS_FLOAT32, lambda x, y: select(condition, x, y))(x, y)

    def complex(self, real: Array, imag: Array, /) -> Array:
        return make_complex(*broadcastable(*with_one_dtype(real, imag)))

    def astype(self, x: Array, dtype: np.dtype, /) -> Array:
        return astype(x, np.dtype(dtype))

    def bitcast(self, x: Array, dtype: np.dtype, /) -> Array:
        return bitcast(x, np.dtype(dtype))
