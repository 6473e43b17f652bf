"""Distances between rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.reduction import vector_norm
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators


def _differences(xp: Any, x: Array, y: Array) -> Array:
    """Return (..., p, r, m) from (..., p, m) and (..., r, m), batches broadcast."""
    return xp.subtract(xp.expand_dims(x, -2), xp.expand_dims(y, -3))


@kernel("_cdist_forward")
def _cdist(xp: Any, x: Array, y: Array, p: float, compute_mode: int | None = None) -> Array:
    difference = _differences(xp, x, y)
    if not xp.shape(difference)[-1]:
        return xp.zeros(xp.shape(difference)[:-1], xp.dtype_of(difference))
    return vector_norm(xp, difference, p, (xp.ndim(difference) - 1,), False)


@with_operators
def _slope(xp: Any, difference: Value, p: float, distance: Value) -> Value:
    """Return the derivative of the p-norm with respect to each difference; 0 where it has none, as in PyTorch."""
    zero = xp.zeros_like(difference)
    if p == 0:
        return zero
    if p == 1:
        return xp.sign(difference)
    size = abs(difference)
    flat = distance == 0
    if p == math.inf:
        return xp.where(size == distance, xp.sign(difference), zero)
    safe = xp.where(flat, xp.ones_like(distance), distance)
    if p == 2:
        return xp.where(flat, zero, difference / safe)
    powers = xp.where(size == 0, xp.ones_like(size), size) ** (p - 1)
    slope = xp.sign(difference) * powers * safe ** (1 - p)
    return xp.where(flat | (size == 0), zero, slope)


@kernel("_cdist_backward")
def _cdist_backward(xp: Any, grad: Array, x: Array, y: Array, p: float, cdist: Array) -> Array:
    difference = _differences(xp, x, y)
    slope = _slope(xp, difference, p, xp.expand_dims(cdist, -1))
    return _summed_to(xp, xp.sum(xp.multiply(xp.expand_dims(grad, -1), slope), axis=-2), xp.shape(x))


def _summed_to(xp: Any, x: Array, shape: tuple[int, ...]) -> Array:
    """Sum `x` over the axes along which `shape` was broadcast to it: the transpose of broadcasting."""
    lead = xp.ndim(x) - len(shape)
    axes = [a for a, n in enumerate(shape) if n == 1 and xp.shape(x)[lead + a] != 1]
    x = xp.sum(x, axis=(*range(lead), *(lead + a for a in axes)), keepdims=True)
    return xp.reshape(x, shape)


# The whole matrix of distances is twice the work, and XLA fuses it; rows that are taken for each pair it would store.


@kernel("_pdist_forward")
def _pdist(xp: Any, x: Array, p: float = 2) -> Array:
    n = xp.shape(x)[0]
    rows, columns = np.triu_indices(n, 1)
    if not rows.size or not xp.shape(x)[1]:
        return xp.zeros(rows.shape, xp.dtype_of(x))
    return xp.take(xp.reshape(_cdist(xp, x, x, p), (n * n,)), xp.asarray(rows * n + columns), 0)


@kernel("_pdist_backward")
def _pdist_backward(xp: Any, grad: Array, x: Array, p: float, pdist: Array) -> Array:
    n = xp.shape(x)[0]
    if n < 2 or not xp.size(x):
        return xp.zeros_like(x)
    pairs = np.zeros((n, n), np.int64)
    pairs[np.triu_indices(n, 1)] = np.arange(n * (n - 1) // 2)
    of_pair = xp.asarray((pairs + pairs.T).reshape(-1))
    diagonal = xp.asarray(np.eye(n, dtype=bool))

    def symmetric(values: Array) -> Array:
        return xp.where(diagonal, xp.zeros((n, n), xp.dtype_of(x)), xp.reshape(xp.take(values, of_pair, 0), (n, n)))

    return _cdist_backward(xp, symmetric(grad), x, x, p, symmetric(pdist))
