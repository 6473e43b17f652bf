"""Products of matrices, and Einstein sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import contraction, dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray


@rule("MatMul")
def matmul(xp: Backend, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    return xp.dot_general(a, b, ((0 if transpose_a else 1,), (1 if transpose_b else 0,)))


def adjoint(xp: Any, x: AnyArray) -> AnyArray:
    x = xp.matrix_transpose(x)
    return xp.conj(x) if dtypes.is_complex(xp.dtype_of(x)) else x


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(
    xp: Backend, a: Array, b: Array, *, adj_x: bool = False, adj_y: bool = False, Tout: np.dtype | None = None
) -> Array:
    a = adjoint(xp, a) if adj_x else a
    b = adjoint(xp, b) if adj_y else b
    if Tout is not None:
        a, b = xp.astype(a, Tout), xp.astype(b, Tout)
    batch = np.broadcast_shapes(xp.shape(a)[:-2], xp.shape(b)[:-2])
    n = len(batch)
    a = xp.broadcast_to(a, (*batch, *xp.shape(a)[-2:]))
    b = xp.broadcast_to(b, (*batch, *xp.shape(b)[-2:]))
    return xp.dot_general(a, b, ((n + 1,), (n,)), (tuple(range(n)), tuple(range(n))))


@rule("Einsum")
def einsum(xp: Backend, *operands: Array, equation: str) -> Array:
    return contraction.einsum(xp, equation, *operands)
