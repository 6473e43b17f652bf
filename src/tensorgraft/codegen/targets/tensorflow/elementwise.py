"""Elementwise operations in TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.codegen.targets.tensorflow.common import (
    AS_FLOAT32,
    AS_INT32,
    NARROW_FLOATS,
    SMALL_INTEGERS,
    in_float32,
    in_other_dtype,
)
from tensorgraft.hub import dtypes


def _typed(template: str) -> Callable[..., ast.expr]:
    """Return a rule that writes Python scalars with a dtype, unless TensorFlow's default is right: TensorFlow converts
    operands to the dtype of the first one."""

    def rule(w: Writing, **operands: Any) -> ast.expr:
        arrays = [v for k, v in operands.items() if isinstance(v, Var) and k != "condition"]
        like = arrays[-1].dtype if arrays else dtypes.float32  # a widened array takes Python numbers without a cast

        def number(v: Any) -> Any:
            if isinstance(v, Var | ast.expr) or v is None:
                return v
            plain = float(v) if arrays and dtypes.is_floating(like) and not isinstance(v, complex) else v
            if like in (dtypes.float32, dtypes.int32, dtypes.bool_):
                return plain
            return w.fill("tf.constant(v, dtype)", v=plain, dtype=like)

        return w.fill(template, **{k: number(v) for k, v in operands.items()})

    return rule


def _extreme_of_two(template: str, logical: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        return w.fill(logical, x=x, y=y) if rules.dtype_of(x, y) == np.bool_ else _typed(template)(w, x=x, y=y)

    return rule


def _compared(sign: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        if rules.dtype_of(x, y) == np.bool_:
            x, y = (w.fill("tf.cast(x, tf.int32)", x=v) if isinstance(v, Var) else int(v) for v in (x, y))
        return w.fill(f"x {sign} y", x=x, y=y)

    return rule


def _of_parts(name: str, combine: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var) -> ast.expr:
        if dtypes.is_complex(x.dtype):
            part = f"tf.math.{name}(tf.math.{{}}(x))"
            return w.fill(f"{part.format('real')} {combine} {part.format('imag')}", x=x)
        return w.fill(f"tf.math.{name}(x)", x=x)

    return rule


def _clip(w: Writing, x: Var, low: Any = None, high: Any = None) -> ast.expr:
    if low is not None and high is not None and not isinstance(low, Var) and not isinstance(high, Var):
        return w.fill("tf.clip_by_value(x, low, high)", x=x, low=low, high=high)
    out = w(x) if low is None else w.fill("tf.maximum(x, low)", x=x, low=low)
    return out if high is None else w.fill("tf.minimum(x, high)", x=out, high=high)


def _pow(w: Writing, x: Any, y: Any) -> ast.expr:
    dtype = rules.dtype_of(x, y)
    if dtypes.is_integer(dtype) and (not isinstance(y, int) or y < 0 or dtype in SMALL_INTEGERS):
        return w.fill("integer_pow(x, y)", x=x, y=y)
    return w.fill("x ** y", x=x, y=y)


def _shift(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        dtype = rules.dtype_of(x, y)
        in_range = isinstance(y, int) and 0 <= y < 8 * dtype.itemsize
        y = y if isinstance(y, Var) else w.fill("tf.constant(y, dtype)", y=y, dtype=dtype)
        x = x if isinstance(x, Var) else w.fill("tf.constant(x, dtype)", x=x, dtype=dtype)
        return w.fill(f"tf.bitwise.{name}(x, y)" if in_range else f"{name}(x, y)", x=x, y=y)

    return rule


def _remainder(w: Writing, x: Any, y: Any) -> ast.expr:
    return w.fill("x % y", x=x, y=y)


def _astype(w: Writing, x: Var, dtype: np.dtype) -> ast.expr:
    if dtypes.is_complex(x.dtype) and not dtypes.is_complex(dtype):
        if dtypes.is_bool(dtype):
            return w.fill("x != 0", x=x)
        real = dtype == dtypes.real_dtype(x.dtype)
        return w.fill("tf.math.real(x)" if real else "tf.cast(tf.math.real(x), dtype)", x=x, dtype=dtype)
    if dtypes.is_floating(x.dtype) and dtypes.is_integer(dtype) and (dtype.itemsize < 4 or dtype == dtypes.uint32):
        wide = dtypes.int64 if dtype == dtypes.uint32 else dtypes.int32
        return w.fill("tf.cast(tf.cast(x, wide), dtype)", x=x, wide=wide, dtype=dtype)  # wraps
    if dtype in dtypes.FLOAT8 and not dtypes.is_floating(x.dtype):
        # TensorFlow has no kernel for this dtype
        return w.fill("tf.cast(tf.cast(x, tf.float32), dtype)", x=x, dtype=dtype)
    return w.fill("tf.cast(x, dtype)", x=x, dtype=dtype)


def _angle(w: Writing, x: Var) -> ast.expr:
    if dtypes.is_complex(x.dtype):
        return w.fill("tf.math.angle(x)", x=x)
    return w.fill("tf.where(tf.math.is_nan(x), x, math.pi * tf.cast(x < 0, dtype))", x=x, dtype=x.dtype)


def _unsigned_too(template: str, unsigned: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Any, y: Any) -> ast.expr:
        if rules.dtype_of(x, y) == dtypes.uint64:
            return w.fill(unsigned, x=x, y=y)
        return in_other_dtype(_typed(template), {**AS_FLOAT32, **AS_INT32})(w, x=x, y=y)

    return rule


_FLOAT32_ONLY = ("asin", "acos", "atan", "asinh", "acosh", "atanh", "sinh", "cosh", "tan", "sin", "cos", "tanh", "exp",
                 "sqrt")  # fmt: skip


RULES: dict[str, Rule] = {
    **rules.infix(),
    **{name: in_float32(f"tf.{name}(x)") for name in _FLOAT32_ONLY},
    **{name: in_float32(f"tf.math.{name}(x)")
       for name in ("expm1", "log", "log1p", "rsqrt", "erfc", "lgamma", "digamma")},
    "abs": lambda w, x: w(x) if x.dtype.kind == "u" else w.fill("tf.abs(x)", x=x),
    "sign": lambda w, x: w.fill("tf.cast(x != 0, dtype)" if x.dtype.kind == "u" else "tf.sign(x)", x=x, dtype=x.dtype),
    "square": "tf.square(x)",
    "ceil": "tf.math.ceil(x)",
    "floor": "tf.floor(x)",
    "round": "tf.round(x)",
    "trunc": "trunc(x)",
    "exp2": in_float32(lambda w, x: w.fill("tf.constant(2, dtype) ** x", x=x, dtype=w.call_outcome().dtype)
                  if w.call_outcome().dtype not in (dtypes.float32, *NARROW_FLOATS) else w.fill("2.0 ** x", x=x)),
    "log2": in_float32("log2(x)"),
    "log10": in_float32("tf.math.log(x) / math.log(10)"),
    "sigmoid": in_float32("tf.sigmoid(x)"),
    "softplus": in_float32("tf.nn.softplus(x)"),
    "erf": lambda w, x: w.fill("erf(x)", x=x) if x.dtype == dtypes.float64 else in_float32("tf.math.erf(x)")(w, x=x),
    "erf_inv": in_float32("erf_inv(x)"),
    "bessel_i0e": in_float32("tf.math.bessel_i0e(x)"),
    "bessel_i1e": in_float32("tf.math.bessel_i1e(x)"),
    "negative": lambda w, x: w.fill("tf.zeros_like(x) - x" if x.dtype.kind == "u" else "-x", x=x),
    "reciprocal": "1 / x",
    "bitwise_invert": lambda w, x: w.fill("~x" if x.dtype == np.bool_ else "tf.bitwise.invert(x)", x=x),
    "logical_not": "~x",
    "real": "tf.math.real(x)",
    "imag": "tf.math.imag(x)",
    "conj": "tf.math.conj(x)",
    "isnan": _of_parts("is_nan", "|"),
    "isinf": _of_parts("is_inf", "|"),
    "isfinite": _of_parts("is_finite", "&"),
    "signbit": "signbit(x)",
    "angle": _angle,
    "fmod": _unsigned_too("tf.truncatemod(x, y)", "x % y"),
    "remainder": in_other_dtype("x % y", {**AS_FLOAT32, **AS_INT32}),
    "integer_floor_divide": in_other_dtype("x // y", AS_INT32),
    "pow": lambda w, x, y: (
        in_float32("x ** y")(w, x=x, y=y) if rules.dtype_of(x, y) in NARROW_FLOATS else _pow(w, x, y)),
    "atan2": in_float32(_typed("tf.atan2(x, y)")),
    "nextafter": "nextafter(x, y)",
    "igamma": in_float32(_typed("tf.math.igamma(x, y)")),
    "igammac": in_float32(_typed("tf.math.igammac(x, y)")),
    "zeta": in_float32(_typed("tf.math.zeta(x, y)")),
    "maximum": _extreme_of_two("tf.maximum(x, y)", "x | y"),
    "minimum": _extreme_of_two("tf.minimum(x, y)", "x & y"),
    **{name: _compared(sign) for name, sign in
       {"less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">="}.items()},
    "bitwise_left_shift": _shift("left_shift"),
    "bitwise_right_shift": _shift("right_shift"),
    "clip": _clip,
    "where": _typed("tf.where(condition, x, y)"),
    "complex": "tf.complex(real, imag)",
    "astype": _astype,
    "bitcast": "bitcast(x, dtype)",
}  # fmt: skip
