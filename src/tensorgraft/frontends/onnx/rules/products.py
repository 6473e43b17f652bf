"""Rules for products of matrices, exact ones of integers among them."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.quantized import along, requantized, shifted
from tensorgraft.hub import contraction, dtypes

rule("Einsum")(lambda xp, *inputs, equation: contraction.einsum(xp, equation, *inputs))


@rule("Gemm")
def gemm(
    xp: Any, a: Any, b: Any, c: Any = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0,
    broadcast: int = 1,
) -> Any:  # fmt: skip
    a = xp.matrix_transpose(a) if transA else a
    is_layer = alpha == beta == 1 and transB and (c is None or len(c.shape) == 1)
    if is_layer and dtypes.is_floating(xp.dtype_of(a)):
        return xp.linear(a, b, c)
    y = xp.matmul(a, xp.matrix_transpose(b) if transB else b)
    y = y if alpha == 1 else _scaled(xp, y, alpha)
    if c is None or beta == 0:
        return y
    return xp.add(y, c if beta == 1 else _scaled(xp, c, beta))


def _scaled(xp: Any, x: Any, factor: float) -> Any:
    return xp.multiply(x, factor if dtypes.is_inexact(xp.dtype_of(x)) else int(factor))


@rule("Det")
def det(xp: Any, x: Any) -> Any:
    lu, pivots, _ = xp.lu(x)
    product = xp.prod(xp.diagonal(lu), -1)
    is_odd = xp.equal(xp.remainder(xp.parity(pivots), 2), 1)
    return xp.where(is_odd, xp.negative(product), product)


@rule("MatMulInteger")
def matmul_integer(xp: Any, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    return xp.matmul(shifted(xp, a, a_zero, -2), shifted(xp, b, b_zero, -1))


@rule("QLinearMatMul", state=("a_scale", "b_scale", "y_scale"))
def qlinear_matmul(
    xp: Any, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    product = xp.matmul(shifted(xp, a, a_zero, -2), shifted(xp, b, b_zero, -1))
    rank = len(product.shape)
    a_scale, b_scale = along(xp, a_scale, -2, rank), along(xp, b_scale, -1, rank)
    return requantized(xp, product, a_scale, b_scale, y_scale, y_zero)
