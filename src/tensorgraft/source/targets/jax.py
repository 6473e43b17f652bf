"""JAX: functions of `jax.numpy`, `jax.nn` and `jax.lax`."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from tensorgraft.source.targets import Rule, Target, Writing


def _dtype(dtype: np.dtype) -> str:
    return "jnp.bool_" if dtype == np.bool_ else f"jnp.{dtype.name}"


def _linear(w: Writing, x: Any, weight: Any, bias: Any) -> ast.expr:
    return w.fill("x @ weight.T" if bias is None else "x @ weight.T + bias", x=x, weight=weight, bias=bias)


_INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "bitwise_and": "&", "bitwise_or": "|", "equal": "==",
    "not_equal": "!=", "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "matmul": "@",
}  # fmt: skip

WORDS: dict[str, Rule] = {
    **{name: f"x {sign} y" for name, sign in _INFIX.items()},
    "matmul": "a @ b",
    "negative": "-x",
    "exp": "jnp.exp(x)",
    "where": "jnp.where(condition, x, y)",
    "sum": "jnp.sum(x, axis=axis, keepdims=keepdims)",
    "mean": "jnp.mean(x, axis=axis, keepdims=keepdims)",
    "reshape": "x.reshape(*shape)",
    "permute_dims": "x.transpose(*axes)",
    "softmax": "jax.nn.softmax(x, axis=axis)",
    "linear": _linear,
    "relu": "jax.nn.relu(x)",
    "gelu": "jax.nn.gelu(x, approximate=approximate)",
    "embedding": "weight[indices]",
    "stop_gradient": "jax.lax.stop_gradient(x)",
}

TARGET = Target(
    name="jax",
    imports={"jax": "import jax", "jnp": "import jax.numpy as jnp"},
    words=WORDS,
    dtype=_dtype,
    array="jax.Array",
    constant="jnp.array(x, dtype)",
    infinity="jnp.inf",
    nan="jnp.nan",
)
