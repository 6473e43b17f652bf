"""Matrices and arrays that are given by the places of their numbers, made dense."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.indexing import scattered
from tensorgraft.frontends.tensorflow.rules.shape import ints
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any


@rule("SparseToDense", known=("shape",))
def sparse_to_dense(
    xp: Backend, indices: Array, shape: np.ndarray, values: Array, default: Array, *, validate_indices: bool = True
) -> Array:
    extents = ints(shape)
    places = xp.reshape(indices, (xp.size(indices) // max(len(extents), 1), len(extents)))
    return scattered(xp, xp.broadcast_to(default, extents), places, values, "set")


@rule("SparseTensorDenseMatMul", known=("shape",))
def sparse_dense_matmul(
    xp: Backend,
    indices: Array,
    values: Array,
    shape: np.ndarray,
    b: Array,
    *,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
) -> Array:
    complex_ = dtypes.is_complex(xp.dtype_of(b))
    if adjoint_b:
        b = xp.conj(xp.matrix_transpose(b)) if complex_ else xp.matrix_transpose(b)
    row, column = xp.unstack(xp.astype(indices, dtypes.int64), 1)
    if adjoint_a:
        row, column = column, row
        values = xp.conj(values) if complex_ else values
    terms = xp.multiply(xp.take(b, column, 0), xp.expand_dims(values, 1))
    n = ints(shape)[1 if adjoint_a else 0]
    return scattered(xp, xp.zeros((n, xp.shape(b)[1]), xp.dtype_of(b)), xp.expand_dims(row, 1), terms, "add")
