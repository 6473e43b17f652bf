"""Idioms of TensorFlow's layers: products between reshapes, and normalisation as `tf.nn` writes it out."""

from __future__ import annotations

import math
from typing import Any

from tensorgraft.codegen.simplification.idioms import _is_number, _last, _of_last
from tensorgraft.codegen.simplification.rewriting import New, Rewriting, Rule, bound, idiom, table
from tensorgraft.hub.recorded.block import Call, Var

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def product_of_rows(state: Rewriting, call: Call) -> New | None:
    """Remove the reshapes around a product of matrices: reshape(x, (b t, k)) @ w as (b, t, n) is x @ w, or an einsum if
    w (k, h, d) was reshaped, too."""
    product = bound(call)
    if call.method == "reshape":
        inner = state.made_by(product["x"], "matmul")
        if inner is None or state.uses[product["x"]] != 1:
            return None
        product = inner
    a, b, shape = product["a"], product["b"], call.results.shape
    if type(a) is not Var or type(b) is not Var or b.ndim != 2 or product.get("dtype") not in (None, a.dtype):
        return None
    x, w = _before_reshape(state, a), _before_reshape(state, b)
    for left, right in ((x, b), (x, w), (a, w)):
        if left is a and right is b and call.method == "matmul":
            continue
        for m in range(1, min(left.ndim, right.ndim + 1)):
            contracted = left.shape[-m:]
            if contracted != right.shape[:m] or math.prod(contracted) != b.shape[0]:
                continue
            if shape != left.shape[:-m] + right.shape[m:] or left.ndim == m:
                continue
            if m == 1 and right.ndim == 2:
                return New("matmul", {"a": left, "b": right})
            letters = _LETTERS[: left.ndim]
            new = _LETTERS[left.ndim : left.ndim + right.ndim - m]
            equation = f"{letters},{letters[-m:]}{new}->{letters[:-m]}{new}"
            return New("einsum", {"equation": equation, "operands": (left, right)})
    return None


def _before_reshape(state: Rewriting, x: Var) -> Var:
    inner = state.made_by(x, "reshape")
    return x if inner is None else inner["x"]


def _normal(m: dict[str, Any]) -> bool:
    return _is_number(m) and _last(m) and all(_of_last(v)(m) for v in ("w", "b"))


_SCALE = "rsqrt(add(mean(square(subtract(x, stop_gradient((m := mean(x, a, True))))), a, True), e))"

RULES: dict[str, list[Rule]] = table(
    idiom(
        "layer_norm(x, w, b, axes=n, eps=e)",
        *(
            f"add(multiply(x, (s := multiply({_SCALE}, w))), {shift})"
            for shift in ("subtract(b, multiply(m, s))", "add(multiply(negative(m), s), b)")
        ),
        when=_normal,
        sole_use=False,
    )
)
for _method in ("reshape", "matmul"):
    RULES.setdefault(_method, []).append(product_of_rows)
