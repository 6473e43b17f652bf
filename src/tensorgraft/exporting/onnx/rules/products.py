"""Products and contractions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.exporting.onnx.rule import GraphBuilder, rule
from tensorgraft.exporting.onnx.rules.elementwise import computed_dtype
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import Var


def _operands(g: GraphBuilder, arrays: Sequence[Var], dtype: Any) -> tuple[list[str], np.dtype, np.dtype]:
    """Return the operands of a product, the dtype in which it is computed, and that of the result."""
    own = np.dtype(arrays[0].dtype)
    out = own if dtype is None else np.dtype(dtype)
    wide = dtypes.int32 if out.kind == "b" else computed_dtype(out)
    return [g(x) if x.dtype == wide else g.cast(x, wide) for x in arrays], wide, out


def _as_result(g: GraphBuilder, y: str, wide: np.dtype, out: np.dtype) -> str:
    return y if wide == out else g.cast(y, out)


@rule("matmul")
def matmul(g: GraphBuilder, a: Var, b: Var, dtype: Any = None) -> str:
    (x, y), wide, out = _operands(g, (a, b), dtype)
    return _as_result(g, g.op("MatMul", x, y), wide, out)


@rule("linear")
def linear(g: GraphBuilder, x: Var, weight: Var, bias: Var | None = None) -> str:
    if weight.ndim == 1:
        y = g.op("MatMul", x, weight)
    elif x.ndim == 2 and x.dtype.kind == "f":
        return str(g.op("Gemm", x, weight, bias, transB=1))
    else:
        y = g.op("MatMul", x, g.op("Transpose", weight, perm=[1, 0]))
    return str(y) if bias is None else str(g.op("Add", y, bias))


@rule("dot_general")
def dot_general(
    g: GraphBuilder, a: Var, b: Var, contract: Any, batch: Any = ((), ()), dtype: Any = None
) -> str:  # fmt: skip
    (x, y), wide, out = _operands(g, (a, b), dtype)
    (ca, cb), (ba, bb) = contract, batch
    free_a = [i for i in range(a.ndim) if i not in (*ca, *ba)]
    free_b = [i for i in range(b.ndim) if i not in (*cb, *bb)]
    if len(ca) == 1 and len(free_a) >= 1 and len(free_b) == 1 and (len(free_a) == 1 or not ba):
        x = _permuted(g, x, [*ba, *free_a, *ca])
        y = _permuted(g, y, [*bb, *cb, *free_b])
        return _as_result(g, g.op("MatMul", x, y), wide, out)
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    of_a, of_b = [""] * a.ndim, [""] * b.ndim
    for i, j in (*zip(ba, bb, strict=True), *zip(ca, cb, strict=True)):
        of_a[i] = of_b[j] = next(letters)
    for names, free in ((of_a, free_a), (of_b, free_b)):
        for i in free:
            names[i] = next(letters)
    result = "".join([*(of_a[i] for i in ba), *(of_a[i] for i in free_a), *(of_b[i] for i in free_b)])
    return _as_result(g, g.op("Einsum", x, y, equation=f"{''.join(of_a)},{''.join(of_b)}->{result}"), wide, out)


def _permuted(g: GraphBuilder, x: str, axes: list[int]) -> str:
    return x if axes == [*range(len(axes))] else str(g.op("Transpose", x, perm=axes))


@rule("einsum")
def einsum(g: GraphBuilder, equation: str, operands: Sequence[Var]) -> str:
    names, wide, out = _operands(g, operands, None)
    return _as_result(g, g.op("Einsum", *names, equation=equation), wide, out)
