"""Names of dtypes and rules that several tables of TensorFlow use."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.codegen.targets import Rule, Var, Writing, rules
from tensorgraft.hub import dtypes

NARROW_FLOATS = (dtypes.float16, dtypes.bfloat16)
_KNOWN = (*dtypes.ALL, dtypes.float8_e4m3fn, dtypes.float8_e5m2)
# TensorFlow has few kernels for them
SMALL_INTEGERS = tuple(t for t in dtypes.INTEGER if t not in (dtypes.int32, dtypes.int64))


def dtype_name(dtype: np.dtype) -> str:
    if dtype not in _KNOWN:
        raise NotExpressibleError(f"TensorFlow has no tensors of {dtype}")
    return f"tf.dtypes.experimental.{dtype.name}" if dtype in dtypes.FLOAT8 else f"tf.{dtype.name}"


def unless_float32(dtype: np.dtype) -> Any:
    return None if dtype == dtypes.float32 else dtype


def in_other_dtype(template: Rule, table: dict[np.dtype, np.dtype]) -> Callable[..., ast.expr]:
    """Return a rule that computes in another dtype where the kernel is missing or rough."""

    def rule(w: Writing, **arguments: Any) -> ast.expr:
        dtype = next(v.dtype for v in rules.arrays(arguments))
        wide = table.get(dtype)
        if wide is not None:
            arguments = {
                k: w.fill("tf.cast(x, wide)", x=v, wide=wide) if isinstance(v, Var) and v.dtype == dtype else v
                for k, v in arguments.items()
            }
        expression = (
            w.fill(template, **rules.without_defaults(arguments))
            if isinstance(template, str)
            else template(w, **arguments)
        )
        result_vars = w.call_outcome()
        if wide is None or (isinstance(result_vars, Var) and result_vars.dtype != dtype):
            return expression
        if not isinstance(result_vars, Var):
            return w.fill("tuple([tf.cast(y, dtype) for y in ys])", ys=expression, dtype=dtype)
        return w.fill("tf.cast(y, dtype)", y=expression, dtype=dtype)

    return rule


AS_FLOAT32 = dict.fromkeys(NARROW_FLOATS, dtypes.float32)
AS_INT32 = {t: dtypes.int64 if t.itemsize > 2 else dtypes.int32 for t in SMALL_INTEGERS if t != dtypes.uint64}


def in_float32(template: Rule) -> Callable[..., ast.expr]:
    return in_other_dtype(template, AS_FLOAT32)


def zeros_or_ones(name: str) -> Callable[..., ast.expr]:
    return lambda w, shape, dtype: w.fill(f"tf.{name}(shape, dtype=dtype)", shape=tuple(shape),
                                          dtype=unless_float32(dtype))  # fmt: skip
