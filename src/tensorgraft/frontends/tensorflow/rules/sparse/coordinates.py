"""Sparse tensors (indices, values, shape) and ragged ones (splits, values), where a program meets them on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.indexing import gather_nd, scattered
from tensorgraft.frontends.tensorflow.rules.arrays.segments import segment_total
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.mathematics.elementwise import div
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# ---- sparse and dense ------------------------------------------------------------------------------------------------


@rule("SparseToDense", known=("shape",))
def sparse_to_dense(
    xp: Backend, indices: Array, shape: np.ndarray, values: Array, default: Array, *, validate_indices: bool = True
) -> Array:
    extents = ints(shape)
    indices = xp.reshape(indices, (xp.size(indices) // max(len(extents), 1), len(extents)))
    return scattered(xp, xp.broadcast_to(default, extents), indices, values, "set")


@rule("SparseTensorDenseMatMul", known=("shape",))
def sparse_dense_matmul(
    xp: Backend, indices: Array, values: Array, shape: np.ndarray, b: Array, *, adjoint_a: bool = False,
    adjoint_b: bool = False,
) -> Array:  # fmt: skip
    n, _ = ints(shape)[::-1] if adjoint_a else ints(shape)
    rows, columns = xp.unstack(indices, 1)
    if adjoint_a:
        rows, columns = columns, rows
        values = xp.conj(values) if dtypes.is_complex(xp.dtype_of(values)) else values
    if adjoint_b:
        b = xp.matrix_transpose(b)
        b = xp.conj(b) if dtypes.is_complex(xp.dtype_of(b)) else b
    parts = xp.multiply(xp.expand_dims(values, -1), xp.take(b, columns, 0))
    return segment_total(xp, parts, rows, n)


@rule("SparseTensorDenseAdd", known=("shape",))
def sparse_dense_add(xp: Backend, indices: Array, values: Array, shape: np.ndarray, b: Array) -> Array:
    return scattered(xp, b, indices, values, "add")


def _with_dense(fn: Callable[[Backend, Array, Array], Array]) -> Any:
    def apply(xp: Backend, indices: Array, values: Array, shape: np.ndarray, b: Array) -> Array:
        return fn(xp, values, gather_nd(xp, xp.broadcast_to(b, ints(shape)), indices))

    return apply


rule("SparseDenseCwiseAdd", known=("shape",))(_with_dense(lambda xp, x, y: xp.add(x, y)))
rule("SparseDenseCwiseMul", known=("shape",))(_with_dense(lambda xp, x, y: xp.multiply(x, y)))
rule("SparseDenseCwiseDiv", known=("shape",))(_with_dense(div))
