"""Elementwise operations, constants and conversions."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
from jax import lax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from tensorgraft.frontends.jax.stablehlo.attributes import dtype_of, ints, result_dtype
from tensorgraft.frontends.jax.stablehlo.errors import UnsupportedStableHLOError
from tensorgraft.frontends.jax.stablehlo.interpreter import RULES, rule

_SAME = {
    **{n: getattr(lax, n) for n in ("abs", "ceil", "floor", "imag", "real", "sign", "sqrt", "rsqrt", "cbrt", "tan",
                                     "tanh", "is_finite", "atan2", "complex", "population_count")},
    "add": lax.add, "subtract": lax.sub, "multiply": lax.mul, "divide": lax.div, "maximum": lax.max, "minimum": lax.min,
    "power": lax.pow, "remainder": lax.rem, "negate": lax.neg, "exponential": lax.exp,
    "exponential_minus_one": lax.expm1,
    "log": lax.log, "log_plus_one": lax.log1p, "logistic": lax.logistic, "cosine": lax.cos, "sine": lax.sin,
    "and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor, "not": lax.bitwise_not,
    "shift_left": lax.shift_left, "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic, "count_leading_zeros": lax.clz,
    "round_nearest_afz": lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO),
    "round_nearest_even": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
    "select": lambda c, x, y: lax.select(jax.numpy.broadcast_to(c, np.shape(x)), x, y),
    "clamp": lax.clamp, "optimization_barrier": lambda *xs: lax.optimization_barrier(xs),
}  # fmt: skip
_CHLO = {
    "erf": lax.erf, "erfc": lax.erfc, "erf_inv": lax.erf_inv, "lgamma": lax.lgamma, "digamma": lax.digamma,
    "acos": lax.acos,
    "acosh": lax.acosh, "asin": lax.asin, "asinh": lax.asinh, "atan": lax.atan, "atanh": lax.atanh, "cosh": lax.cosh,
    "sinh": lax.sinh, "tan": lax.tan, "square": lax.square, "next_after": lax.nextafter, "polygamma": lax.polygamma,
    "zeta": lax.zeta, "conj": lax.conj, "bessel_i1e": lax.bessel_i1e,
}  # fmt: skip
for _method, _fn in _SAME.items():
    RULES[f"stablehlo.{_method}"] = lambda _, op, *xs, fn=_fn: fn(*xs)
for _method, _fn in _CHLO.items():
    RULES[f"chlo.{_method}"] = lambda _, op, *xs, fn=_fn: fn(*xs)


@rule("compare")
def compare(_: Any, op: Any, x: Any, y: Any) -> Any:
    direction = stablehlo.ComparisonDirectionAttr(op.attributes["comparison_direction"]).value
    names = {"EQ": lax.eq, "NE": lax.ne, "LT": lax.lt, "LE": lax.le, "GT": lax.gt, "GE": lax.ge}
    return names[direction](x, y)


@rule("constant")
def constant(_: Any, op: Any) -> Any:
    attribute = op.attributes["value"]
    type_ = ir.RankedTensorType(op.operation.results[0].type)
    dtype = dtype_of(type_.element_type)
    if dtype.kind == "c":
        raise UnsupportedStableHLOError("constants of complex numbers")
    dense = ir.DenseElementsAttr(attribute)
    if dense.is_splat:
        splat = dense.get_splat_value()
        value: Any = _float(splat, dtype) if dtype.kind not in "iub" else ir.IntegerAttr(splat).value
        make = np.full if math.prod(type_.shape) <= 64 else lax.full  # known: perhaps a shape
        return make(type_.shape, value, dtype)
    if dtype.kind == "b":
        return np.array(ir.DenseIntElementsAttr(attribute)).astype(bool).reshape(type_.shape)
    values = np.array(ir.DenseIntElementsAttr(attribute) if dtype.kind in "iu" else ir.DenseFPElementsAttr(attribute))
    return values.astype(dtype).reshape(type_.shape)


def _float(attribute: Any, dtype: np.dtype) -> Any:
    return np.asarray(ir.FloatAttr(attribute).value).astype(dtype)


@rule("convert")
def convert(_: Any, op: Any, x: Any) -> Any:
    return lax.convert_element_type(x, result_dtype(op))


@rule("bitcast_convert")
def bitcast_convert(_: Any, op: Any, x: Any) -> Any:
    return lax.bitcast_convert_type(x, result_dtype(op))


@rule("reduce_precision")
def reduce_precision(_: Any, op: Any, x: Any) -> Any:
    return lax.reduce_precision(x, ints(op, "exponent_bits"), ints(op, "mantissa_bits"))
