"""Reductions of runs of a tensor along one axis (`torch.segment_reduce`).

The runs are given by their lengths or by where they begin and end, once for each index in front of the axis. Data is
brought to (rows, n, inner), what is given of runs to (rows, segments).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import check
from tensorgraft.frontends.torch.kernels.common import wide
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

Tensor = torch.Tensor

# name -> (how updates of a segment are put together, what an empty segment begins with)
_REDUCTIONS = {
    "sum": ("add", 0.0),
    "mean": ("add", 0.0),
    "prod": ("multiply", 1.0),
    "max": ("max", -math.inf),
    "amax": ("max", -math.inf),
    "min": ("min", math.inf),
    "amin": ("min", math.inf),
}


def _refuse_dtype(xp: Any, data: Array) -> None:
    if not dtypes.is_floating(xp.dtype_of(data)):
        raise NotImplementedError(f"segments of {xp.dtype_of(data)}")


def _bounds(xp: Any, lengths: AnyArray | None, offsets: AnyArray | None) -> AnyArray:
    """Return int64 (rows, segments + 1): where segments begin, and where the last one ends."""
    ends = lengths if offsets is None else offsets
    count = xp.shape(ends)[-1]
    rows = xp.size(ends) // count if count else math.prod(xp.shape(ends)[:-1])
    ends = xp.astype(xp.reshape(ends, (rows, count)), dtypes.int64)
    if offsets is not None:
        return ends
    return xp.concat([xp.zeros((rows, 1), dtypes.int64), xp.cumsum(ends, axis=1)], axis=1)


def _segment_of(xp: Any, bounds: AnyArray, n: int) -> AnyArray:
    """Return the segment of each place, int64 (rows, n); one more than the last if it is in none."""
    rows, count = xp.shape(bounds)[0], xp.shape(bounds)[1] - 1
    position = xp.broadcast_to(xp.reshape(xp.iota(n, dtypes.int64), (1, n)), (rows, n))
    segment = xp.subtract(xp.searchsorted(bounds, position, right=True), 1)
    return xp.where(xp.less(segment, 0), xp.full_like(segment, count), segment)


def _rows(xp: Any, rows: int) -> Array:
    return xp.reshape(xp.iota(rows, dtypes.int64), (rows, 1))


def _gathered(xp: Any, of_segments: AnyArray, segment: AnyArray) -> AnyArray:
    """Take from (rows, segments, inner) the entry for the segment of each place; zero for a place in none."""
    padded = xp.pad(of_segments, 0, [(0, 0, 0), (0, 1, 0), (0, 0, 0)])
    return xp.gather(padded, (_rows(xp, xp.shape(segment)[0]), segment))


def _summed(xp: Any, values: AnyArray, segment: AnyArray, start: AnyArray, mode: str) -> AnyArray:
    """Reduce values (rows, n, inner) by segments, to (rows, segments, inner)."""
    rows, count, inner = xp.shape(start)
    padded = xp.concat([start, xp.zeros((rows, 1, inner), xp.dtype_of(start))], axis=1)
    return xp.take_slice(xp.scatter(padded, (_rows(xp, rows), segment), values, mode=mode), 1, 0, count)


def _check_lengths(xp: Any, lengths: Any, n: int, unsafe: bool) -> None:
    """Raises RuntimeError where a length is negative or those of a row do not fill the axis."""
    if unsafe:
        return
    if not xp.size(lengths):
        raise RuntimeError(
            "min(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the"
            " 'dim' argument."
        )
    total = xp.sum(lengths, axis=-1)
    extremes = xp.stack([xp.astype(v, dtypes.int64) for v in (xp.min(lengths), xp.min(total), xp.max(total))])

    def verify(extremes: np.ndarray) -> None:
        if extremes[0] < 0:
            raise RuntimeError("lengths contains negative value!")
        if extremes[1] != n or extremes[2] != n:
            raise RuntimeError(
                "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(lengths.dim()-1) when"
                " !unsafe."
            )

    check(xp, extremes, verify)


def _meta(
    data: Tensor,
    reduce: str,
    *,
    lengths: Tensor | None = None,
    indices: Tensor | None = None,
    offsets: Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Tensor:
    """PyTorch's own meta function checks nothing, and does not know the shape."""
    if reduce not in _REDUCTIONS:
        raise RuntimeError(f"reduce argument must be either sum, prod, mean, amax or amin, got {reduce}")
    if data.numel() and axis >= data.dim():
        raise RuntimeError(f"segment_reduce(): axis must be less than data.dim(). Got {axis}")
    ends = lengths if offsets is None else offsets
    if ends is None or indices is not None:
        problem = "indices based reduction is not supported yet" if indices is not None else ""
        raise RuntimeError(f"segment_reduce(): {problem or 'Either lengths or offsets must be defined'}.")
    if axis != ends.dim() - 1:
        name = "lengths" if offsets is None else "offsets"
        raise RuntimeError(f"segment_reduce(): Expected axis to be the last dimension of {name} but got {axis}.")
    count = ends.shape[-1] - (offsets is not None)
    return data.new_empty((*data.shape[:axis], count, *data.shape[axis + 1 :]))


@kernel("segment_reduce", meta=_meta)
def _segment_reduce(
    xp: Any,
    data: Array,
    reduce: str,
    *,
    lengths: Array | None = None,
    indices: Array | None = None,
    offsets: Array | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Array:
    _refuse_dtype(xp, data)
    shape = xp.shape(data)
    n, inner = shape[axis], math.prod(shape[axis + 1 :])
    if offsets is None:
        _check_lengths(xp, lengths, n, unsafe)
    bounds = _bounds(xp, lengths, offsets)
    rows, count = xp.shape(bounds)[0], xp.shape(bounds)[1] - 1
    mode, start = _REDUCTIONS[reduce]
    values = xp.reshape(wide(xp, data), (rows, n, inner))
    start_values = xp.full((rows, count, inner), start if initial is None else initial, xp.dtype_of(values))
    out = _summed(xp, values, _segment_of(xp, bounds, n), start_values, mode) if n else start_values
    if reduce == "mean":
        size = xp.expand_dims(xp.astype(_sizes(xp, bounds), xp.dtype_of(out)), -1)
        empty = start_values if initial is not None else xp.full((), math.nan, xp.dtype_of(out))
        out = xp.where(xp.equal(size, 0), empty, xp.divide(out, xp.maximum(size, 1)))
    return xp.reshape(out, (*shape[:axis], count, *shape[axis + 1 :]))


def _sizes(xp: Any, bounds: AnyArray) -> AnyArray:
    count = xp.shape(bounds)[1] - 1
    return xp.subtract(xp.take_slice(bounds, 1, 1, count + 1), xp.take_slice(bounds, 1, 0, count))


@kernel("_segment_reduce_backward", meta=lambda grad, output, data, reduce, **_: data.new_empty(data.shape))
@with_operators
def _segment_reduce_backward(
    xp: Any,
    grad: Value,
    output: Value,
    data: Value,
    reduce: str,
    *,
    lengths: Value | None = None,
    offsets: Value | None = None,
    axis: int = 0,
    initial: float | None = None,
) -> Value:
    _refuse_dtype(xp, data)
    shape = data.shape
    n, inner = shape[axis], math.prod(shape[axis + 1 :])
    if not xp.size(data):
        return data
    bounds = _bounds(xp, lengths, offsets)
    rows, count = bounds.shape[0], bounds.shape[1] - 1
    segment = _segment_of(xp, bounds, n)
    values = xp.reshape(wide(xp, data), (rows, n, inner))
    grad, output = (xp.reshape(wide(xp, v), (rows, count, inner)) for v in (grad, output))
    slope = _gathered(xp, grad, segment)
    zeros_of_segments = xp.zeros((rows, count, inner), values.dtype)

    def sums(v: Value) -> Value:
        return _gathered(xp, _summed(xp, xp.astype(v, values.dtype), segment, zeros_of_segments, "add"), segment)

    if reduce == "mean":
        size = xp.expand_dims(xp.astype(_sizes(xp, bounds), values.dtype), -1)
        slope = slope / xp.maximum(_gathered(xp, size, segment), 1)
    elif reduce == "prod":
        special = xp.isnan(values) | (values == 0)  # for the others the product is out / value
        plain = xp.where(special, xp.ones_like(values), values)
        start_values = xp.full_like(zeros_of_segments, 1.0 if initial is None else initial)
        product_of_others = _gathered(xp, _summed(xp, plain, segment, start_values, "multiply"), segment)
        zero, nan = values == 0, xp.isnan(values)
        more_zeros, more_nan = (sums(v) - xp.astype(v, values.dtype) for v in (zero, nan))
        product_of_others = xp.where(more_zeros > 0, xp.zeros_like(product_of_others), product_of_others)
        product_of_others = xp.where(more_nan > 0, xp.full_like(product_of_others, math.nan), product_of_others)
        out = _gathered(xp, output, segment) / plain
        slope = slope * xp.where(special, product_of_others, out)
    # equal extremes share the positive part of the gradient, and each gets all of the negative part
    elif reduce != "sum":
        is_extreme = xp.isnan(values) | (values == _gathered(xp, output, segment))
        share = slope / xp.maximum(sums(is_extreme), 1)
        slope = xp.where(is_extreme, xp.where(slope > 0, share, slope), xp.zeros_like(slope))
    in_none = xp.expand_dims(segment == count, -1)
    return xp.reshape(xp.where(in_none, xp.zeros_like(slope), slope), shape)
