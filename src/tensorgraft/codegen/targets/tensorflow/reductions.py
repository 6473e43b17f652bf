"""Reductions and running reductions in TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing
from tensorgraft.codegen.targets.tensorflow.common import (
    AS_FLOAT32,
    AS_INT32,
    NARROW_FLOATS,
    in_float32,
    in_other_dtype,
)
from tensorgraft.hub import dtypes


def _reduced(name: str, of_bool: str = "") -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: Any = None, keepdims: bool = False) -> ast.expr:
        if axis == ():
            return w(x)
        if of_bool and x.dtype == np.bool_:
            return w.fill(f"tf.reduce_{of_bool}(x, axis=axis, keepdims=keepdims)", x=x, axis=axis,
                          keepdims=keepdims or None)  # fmt: skip
        table = {} if name in ("max", "min", "any", "all") else AS_FLOAT32
        return in_other_dtype(f"tf.reduce_{name}(x, axis=axis, keepdims=keepdims)", table)(
            w, x=x, axis=axis, keepdims=keepdims or None
        )

    return rule


def _var(w: Writing, x: Var, axis: Any = None, keepdims: bool = False, correction: Any = 0) -> ast.expr:
    if axis == ():
        return w.fill("tf.abs(x - x)", x=x)
    if correction == 0 and x.dtype not in NARROW_FLOATS:
        return w.fill("tf.math.reduce_variance(x, axis=axis, keepdims=keepdims)", x=x, axis=axis,
                      keepdims=keepdims or None)  # fmt: skip
    return in_float32("variance(x, axis=axis, keepdims=keepdims, correction=correction)")(
        w, x=x, axis=axis, keepdims=keepdims or None, correction=correction
    )


def _position(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int, keepdims: bool = False) -> ast.expr:
        if not x.ndim:
            return w.fill("tf.constant(0, tf.int64)")
        if x.dtype == np.bool_:
            at = w.fill(f"tf.{name}(tf.cast(x, tf.uint8), axis=axis)", x=x, axis=axis)
        elif dtypes.is_floating(x.dtype):
            at = w.fill(f"{name}(x, axis=axis)", x=x, axis=axis)
        else:
            at = in_other_dtype(
                f"tf.{name}(x, axis=axis)", dict.fromkeys((dtypes.uint16, dtypes.uint32), dtypes.int64)
            )(w, x=x, axis=axis)
        return w.fill("tf.expand_dims(at, axis)", at=at, axis=axis) if keepdims else at

    return rule


def _running(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int) -> ast.expr:
        if x.dtype == np.bool_:
            return w.fill(f"tf.cast(running({name}, tf.cast(x, tf.uint8), axis), tf.bool)", x=x, axis=axis)
        return w.fill(f"running({name}, x, axis)", x=x, axis=axis)

    return rule


RULES: dict[str, Rule] = {
    "sum": _reduced("sum"),
    "prod": _reduced("prod"),
    "max": _reduced("max", "any"),
    "min": _reduced("min", "all"),
    "any": _reduced("any"),
    "all": _reduced("all"),
    "mean": _reduced("mean"),
    "var": _var,
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "cumsum": in_other_dtype("tf.cumsum(x, axis=axis)", {**AS_FLOAT32, **AS_INT32, dtypes.uint64: dtypes.int64}),
    "cumprod": in_other_dtype(
        "tf.math.cumprod(x, axis=axis)", {**AS_FLOAT32, **AS_INT32, dtypes.uint64: dtypes.int64}
    ),
    "cummax": _running("tf.maximum"),
    "cummin": _running("tf.minimum"),
    "cumlogsumexp": in_float32("tf.math.cumulative_logsumexp(x, axis=axis)"),
    "logsumexp": lambda w, x, axis=None, keepdims=False: w(x) if axis == () else in_float32(
        "tf.reduce_logsumexp(x, axis=axis, keepdims=keepdims)")(w, x=x, axis=axis, keepdims=keepdims or None),
    "softmax": in_float32("tf.nn.softmax(x, axis=axis)"),
    "log_softmax": in_float32("tf.nn.log_softmax(x, axis=axis)"),
}  # fmt: skip
