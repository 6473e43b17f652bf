"""Products, factorisations, windows and Fourier transforms in TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules, shared_words
from tensorgraft.codegen.targets.tensorflow.common import AS_FLOAT32, AS_INT32, in_other_dtype
from tensorgraft.hub import dtypes

_OF_PRODUCTS = {dtypes.bool_: dtypes.float32, **AS_FLOAT32, **AS_INT32, dtypes.uint64: dtypes.int64}


def _product(w: Writing, template: str, a: Var, b: Var, dtype: np.dtype | None, **fields: Any) -> ast.expr:
    out = a.dtype if dtype is None else dtype
    wide = _OF_PRODUCTS.get(out, out)
    left, right = (w(x) if x.dtype == wide else w.fill("tf.cast(x, dtype)", x=x, dtype=wide) for x in (a, b))
    y = w.fill(template, a=left, b=right, **fields)
    if out == dtypes.bool_:
        return w.fill("y != 0", y=y)
    return y if wide == out else w.fill("tf.cast(y, dtype)", y=y, dtype=out)


def _matmul(w: Writing, a: Var, b: Var, dtype: np.dtype | None = None) -> ast.expr:
    if a.ndim > 1 and b.ndim > 1:
        return _product(w, "a @ b", a, b, dtype)
    if b.ndim == 1:
        return _product(w, "tf.tensordot(a, b, 1)", a, b, dtype)
    return _product(w, "tf.linalg.matvec(b, a, transpose_a=True)", a, b, dtype)


_AS_MATMUL = {
    "a @ b": "a @ b",
    **dict.fromkeys(("a @ b.T", "a @ b.mT"), "tf.matmul(a, b, transpose_b=True)"),
    **dict.fromkeys(("a.T @ b", "a.mT @ b"), "tf.matmul(a, b, transpose_a=True)"),
    "a.mT @ b.mT": "tf.matmul(a, b, transpose_a=True, transpose_b=True)",
}


def _dot_general(w: Writing, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> ast.expr:
    sign, letters = rules.contraction(a, b, contract, batch)
    if sign is not None and a.ndim > 1 and b.ndim > 1:
        return _product(w, _AS_MATMUL[sign], a, b, dtype)
    if not any(batch):
        axes = tuple(tuple(side) for side in contract)
        return _product(w, "tf.tensordot(a, b, axes)", a, b, dtype, axes=axes)
    return _product(w, "tf.einsum(letters, a, b)", a, b, dtype, letters=letters)


def _conv_channels_last(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = ((0, 0),),
    dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    return w.fill(
        f"conv_channels_last(x, weight, {'' if bias is None else 'bias, '}stride=stride, padding=padding,"
        " dilation=dilation, groups=groups)",
        x=x, weight=weight, bias=bias, stride=_short(stride, 1), padding=_short(padding, 0),
        dilation=_short(dilation, 1), groups=None if groups == 1 else groups,
    )  # fmt: skip


def _short(values: Any, default: Any) -> Any:
    """Return (2, 2) as 2, ((1, 1), (1, 1)) as 1, and None for the default."""
    pairs = tuple(v[0] if isinstance(v, tuple) and rules.equal_sizes(v[0], v[1]) else v for v in values)
    if all(not isinstance(v, tuple) and rules.equal_sizes(v, default) for v in pairs):
        return None
    return pairs[0] if all(rules.equal_sizes(v, pairs[0]) for v in pairs) and not isinstance(pairs[0], tuple) else pairs


def _reduce_window(
    w: Writing, x: Var, kind: str, window: Any, strides: Any, padding: Any, window_dilation: Any
) -> ast.expr:
    def windowed(w: Writing, x: Any) -> ast.expr:
        return w.fill(
            f"reduce_window(tf.reduce_{kind}, x, initial, window, strides, padding, dilation=dilation)",
            x=x, initial=rules.identity(kind, dtype), window=tuple(window), strides=tuple(strides),
            padding=tuple(map(tuple, padding)), dilation=rules.gaps(window_dilation),
        )  # fmt: skip

    dtype = x.dtype
    return in_other_dtype(windowed, AS_FLOAT32 if kind == "sum" else {})(w, x=x)


def _transform(name: str) -> Callable[..., ast.expr]:
    def rule(w: Writing, x: Var, axis: int, n: Any = None) -> ast.expr:
        length = "" if n is None else ", [n]"
        if axis % x.ndim == x.ndim - 1:
            return w.fill(f"tf.signal.{name}(x{length})", x=x, n=n)
        swapped_axes = list(range(x.ndim))
        swapped_axes[axis], swapped_axes[-1] = swapped_axes[-1], swapped_axes[axis]
        return w.fill(f"tf.transpose(tf.signal.{name}(tf.transpose(x, axes){length}), axes)", x=x, n=n,
                      axes=tuple(swapped_axes))  # fmt: skip

    return rule


def _eigh(w: Writing, x: Var, lower: bool = True) -> ast.expr:
    triangle = w(x) if lower else w.fill("tf.linalg.adjoint(x)", x=x)
    return w.fill("eigh(x)" if dtypes.is_complex(x.dtype) else "tf.linalg.eigh(x)", x=triangle)


RULES: dict[str, Rule] = {
    "matmul": _matmul,
    "dot_general": _dot_general,
    "cholesky": "tf.linalg.cholesky(x)",
    "qr": "tf.linalg.qr(x, full_matrices=full)",
    "svd": lambda w, x, full=False: w.fill("svd(x, full_matrices=full)", x=x, full=full or None),
    "svdvals": "tf.linalg.svd(x, compute_uv=False)",
    "eigh": _eigh,
    "eig": "tf.linalg.eig(x)",
    "lu": "lu(x)",
    "triangular_solve": shared_words.triangular_solve,
    "householder_product": "householder_product(a, tau)",
    "solve": "tf.linalg.solve(a, b)",
    "inv": "tf.linalg.inv(x)",
    "convolution": shared_words.convolution,
    "reduce_window": _reduce_window,
    "fft": _transform("fft"),
    "ifft": _transform("ifft"),
    "rfft": _transform("rfft"),
    "irfft": _transform("irfft"),
    "conv_channels_last": in_other_dtype(_conv_channels_last, AS_FLOAT32),
    "einsum": shared_words.einsum("tf.einsum"),
}  # fmt: skip
