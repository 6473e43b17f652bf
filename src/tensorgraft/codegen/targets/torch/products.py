"""Products, factorisations, windows and Fourier transforms in PyTorch."""

from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np

from tensorgraft.codegen.targets import Rule, Var, Writing, rules, shared_words
from tensorgraft.codegen.targets.torch.shapes import pad
from tensorgraft.hub import dtypes


def _product(w: Writing, template: str, a: Var, b: Var, dtype: np.dtype | None, **fields: Any) -> ast.expr:
    out = a.dtype if dtype is None else dtype
    wide = dtypes.float32 if out in (dtypes.bool_, dtypes.float16) else out
    left, right = (w(x) if x.dtype == wide else w.fill("x.to(dtype)", x=x, dtype=wide) for x in (a, b))
    y = w.fill(template, a=left, b=right, **fields)
    if out == dtypes.bool_:
        return w.fill("y != 0", y=y)
    return y if wide == out else w.fill("y.to(dtype)", y=y, dtype=out)


def _matmul(w: Writing, a: Var, b: Var, dtype: np.dtype | None = None) -> ast.expr:
    return _product(w, "a @ b", a, b, dtype)


def _dot_general(w: Writing, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None) -> ast.expr:
    sign, letters = rules.contraction(a, b, contract, batch)
    if sign is not None:
        return _product(w, sign, a, b, dtype)
    return _product(w, "torch.einsum(letters, a, b)", a, b, dtype, letters=letters)


def _qr(w: Writing, x: Var, full: bool = False) -> ast.expr:
    return w.fill('torch.linalg.qr(x, mode="complete")' if full else "torch.linalg.qr(x)", x=x)


def _triangular_solve(
    w: Writing, a: Var, b: Var, lower: bool, left: bool = True, transpose: bool = False, adjoint: bool = False,
    unit_diagonal: bool = False,
) -> ast.expr:  # fmt: skip
    swapped = transpose or adjoint
    return w.fill(
        "torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unit)",
        a=w.fill("a.mH" if adjoint else "a.mT", a=a) if swapped else a, b=b, upper=lower if swapped else not lower,
        left=None if left else False, unit=unit_diagonal or None,
    )  # fmt: skip


def _single(v: Any) -> Any:
    """Return (2, 2) as 2."""
    return v[0] if len(set(v)) == 1 else tuple(v)


def _non_default(usual: int, v: Any) -> Any:
    return None if all(rules.equal_sizes(x, usual) for x in v) else _single(v)


def _symmetric(padding: Any) -> bool:
    return all(rules.equal_sizes(low, high) and low >= 0 for low, high in padding)


def _convolution(
    to: Writing, x: Var, w: Var, strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any, groups: int = 1,
    batch_groups: int = 1,
) -> ast.expr:  # fmt: skip
    n = len(tuple(strides))
    known = 1 <= n <= 3 and batch_groups == 1 and all(d == 1 for d in lhs_dilation) and dtypes.is_floating(x.dtype)
    known = known and not rules.is_empty(x) and not rules.is_empty(w) and not rules.is_empty(to.call_outcome())
    if known:
        return _conv(to, x, w, None, tuple(strides), tuple(map(tuple, padding)), tuple(rhs_dilation), groups)
    return shared_words.convolution(to, x, w, strides, padding, lhs_dilation, rhs_dilation, groups, batch_groups)


def _conv(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = ((0, 0),),
    dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    n = len(stride)
    narrow = x.dtype == dtypes.float16
    symmetric = None
    if _symmetric(padding):
        symmetric = _non_default(0, [low for low, _ in padding])
    else:
        x = pad(w, x, 0, [(0, 0, 0), (0, 0, 0), *((*p, 0) for p in padding)])
    if narrow:
        x, weight, bias = (None if v is None else w.fill("x.float()", x=v) for v in (x, weight, bias))
    out = w.fill(
        f"F.conv{n}d(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)" if bias is not
        None else f"F.conv{n}d(x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)",
        x=x, weight=weight, bias=bias, stride=_non_default(1, stride), padding=symmetric,
        dilation=_non_default(1, dilation), groups=None if groups == 1 else groups,
    )  # fmt: skip
    return w.fill("y.half()", y=out) if narrow else out


def _conv_transpose(
    w: Writing, x: Any, weight: Any, bias: Any = None, stride: Any = (1,), padding: Any = (0,),
    output_padding: Any = (0,), dilation: Any = (1,), groups: int = 1,
) -> ast.expr:  # fmt: skip
    operands = "x, weight" if bias is None else "x, weight, bias"
    return w.fill(
        f"F.conv_transpose{len(stride)}d({operands}, stride=stride, padding=padding, output_padding=extra,"
        " groups=groups, dilation=dilation)",
        x=x, weight=weight, bias=bias, stride=_non_default(1, stride), padding=_non_default(0, padding),
        extra=_non_default(0, output_padding), dilation=_non_default(1, dilation),
        groups=None if groups == 1 else groups,
    )  # fmt: skip


def _pool(kind: str) -> Rule:
    """F.max_pool2d and the like take padding on both sides, of no more than half a window."""

    def rule(
        w: Writing, x: Var, window: Any, stride: Any, padding: Any = ((0, 0),), dilation: Any = None,
        count_padding: bool = True,
    ) -> ast.expr:  # fmt: skip
        n, pads = len(window), tuple(padding) if len(padding) == len(window) else tuple(padding) * len(window)
        is_supported = _symmetric(pads) and all(2 * low <= k for (low, _), k in zip(pads, window, strict=True))
        if not is_supported or n > 3 or x.ndim not in (n + 1, n + 2) or not dtypes.is_floating(x.dtype):
            unit_dims = (1,) * (x.ndim - n)
            where = {"window": unit_dims + tuple(window), "stride": unit_dims + tuple(stride)}
            where["padding"] = ((0, 0),) * len(unit_dims) + pads
            if kind == "max":
                gaps = None if dilation is None else unit_dims + tuple(dilation)
                template = "reduce_window(torch.amax, x, least, window, stride, padding, dilation=gaps)"
                return w.fill(template, x=x, least=rules.identity("max", x.dtype), gaps=gaps, **where)
            total = "reduce_window(torch.sum, {}, 0, window, stride, padding)"
            count = str(math.prod(window)) if count_padding else total.format("torch.ones_like(x)")
            return w.fill(f"{total.format('x')} / {count}", x=x, **where)
        return w.fill(
            f"F.{kind}_pool{n}d(x, window, stride=stride, padding=padding,"
            f" {'dilation=dilation' if kind == 'max' else 'count_include_pad=counted'})",
            x=x, window=_single(window),
            stride=None if rules.equal_sizes(tuple(stride), tuple(window)) else _single(stride),
            padding=_non_default(0, [low for low, _ in pads]),
            dilation=None if dilation is None else _non_default(1, dilation),
            counted=None if count_padding or not any(low for low, _ in pads) else False,
        )  # fmt: skip

    return rule


RULES: dict[str, Rule] = {
    "matmul": _matmul,
    "dot_general": _dot_general,
    "cholesky": "torch.linalg.cholesky(x)",
    "qr": _qr,
    "svd": lambda w, x, full=False: w.fill("torch.linalg.svd(x, full_matrices=full)", x=x, full=full),
    "svdvals": "torch.linalg.svdvals(x)",
    "eigh": lambda w, x, lower=True: w.fill(
        "torch.linalg.eigh(x)" if lower else 'torch.linalg.eigh(x, UPLO="U")', x=x),
    "eig": "torch.linalg.eig(x)",
    "lu": "lu(x)",
    "triangular_solve": _triangular_solve,
    "householder_product": "torch.linalg.householder_product(a, tau)",
    "solve": "torch.linalg.solve(a, b)",
    "inv": "torch.linalg.inv(x)",
    "convolution": _convolution,
    "reduce_window": shared_words.reduce_window({"sum": "torch.sum", "max": "torch.amax", "min": "torch.amin"}),
    "fft": "torch.fft.fft(x, dim=axis)",
    "ifft": "torch.fft.ifft(x, dim=axis)",
    "rfft": "torch.fft.rfft(x, dim=axis)",
    "irfft": "torch.fft.irfft(x, n, dim=axis)",
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": _pool("max"),
    "avg_pool": _pool("avg"),
    "einsum": shared_words.einsum("torch.einsum"),
}  # fmt: skip
