"""Layers of neural networks in TensorFlow."""

from __future__ import annotations

import ast
from typing import Any

from tensorgraft.codegen.targets import Rule, Var, Writing, shared_words
from tensorgraft.codegen.targets.tensorflow.common import in_float32
from tensorgraft.codegen.targets.tensorflow.indexing import indices_of
from tensorgraft.hub import dtypes


def _linear(w: Writing, x: Var, weight: Var, bias: Any = None) -> ast.expr:
    product = "tf.matmul(x, weight, transpose_b=True)" if x.ndim > 1 else "tf.linalg.matvec(weight, x)"
    return w.fill(product if bias is None else f"{product} + bias", x=x, weight=weight, bias=bias)


def _embedding(w: Writing, weight: Any, indices: Any, padding: int | None = None) -> ast.expr:
    template = "tf.gather(x, i)" if padding is None else "padded_embedding(x, i, padding)"
    return w.fill(template, x=weight, i=indices_of(w, indices), padding=padding)


def _gelu(w: Writing, x: Var, approximate: bool = False) -> ast.expr:
    if approximate and x.dtype == dtypes.float64:  # TensorFlow's has constants of single precision
        return w.fill("gelu_tanh(x)", x=x)
    return in_float32(f"tf.nn.gelu(x, approximate={approximate})")(w, x=x)


def _leaky_relu(w: Writing, x: Var, slope: float = 0.01) -> ast.expr:
    if x.dtype == dtypes.float64:
        return w.fill("tf.where(x > 0, x, slope * x)", x=x, slope=slope)
    return w.fill("tf.nn.leaky_relu(x, alpha=slope)", x=x, slope=slope)


RULES: dict[str, Rule] = {
    "resize": in_float32(shared_words.resize),
    "dropout": lambda w, x, key, rate: w.fill(
        "tf.nn.dropout(x, rate)" if key is None else "dropout(x, key, rate)", x=x, key=key, rate=rate),
    "linear": _linear,
    "relu": "tf.nn.relu(x)",
    "silu": in_float32("tf.nn.silu(x)"),
    "gelu": _gelu,
    "leaky_relu": _leaky_relu,
    "elu": lambda w, x, alpha=1.0: in_float32("tf.nn.elu(x)" if alpha == 1 else "elu(x, alpha)")(w, x=x, alpha=alpha),
    "selu": in_float32("tf.nn.selu(x)"),
    "mish": in_float32("x * tf.tanh(tf.nn.softplus(x))"),
    "log_sigmoid": in_float32("tf.math.log_sigmoid(x)"),
    "relu6": "tf.nn.relu6(x)",
    "hard_sigmoid": "tf.nn.relu6(x + 3) / 6",
    "hard_silu": "x * tf.nn.relu6(x + 3) / 6",
    "embedding": _embedding,
    "stop_gradient": "tf.stop_gradient(x)",
}  # fmt: skip
