"""Rules that read and write elements at positions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.shape import axes_of
from tensorgraft.hub import dtypes


def wrapped_indices(xp: Any, indices: Any, n: int) -> Any:
    """Return positions in an axis of `n` elements, those below zero counted from its end."""
    indices = xp.astype(indices, dtypes.int64)
    return xp.where(xp.less(indices, 0), xp.add(indices, n), indices)


@rule("Gather", moves=True)
def gather(xp: Any, data: Any, indices: Any, *, axis: int) -> Any:
    if isinstance(data, np.ndarray) and data.dtype == object:
        return np.asarray(np.take(data, np.asarray(indices), axis))
    axis = axes_of(axis, len(data.shape))[0]
    n = data.shape[axis]
    if isinstance(indices, np.ndarray) and indices.size and not -n <= indices.min() <= indices.max() < n:
        raise IndexError(f"positions from {indices.min()} to {indices.max()} in an axis of {n} elements")
    return xp.take(data, wrapped_indices(xp, indices, n), axis)


@rule("GatherElements", moves=True)
def gather_elements(xp: Any, data: Any, indices: Any, *, axis: int) -> Any:
    axis = axes_of(axis, len(data.shape))[0]
    return xp.take_along_axis(data, wrapped_indices(xp, indices, data.shape[axis]), axis)


def _columns(xp: Any, indices: Any, extents: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the positions along each axis, of indices whose last axis has one for each."""
    parts = xp.unstack(indices, -1)
    return tuple(wrapped_indices(xp, at, n) for at, n in zip(parts, extents, strict=False))


@rule("GatherND", moves=True)
def gather_nd(xp: Any, data: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    b, k = batch_dims, indices.shape[-1]
    grid = []
    for i, n in enumerate(data.shape[:b]):
        shape = [1] * (len(indices.shape) - 1)
        shape[i] = n
        grid.append(xp.reshape(xp.iota(n, dtypes.int64), tuple(shape)))
    return xp.gather(data, (*grid, *_columns(xp, indices, tuple(data.shape[b : b + k]))))


MODES = {"none": "set", "add": "add", "mul": "multiply", "max": "max", "min": "min"}


@rule("ScatterND")
def scatter_nd(xp: Any, data: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    return xp.scatter(data, _columns(xp, indices, tuple(data.shape)), updates, mode=MODES[reduction])


@rule("ScatterElements", "Scatter")
def scatter_elements(xp: Any, data: Any, indices: Any, updates: Any, *, axis: int, reduction: str = "none") -> Any:
    axis = axes_of(axis, len(data.shape))[0]
    at = wrapped_indices(xp, indices, data.shape[axis])
    return xp.put_along_axis(data, at, updates, axis, mode=MODES[reduction])


@rule("TensorScatter")
def tensor_scatter(
    xp: Any, past: Any, update: Any, write_indices: Any = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    """Write `update` into a cache, each row of the batch from its own position on."""
    axis = axis % len(past.shape)
    batch, length, n = past.shape[0], past.shape[axis], update.shape[axis]
    first = xp.zeros((batch,), dtypes.int64) if write_indices is None else xp.astype(write_indices, dtypes.int64)
    at = xp.add(xp.expand_dims(first, 1), xp.iota(n, dtypes.int64))
    if mode == "circular":
        at = xp.remainder(at, length)
    shape = [1] * len(update.shape)
    shape[0], shape[axis] = batch, n
    at = xp.broadcast_to(xp.reshape(at, tuple(shape)), tuple(update.shape))
    return xp.put_along_axis(past, at, update, axis)


@rule("OneHot", known=("depth",))
def one_hot(xp: Any, indices: Any, depth: Any, values: Any, *, axis: int) -> Any:
    n = int(np.reshape(depth, ()))
    at = xp.astype(indices, dtypes.int64)
    at = xp.where(xp.less(at, 0), xp.add(at, n), at)
    hot = xp.one_hot(at, n, dtypes.bool_)
    off, on = xp.unstack(values, 0)
    return xp.moveaxis(xp.where(hot, on, off), -1, axis % len(hot.shape))


@rule("NonZero")
def nonzero(xp: Any, x: Any) -> Any:
    if not len(x.shape):
        x = xp.reshape(x, (1,))
    is_set = x if xp.dtype_of(x) == dtypes.bool_ else xp.not_equal(x, 0)
    return xp.stack(list(xp.nonzero(is_set)), axis=0)


@rule("Compress", known=("condition",))
def compress(xp: Any, x: Any, condition: Any, *, axis: int | None = None) -> Any:
    if axis is None:
        x, axis = xp.reshape(x, (math.prod(x.shape),)), 0
    return xp.take(x, xp.asarray(np.flatnonzero(condition).astype(np.int64)), axis % len(x.shape))


@rule("Unique", known=("x",))
def unique(xp: Any, x: Any, *, axis: int | None = None, sorted_: int = 1) -> Any:
    """The positions are found on the host; values are taken from the array."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.ravel()
    if not sorted_:
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        first, counts, inverse = first[order], counts[order], rank[inverse]
        values = np.take(values, order, 0 if axis is None else axis)
    whole = [xp.asarray(v.astype(np.int64)) for v in (first, inverse, counts)]
    return [xp.asarray(values), *whole]


@rule("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(xp: Any, x: Any, y: Any) -> Any:
    at = xp.reshape(xp.astype(y, dtypes.int64), (math.prod(y.shape),))
    if isinstance(x, np.ndarray) and x.dtype == object:
        return np.take(x if x.ndim > 1 else x[None], np.asarray(at), -1)
    return xp.take(x if len(x.shape) > 1 else xp.expand_dims(x, 0), at, -1)
