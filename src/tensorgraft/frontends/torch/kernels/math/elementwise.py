"""Elementwise operators. Operands come in PyTorch's computation dtype; results are converted by the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.promotion import PROMOTION
from tensorgraft.frontends.torch.core.spec import SPECS, kernel
from tensorgraft.frontends.torch.dispatch.checks import require
from tensorgraft.frontends.torch.kernels.common import number, scalar_name
from tensorgraft.frontends.torch.kernels.math.logarithms import complex_logaddexp
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.operations.elementwise import COMPARISONS, ELEMENTWISE, PREDICATES
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators

DEFAULT, FLOAT, BOOL, COMPLEX_FLOAT = (
    PROMOTION.DEFAULT,
    PROMOTION.INT_TO_FLOAT,
    PROMOTION.ALWAYS_BOOL,
    PROMOTION.COMPLEX_TO_FLOAT,
)


def _inexact(xp: Any, x: Array) -> bool:
    return dtypes.is_inexact(xp.dtype_of(x))


def _in_double(xp: Any, method: Callable[[Array], Array], x: Array) -> Array:
    """Near its poles a function loses all digits of single precision (its reflection has tan(pi x) in it)."""
    return xp.astype(method(xp.astype(x, dtypes.float64)), xp.dtype_of(x))


# ---- of one tensor -----------------------------------------------------------------------------------------------


def _unary(table: dict[str, str | Callable[..., Any]], promotion: PROMOTION, **options: Any) -> None:
    for name, method in table.items():
        fn = (lambda xp, x, m=method: getattr(xp, m)(x)) if isinstance(method, str) else method
        kernel(name, promotion=promotion, **options)(fn)


_unary(
    {
        "digamma": lambda xp, x: _in_double(xp, xp.digamma, x),
        "i0": lambda xp, x: xp.multiply(xp.bessel_i0e(x), xp.exp(xp.abs(x))),
        "deg2rad": lambda xp, x: xp.multiply(x, math.pi / 180),
        "rad2deg": lambda xp, x: xp.multiply(x, 180 / math.pi),
        "special_i1": lambda xp, x: xp.multiply(xp.bessel_i1e(x), xp.exp(xp.abs(x))),
    },
    FLOAT,
)


def _integers_stay(method: str) -> Callable[..., Any]:
    return lambda xp, x: getattr(xp, method)(x) if _inexact(xp, x) else x


def _conj(xp: Any, x: Array) -> Array:
    return xp.conj(x) if dtypes.is_complex(xp.dtype_of(x)) else x


_unary({name: _integers_stay(name) for name in ("ceil", "floor", "trunc", "round")}, DEFAULT)
_unary(
    {
        "_conj_physical": lambda xp, x: _conj(xp, x),
        "conj_physical_": lambda xp, x: _conj(xp, x),
        "relu": lambda xp, x: xp.maximum(x, 0),
        "sgn": lambda xp, x: _sign(xp, x),
        "sign": lambda xp, x: _sign(xp, x),
        "frac": lambda xp, x: xp.subtract(x, xp.trunc(x)),
    },
    DEFAULT,
)
_unary({"abs": lambda xp, x: x if dtypes.is_bool(xp.dtype_of(x)) else xp.abs(x)}, COMPLEX_FLOAT)
_unary({"angle": "angle"}, FLOAT)
_unary(
    {
        "isnan": lambda xp, x: xp.isnan(x) if _inexact(xp, x) else xp.full(xp.shape(x), False, dtypes.bool_),
        "isinf": lambda xp, x: xp.isinf(x) if _inexact(xp, x) else xp.full(xp.shape(x), False, dtypes.bool_),
        "logical_not": lambda xp, x: xp.logical_not(xp.astype(x, dtypes.bool_)),
        "signbit": lambda xp, x: _signbit(xp, x),
    },
    BOOL,
)


def _sign(xp: Any, x: Array) -> Array:
    dtype = xp.dtype_of(x)
    if dtypes.is_bool(dtype):
        return x
    out = xp.sign(x)
    return xp.where(xp.isnan(x), xp.zeros_like(x), out) if dtypes.is_floating(dtype) else out


def _signbit(xp: Any, x: Array) -> Array:
    dtype = xp.dtype_of(x)
    if dtypes.is_floating(dtype):
        return xp.signbit(x)
    if dtypes.is_bool(dtype):
        return xp.full(xp.shape(x), False, dtypes.bool_)
    return xp.less(x, 0)


# ---- of several --------------------------------------------------------------------------------------------------

BOTH = ("self", "other")


def _scaled(method: str) -> Callable[..., Any]:
    def fn(xp: Any, x: Array, y: Array, alpha: Any = 1) -> Array:
        if not (isinstance(alpha, int | float) and alpha == 1):
            y = xp.multiply(y, like(xp, alpha, y))
        return getattr(xp, method)(x, y)

    return fn


def like(xp: Any, value: Any, x: AnyArray) -> AnyArray:
    """Return a number (possibly a traced one) in the dtype of an array."""
    return number(xp, value, xp.dtype_of(x))


ARITHMETIC = {"dynamic": ("other", "alpha"), "promotion": DEFAULT, "promote": BOTH}
kernel("add.Tensor", "add.Scalar", **ARITHMETIC)(_scaled("add"))
kernel("sub.Tensor", "sub.Scalar", **ARITHMETIC)(_scaled("subtract"))
kernel("rsub.Tensor", "rsub.Scalar", **ARITHMETIC)(lambda xp, x, y, alpha=1: _scaled("subtract")(xp, y, x, alpha))


def _binary(table: dict[str, str | Callable[..., Any]], promotion: PROMOTION, names: tuple[str, ...] = BOTH) -> None:
    for ops, method in table.items():
        fn = (lambda xp, x, y, m=method: getattr(xp, m)(x, y)) if isinstance(method, str) else method
        kernel(*ops.split(), dynamic=names, promotion=promotion, promote=names)(fn)


def _logical(method: str) -> Callable[..., Any]:
    return lambda xp, x, y: getattr(xp, method)(xp.astype(x, dtypes.bool_), xp.astype(y, dtypes.bool_))


def _fmax(extreme: str) -> Callable[..., Any]:
    def fn(xp: Any, x: Array, y: Array) -> Array:
        if not _inexact(xp, x):
            return getattr(xp, extreme)(x, y)
        out = getattr(xp, extreme)(x, y)
        return xp.where(xp.isnan(x), y, xp.where(xp.isnan(y), x, out))

    return fn


def _logaddexp(xp: Any, x: Array, y: Array) -> Array:
    return complex_logaddexp(xp, x, y) if dtypes.is_complex(xp.dtype_of(x)) else xp.logaddexp(x, y)


_binary(
    {"fmax": _fmax("maximum"), "fmin": _fmax("minimum"), "logaddexp": lambda xp, x, y: _logaddexp(xp, x, y)}, DEFAULT
)
_binary(
    {
        "xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self": lambda xp, x, y: xp.where(
            xp.isnan(y), y, xp.where(xp.equal(x, 0), xp.zeros_like(xp.multiply(x, y)), xp.multiply(x, xp.log(y)))
        )
    },
    FLOAT,
)
_binary({f"logical_{name}": _logical(f"logical_{name}") for name in ("and", "or", "xor")}, BOOL)
for _side in ("left", "right"):
    _binary({" ".join(f"__{_side[0]}shift__.{o}" for o in ("Tensor", "Scalar")): f"bitwise_{_side}_shift"}, DEFAULT)


def _zero(number: Any) -> bool:
    """Return True for the integer 0: a Python number, or a CPU tensor that represents one."""
    if isinstance(number, torch.Tensor):
        known = number.device.type == "cpu" and not number.dim() and not number.is_floating_point()
        return known and not number.is_complex() and number.item() == 0
    return isinstance(number, int) and number == 0


def _check_divisor(x: Any, other: Any, rounding_mode: str | None = "floor", **_: Any) -> None:
    inexact = isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex() or not x.numel())
    if _zero(other) and rounding_mode is not None and not inexact:
        raise RuntimeError("ZeroDivisionError")


def _division(fn: Callable[[Any, Array, Array], Array]) -> Callable[..., Array]:
    """Wrap `fn` so that dividing integers by an array with a 0 raises (numbers are checked before)."""

    def divide(xp: Any, x: Array, y: Array) -> Array:
        if dtypes.is_integer(xp.dtype_of(y)) and xp.shape(y) and 0 not in xp.shape(x):
            require(xp, (xp.not_equal(y, 0), "ZeroDivisionError"))
        return fn(xp, x, y)

    return divide


for _names, _fn in {
    "remainder.Tensor remainder.Scalar remainder.Scalar_Tensor": lambda xp, x, y: xp.remainder(x, y),
    "fmod.Tensor fmod.Scalar": lambda xp, x, y: xp.fmod(x, y),
    "floor_divide floor_divide.Scalar": lambda xp, x, y: xp.floor_divide(x, y),
}.items():
    _options = {"dynamic": BOTH, "promotion": DEFAULT, "promote": BOTH, "check": _check_divisor}
    if _names.startswith("floor_divide"):
        _options["scalar_operand"] = "other"
    kernel(*_names.split(), **_options)(_division(_fn))


@kernel(
    "div.Tensor_mode",
    "div.Scalar_mode",
    dynamic=("other",),
    promotion=lambda arguments: FLOAT if arguments.get("rounding_mode") is None else DEFAULT,
    promote=BOTH,
    scalar_operand="other",
    check=_check_divisor,
)
def _rounded_division(xp: Any, x: Array, y: Array, rounding_mode: str | None = None) -> Array:
    if rounding_mode is None:
        return xp.divide(x, y)
    if rounding_mode == "floor":
        return _division(lambda xp, x, y: xp.floor_divide(x, y))(xp, x, y)
    if dtypes.is_integer(xp.dtype_of(x)):
        return _division(lambda xp, x, y: xp.integer_floor_divide(xp.subtract(x, xp.fmod(x, y)), y))(xp, x, y)
    return xp.trunc(xp.divide(x, y))


def _pow(xp: Any, x: Array, y: Array) -> Array:
    return xp.pow(x, y)


POWER = {"promotion": PROMOTION.BOOL_TO_LONG, "promote": ("self", "exponent")}
kernel("pow.Tensor_Tensor", "pow.Scalar", **POWER)(_pow)


def _check_exponent(x: Any, exponent: Any, **_: Any) -> None:
    integral = not (x.is_floating_point() or x.is_complex())
    if integral and isinstance(exponent, int) and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _uncommon(x: Any, exponent: Any, **_: Any) -> dict[str, Any] | None:
    """Return None, which keeps the exponent static, for common ones: a compiler makes something better than a power."""
    common = exponent.__class__ not in (int, float) or exponent in _COMMON or exponent != exponent
    return None if common else {}


_COMMON = frozenset({-2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4})


kernel("pow.Tensor_Scalar", "pow_.Scalar", positions=("exponent",), moves=_uncommon, check=_check_exponent, **POWER)(
    _pow
)


@kernel("logit")
@with_operators
def _logit(xp: Any, x: Value, eps: float | None = None) -> Value:
    """Compute in the dtype of `x` throughout, as the CPU: in bfloat16 1 - 1e-5 is 1, whose logit is infinite."""
    x = x if _inexact(xp, x) else xp.astype(x, dtypes.float32)
    one_like = xp.full_like(x, 1)
    if eps is not None and eps >= 0:
        low = xp.full_like(x, eps)
        high = one_like - low
        x = xp.where(x < low, low, xp.where(x > high, high, x))
    return xp.log(x / (one_like - x))


@kernel("nan_to_num")
def _nan_to_num(
    xp: Any, x: Array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Array:
    dtype = xp.dtype_of(x)
    if not dtypes.is_inexact(dtype):
        return x
    if dtypes.is_complex(dtype):
        return xp.complex(*(_nan_to_num(xp, part, nan, posinf, neginf) for part in (xp.real(x), xp.imag(x))))
    limits = dtypes.finfo(dtype)
    out = xp.where(xp.isnan(x), like(xp, 0.0 if nan is None else nan, x), x)
    out = xp.where(xp.equal(x, like(xp, np.inf, x)), like(xp, float(limits.max) if posinf is None else posinf, x), out)
    lowest = float(limits.min) if neginf is None else neginf
    return xp.where(xp.equal(x, like(xp, -np.inf, x)), like(xp, lowest, x), out)


@kernel("lerp.Scalar", dynamic=("weight",), promotion=DEFAULT, promote=("self", "end"))
def _lerp_scalar(xp: Any, x: Array, y: Array, weight: Any) -> Array:
    return _lerp(xp, x, y, like(xp, weight, x))


@kernel("lerp.Tensor", promotion=DEFAULT)
@with_operators
def _lerp(xp: Any, x: Value, y: Value, weight: Value) -> Value:
    size = abs(weight)
    near = x + weight * (y - x)
    far = y - (y - x) * (1 - weight)
    return xp.where(size < 0.5, near, far)


@kernel("addcmul", dynamic=("value",), promotion=DEFAULT, promote=("self", "tensor1", "tensor2"))
@with_operators
def _addcmul(xp: Any, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    return x + like(xp, value, x) * a * b


@kernel("addcdiv", dynamic=("value",), promotion=DEFAULT, promote=("self", "tensor1", "tensor2"))
@with_operators
def _addcdiv(xp: Any, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    return x + like(xp, value, x) * (a / b)


@kernel("where.self", promotion=DEFAULT, promote=("self", "other"))
def _where(xp: Any, condition: Array, x: Array, y: Array) -> Array:
    return xp.where(xp.astype(condition, dtypes.bool_), x, y)


def _clamp(xp: Any, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    if dtypes.is_floating(xp.dtype_of(x)) and (low is not None or high is not None):
        out = xp.clip(x, low, high)
        return xp.where(xp.isnan(x), x, out)
    return xp.clip(x, low, high)


kernel("clamp", "clamp.Tensor", dynamic=("min", "max"), promotion=DEFAULT, promote=("self", "min", "max"))(_clamp)
kernel("clamp_min", "clamp_min.Tensor", dynamic=("min",), promotion=DEFAULT, promote=("self", "min"))(_clamp)
kernel("clamp_max", "clamp_max.Tensor", dynamic=("max",), promotion=DEFAULT, promote=("self", "max"))(
    lambda xp, x, high: _clamp(xp, x, None, high)
)


def _check_parts(real: torch.Tensor, imag: torch.Tensor, out: torch.Tensor | None = None) -> None:
    if not (real.is_floating_point() and imag.is_floating_point()):
        return  # PyTorch's meta function refuses these
    a, b = scalar_name(real.dtype), scalar_name(imag.dtype)
    if a != b:
        raise RuntimeError(f"Expected object of scalar type {a} but got scalar type {b} for second argument")
    if out is not None and out.dtype != real.dtype.to_complex():
        other = scalar_name(out.dtype)
        raise RuntimeError(f"Expected object of scalar type Complex{a} but got scalar type {other} for argument 'out'")


@kernel("complex", promotion=None, check=_check_parts)
def _complex(xp: Any, real: Array, imag: Array) -> Array:
    wide = dtypes.real_dtype(dtypes.complex_dtype(xp.dtype_of(real)))
    return xp.complex(xp.astype(real, wide), xp.astype(imag, wide))


@kernel("polar")
def _polar(xp: Any, size: Array, angle: Array) -> Array:
    return xp.complex(xp.multiply(size, xp.cos(angle)), xp.multiply(size, xp.sin(angle)))


@kernel("polygamma", promotion=FLOAT, promote=("self",))
def _polygamma(xp: Any, n: int, x: Array) -> Array:
    if n == 0:
        return _in_double(xp, xp.digamma, x)
    if n == 1:
        return _trigamma(xp, x)
    size = math.exp(math.lgamma(n + 1.0)) * (1 if n % 2 else -1)
    return _in_double(xp, lambda wide: xp.multiply(_zeta(xp, xp.full_like(wide, n + 1), wide), size), x)


@with_operators
def _trigamma(xp: ValueBackend, x: Value) -> Value:
    """Compute PyTorch's sum, in its dtype: at poles the result depends on the rounding of the sine of a multiple of
    pi."""
    left = x < 0.5
    sine = xp.sin(x * math.pi)
    reflected = xp.where(left, (math.pi * math.pi) / (sine * sine), xp.zeros_like(x))
    x = xp.where(left, 1 - x, x)
    total = xp.zeros_like(x)
    for _ in range(6):
        total = total + 1 / (x * x)
        x = x + 1
    square = 1 / (x * x)
    total = total + (1 + 1 / (2 * x) + square * (1 / 6 - square * (1 / 30 - square * (1 / 42)))) / x
    return xp.where(left, reflected - total, total)


def _incomplete_gamma(method: str, whole: float) -> Callable[..., Any]:
    """Make a kernel of a regularised incomplete gamma function that is `whole` at infinity. Its edges, the first of
    which counts, are asked for in PyTorch's order: some have a value where an operand is NaN."""

    @with_operators
    def edged(xp: ValueBackend, a: Value, x: Value) -> Value:
        none, nothing = math.nan, 1 - whole
        edges = (
            ((x < 0) | (a < 0), none),
            ((a == 0) & (x > 0), whole),
            (a == 0, none),
            (x == 0, nothing),
            (xp.isinf(a) & xp.isinf(x), none),
            (xp.isinf(a), nothing),
            (xp.isinf(x), whole),
        )
        y = getattr(xp, method)(a, x)
        for where, value in reversed(edges):
            y = xp.where(where, xp.full_like(y, value), y)
        return y

    def kernel(xp: Any, a: Array, x: Array) -> Array:  # in single precision some backends lose digits
        wide = (xp.astype(v, dtypes.float64) for v in (a, x))
        return xp.astype(edged(xp, *wide), xp.dtype_of(x))

    return kernel


for _name, _whole in (("igamma", 1.0), ("igammac", 0.0)):
    kernel(_name, promotion=FLOAT, promote=BOTH)(_incomplete_gamma(_name, _whole))


@kernel("special_zeta", promotion=FLOAT, dynamic=("self", "other"), promote=("self", "other"))
@with_operators
def _zeta(xp: Any, s: Value, q: Value) -> Value:
    """PyTorch adds terms until they no longer count, of which there is no last one where `s` or `q` is infinite."""
    dtype = q.dtype
    s, q = (xp.astype(v, dtypes.float64) for v in (s, q))  # in single precision products of large orders overflow
    y = xp.zeta(s, q)
    endless = (s == math.inf) | (xp.isnan(y) & (s > 1))
    edges = (
        ((q == math.inf) | (xp.isnan(s) | xp.isnan(q)), math.nan),
        (endless & (q > 1), math.nan),
        (endless & (q == 1), 1.0),
        (endless & (q < 1), math.inf),
        ((q <= 0) & (s != xp.floor(s)), math.nan),
        ((q <= 0) & (q == xp.floor(q)), math.inf),
        (s < 1, math.nan),
        (s == 1, math.inf),
    )
    for where, value in edges:
        y = xp.where(where, xp.full_like(y, value), y)
    return xp.astype(y, dtype)


# ---- one to one ------------------------------------------------------------------------------------------------------

# the hub's name -> ATen's, where it is another
ATEN = {"negative": "neg", "bitwise_invert": "bitwise_not", "multiply": "mul", "divide": "div", "erf_inv": "erfinv"}
ATEN |= {"equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
ATEN |= {name: f"special_{name.removeprefix('bessel_')}" for name in ("bessel_i0e", "bessel_i1e", "zeta")}
_REFUSES_INTEGERS = {"hypot", "nextafter"}  # PyTorch computes others in the default dtype


_OF_NUMBERS = ("default", "Tensor", "Scalar", "Tensor_Scalar", "Scalar_Tensor", "self_scalar", "other_scalar")


def _overloads(name: str) -> Iterator[schema.Overload]:
    """Yield overloads of tensors and numbers (others are TorchScript's) that are neither decomposed nor registered
    above."""
    packet = getattr(torch.ops.aten, name, None)
    for overload in packet.overloads() if packet is not None else ():
        if overload in _OF_NUMBERS and (name if overload == "default" else f"{name}.{overload}") not in SPECS:
            op = getattr(packet, overload)
            if "Tensor" in schema.signature(op).types.values() and not schema.has_composite(op):
                yield op


def _hub_method(method: str) -> Callable[..., Array]:
    return lambda xp, *operands: getattr(xp, method)(*operands)


for _name, _kinds in ELEMENTWISE.items():
    _promotion = BOOL if _name in PREDICATES or _name in COMPARISONS else FLOAT
    if ("i" in _kinds and _promotion is FLOAT) or _name in _REFUSES_INTEGERS:
        _promotion = DEFAULT
    if _name == "nextafter":  # depends on the dtype itself
        _promotion = PROMOTION.NO_OPMATH
    for _op in _overloads(ATEN.get(_name, _name)):
        _operands = schema.signature(_op).names
        _several: dict[str, Any] = {"dynamic": _operands, "promote": _operands} if len(_operands) > 1 else {}
        if _name in ("multiply", "divide"):
            _several["scalar_operand"] = "other"
        kernel(schema.short_name(_op), promotion=_promotion, operation=_name, **_several)(_hub_method(_name))
