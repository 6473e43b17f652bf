"""Rules for products of matrices, exact ones of integers among them."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.quantized import quantized, zero_point_of
from tensorgraft.hub import dtypes


@rule("MatMul")
def matmul(xp: Any, a: Any, b: Any) -> Any:
    return xp.matmul(a, b)


@rule("Gemm")
def gemm(
    xp: Any, a: Any, b: Any, c: Any = None, *, alpha: float, beta: float, transA: int, transB: int,
    broadcast: int = 1,
) -> Any:  # fmt: skip
    a = xp.matrix_transpose(a) if transA else a
    if alpha == beta == 1 and transB and c is not None and len(c.shape) == 1 and dtypes.is_floating(xp.dtype_of(a)):
        return xp.linear(a, b, c)
    y = xp.matmul(a, xp.matrix_transpose(b) if transB else b)
    y = y if alpha == 1 else _scaled(xp, y, alpha)
    if c is None or beta == 0:
        return y
    return xp.add(y, c if beta == 1 else _scaled(xp, c, beta))


def _scaled(xp: Any, x: Any, factor: float) -> Any:
    return xp.multiply(x, factor if dtypes.is_inexact(xp.dtype_of(x)) else int(factor))


@rule("Einsum")
def einsum(xp: Any, *inputs: Any, equation: str) -> Any:
    """Contract the operands one after the other."""
    equation = equation.replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    ranks = [len(x.shape) for x in inputs]
    rest = max((r - len(t.replace("...", "")) for r, t in zip(ranks, terms, strict=True) if "..." in t), default=0)
    extra = _unused(equation, rest)
    terms = [_spelled(t, r, extra) for t, r in zip(terms, ranks, strict=True)]
    if arrow:
        result = right.replace("...", extra)
    else:
        letters = "".join(terms)
        result = extra + "".join(sorted(c for c in set(letters) - set(extra) if letters.count(c) == 1))
    term, x = _single(xp, terms[0], inputs[0])
    for i, (other_term, y) in enumerate(zip(terms[1:], inputs[1:], strict=True)):
        later = set(result) | set("".join(terms[i + 2 :]))
        term, x = _contracted(xp, term, x, *_single(xp, other_term, y), later)
    drop = tuple(i for i, c in enumerate(term) if c not in result)
    if drop:
        x, term = xp.sum(x, drop), "".join(c for c in term if c in result)
    return xp.permute_dims(x, tuple(term.index(c) for c in result)) if term != result else x


def _unused(equation: str, count: int) -> str:
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if c not in equation]
    return "".join(free[:count])


def _spelled(term: str, rank: int, extra: str) -> str:
    if "..." not in term:
        return term
    count = rank - len(term.replace("...", ""))
    return term.replace("...", extra[len(extra) - count :])


def _single(xp: Any, term: str, x: Any) -> tuple[str, Any]:
    """Take the diagonal of axes that a term names twice."""
    for c in dict.fromkeys(term):
        while term.count(c) > 1:
            i = term.index(c)
            j = term.index(c, i + 1)
            x = xp.diagonal(xp.moveaxis(xp.moveaxis(x, j, -1), i, -2))
            term = "".join(k for n, k in enumerate(term) if n not in (i, j)) + c
    return term, x


def _contracted(xp: Any, a: str, x: Any, b: str, y: Any, later: set[str]) -> tuple[str, Any]:
    """Return the product of two operands, in which what is not needed later is summed over."""
    shared = [c for c in a if c in b]
    summed = [c for c in shared if c not in later and x.shape[a.index(c)] == y.shape[b.index(c)]]
    batch = [c for c in shared if c not in summed]
    if any(x.shape[a.index(c)] != y.shape[b.index(c)] for c in batch):  # axes of one element broadcast
        for c in batch:
            n = max(x.shape[a.index(c)], y.shape[b.index(c)])
            x = xp.broadcast_to(x, tuple(n if k == c else m for k, m in zip(a, x.shape, strict=True)))
            y = xp.broadcast_to(y, tuple(n if k == c else m for k, m in zip(b, y.shape, strict=True)))
    out = xp.dot_general(
        x, y, ([a.index(c) for c in summed], [b.index(c) for c in summed]),
        ([a.index(c) for c in batch], [b.index(c) for c in batch]),
    )  # fmt: skip
    return "".join([*batch, *(c for c in a if c not in shared), *(c for c in b if c not in shared)]), out


@rule("Det")
def det(xp: Any, x: Any) -> Any:
    lu, pivots, _ = xp.lu(x)
    product = xp.prod(xp.diagonal(lu), -1)
    is_odd = xp.equal(xp.remainder(xp.parity(pivots), 2), 1)
    return xp.where(is_odd, xp.negative(product), product)


@rule("MatMulInteger")
def matmul_integer(xp: Any, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    return xp.matmul(shifted(xp, a, a_zero, -2), shifted(xp, b, b_zero, -1))


def shifted(xp: Any, x: Any, zero: Any, axis: int) -> Any:
    """Return integers less their zero point, which is one number or has one for each row along `axis`, in int32."""
    x = xp.astype(x, dtypes.int32)
    if zero is None:
        return x
    zero = xp.astype(zero, dtypes.int32)
    if len(zero.shape) == 1 and zero.shape[0] > 1:
        shape = [1] * len(x.shape)
        shape[axis] = zero.shape[0]
        zero = xp.reshape(zero, tuple(shape))
    elif len(zero.shape) == 1:
        zero = xp.reshape(zero, ())
    return xp.subtract(x, zero)


@rule(
    "QLinearMatMul",
    state=("a_scale", "b_scale", "y_scale"),
)
def qlinear_matmul(
    xp: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    product = xp.matmul(shifted(xp, a, a_zero, -2), shifted(xp, b, b_zero, -1))
    wide = [xp.astype(s, dtypes.float32) for s in (a_scale, b_scale, y_scale)]
    wide[0] = _along(xp, wide[0], -2, len(product.shape))
    wide[1] = _along(xp, wide[1], -1, len(product.shape))
    real = xp.multiply(xp.astype(product, dtypes.float32), xp.divide(xp.multiply(wide[0], wide[1]), wide[2]))
    return quantized(xp, real, y_zero, zero_point_of(xp, y_zero))


def _along(xp: Any, x: Any, axis: int, rank: int) -> Any:
    if len(x.shape) != 1 or x.shape[0] == 1:
        return xp.reshape(x, ()) if len(x.shape) == 1 else x
    shape = [1] * rank
    shape[axis] = x.shape[0]
    return xp.reshape(x, tuple(shape))
