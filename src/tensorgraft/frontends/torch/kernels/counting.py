"""Kernels that count elements: unique values and histograms."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import check
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

Tensor = torch.Tensor
Triple = tuple[Array, Array, Array]

# ---- unique values: the number of them is known from the values alone ------------------------------------------------


def _runs(xp: Any, changes: Array, inverse: bool, counts: bool) -> Triple:
    """Return (positions where runs start, the run of each element, the length of each run); those not asked for are
    empty."""
    n = xp.size(changes)
    (starts,) = xp.nonzero(changes)
    none = xp.zeros((0,), dtypes.int64)
    run = xp.subtract(xp.cumsum(xp.astype(changes, dtypes.int64), axis=0), 1) if inverse else none
    if not counts:
        return starts, run, none
    ends = xp.concat([xp.take_slice(starts, 0, 1, xp.size(starts)), xp.full((min(n, 1),), n, dtypes.int64)], axis=0)
    return starts, run, xp.subtract(ends, starts)


def _changes(xp: Any, rows: Array) -> Array:
    """Return bool (n,): whether a row of (n, ...) differs from the one before it."""
    n = xp.shape(rows)[0]
    differs = xp.not_equal(xp.take_slice(rows, 0, min(n, 1), n), xp.take_slice(rows, 0, 0, max(n - 1, 0)))
    if xp.ndim(rows) > 1:
        differs = xp.any(differs, axis=tuple(range(1, xp.ndim(rows))))
    return xp.concat([xp.full((min(n, 1),), True, dtypes.bool_), differs], axis=0)


def _unique(xp: Any, x: Array, sorted: bool = True, inverse: bool = False, counts: bool = False) -> Triple:
    if dtypes.is_complex(xp.dtype_of(x)):
        raise NotImplementedError("complex numbers have no order")
    n = xp.size(x)
    values, order = xp.sort_with_indices(xp.reshape(x, (n,)), 0)
    starts, run, lengths = _runs(xp, _changes(xp, values), inverse, counts)
    if inverse:
        run = xp.reshape(xp.scatter(xp.zeros((n,), dtypes.int64), (order,), run) if n else run, xp.shape(x))
    return xp.gather(values, (starts,)), run, lengths


kernel("_unique2", concrete=True, meta=False)(_unique)


@kernel("_unique", concrete=True, meta=False)
def _unique_pair(xp: Any, x: Array, sorted: bool = True, return_inverse: bool = False) -> tuple[Array, Array]:
    return _unique(xp, x, sorted, return_inverse)[:2]


def _consecutive(xp: Any, rows: Array, inverse: bool, counts: bool) -> Triple:
    starts, run, lengths = _runs(xp, _changes(xp, rows), inverse, counts)
    return xp.gather(rows, (starts,)), run, lengths


def _consecutive_along(xp: Any, x: Array, dim: int, return_inverse: bool, return_counts: bool) -> Triple:
    if not xp.size(x):
        return _nothing_unique(xp, x, dim)
    values, run, lengths = _consecutive(xp, xp.moveaxis(x, dim, 0), return_inverse, return_counts)
    return xp.moveaxis(values, 0, dim), run, lengths


@kernel("unique_consecutive", concrete=True, meta=False)
def _unique_consecutive(
    xp: Any, x: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Triple:
    if dim is not None and xp.ndim(x):
        return _consecutive_along(xp, x, dim, return_inverse, return_counts)
    values, run, lengths = _consecutive(xp, xp.reshape(x, (xp.size(x),)), return_inverse, return_counts)
    return values, xp.reshape(run, xp.shape(x)) if return_inverse else run, lengths


@kernel("unique_dim_consecutive", concrete=True, meta=False)
def _unique_dim_consecutive(
    xp: Any, x: Array, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> Triple:
    return _consecutive_along(xp, x, dim, return_inverse, return_counts)


def _nothing_unique(xp: Any, x: Array, dim: int) -> Triple:
    if xp.shape(x)[dim]:
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")
    return x, xp.zeros((0,), dtypes.int64), xp.zeros((0,), dtypes.int64)


@kernel("unique_dim", concrete=True, meta=False)
def _unique_dim(
    xp: Any, x: Array, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Triple:
    if dtypes.is_complex(xp.dtype_of(x)) or not xp.ndim(x):
        raise NotImplementedError("unique rows of complex numbers or of a number")
    rows = xp.moveaxis(x, dim, 0)
    n = xp.shape(rows)[0]
    if not xp.size(x):
        return _nothing_unique(xp, x, dim)
    keys = np.reshape(xp.to_numpy(rows), (n, -1))
    keys = keys.astype(np.float32) if keys.dtype.kind == "V" or keys.dtype == dtypes.bfloat16 else keys
    order = xp.asarray(np.lexsort(keys.T[::-1]).astype(np.int64))
    values, run, lengths = _consecutive(xp, xp.take(rows, order, 0), return_inverse, return_counts)
    if return_inverse:
        run = xp.scatter(xp.zeros((n,), dtypes.int64), (order,), run)
    return xp.moveaxis(values, 0, dim), run, lengths


# ---- histograms ------------------------------------------------------------------------------------------------------


@kernel("bincount", concrete=True, meta=False)
def _bincount(xp: Any, x: Array, weights: Array | None = None, minlength: int = 0) -> Array:
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if xp.ndim(x) == 1 and not xp.size(x):
        return xp.zeros((minlength,), dtypes.int64)
    if xp.ndim(x) != 1 or not dtypes.is_integer(xp.dtype_of(x)) or int(xp.to_numpy(xp.min(x))) < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and xp.shape(weights) != xp.shape(x):
        raise RuntimeError("weights should be 1-d and have the same length as input")
    n = max(int(xp.to_numpy(xp.max(x))) + 1, minlength)
    if weights is None:
        weights = xp.full(xp.shape(x), 1, dtypes.int64)
    elif xp.dtype_of(weights) != dtypes.float32:
        weights = xp.astype(weights, dtypes.float64)
    zeros = xp.zeros((n,), xp.dtype_of(weights))
    return xp.scatter(zeros, (xp.astype(x, dtypes.int64),), weights, mode="add")


def _ends(
    xp: Any, x: AnyArray, span: tuple[float, float] | None, margin: float, label: str
) -> tuple[AnyArray, AnyArray]:
    """Return the ends of a histogram: the given ones or those of the data, moved apart by `margin` where they are
    equal. Raises RuntimeError about the range of `label` where those of the data are not finite."""
    dtype = xp.dtype_of(x)
    if span is not None:
        low, high = (xp.full((), v, dtype) for v in span)
    else:
        low, high = (xp.min(x), xp.max(x)) if xp.size(x) else (xp.full((), v, dtype) for v in (0, 0))

        def verify(ends: np.ndarray) -> None:
            if not np.isfinite(ends).all():
                raise RuntimeError(f"{label} [{ends[0]:g}, {ends[1]:g}] is not finite")

        if dtypes.is_floating(dtype):
            check(xp, xp.stack([low, high]), verify)
    is_equal = xp.equal(low, high)
    return xp.where(is_equal, xp.subtract(low, margin), low), xp.where(is_equal, xp.add(high, margin), high)


@kernel("histc")
@with_operators
def _histc(xp: Any, x: Value, bins: int = 100, min: float = 0, max: float = 0) -> Value:
    if not math.isfinite(min) or not math.isfinite(max):
        raise RuntimeError(f"torch.histc: range of [{min}, {max}] is not finite")
    dtype = x.dtype
    if not (dtypes.is_floating(dtype) or dtypes.is_integer(dtype)):
        raise NotImplementedError(f"histc of {dtype}")
    divide = xp.divide
    wide = dtypes.accumulator(dtype)
    if dtypes.is_integer(dtype):  # like CUDA, on which programs rely that ask for any device but the CPU
        min, max, divide, wide = int(min), int(max), xp.floor_divide, dtypes.int64
    x = xp.astype(xp.reshape(x, (xp.size(x),)), wide)
    low, high = _ends(xp, x, (min, max) if min != max else None, 1, "torch.histc: range of")

    def rounded(value: Value) -> Value:  # the CPU computes in 16 bits, and rounds each result
        return xp.astype(xp.astype(value, dtype), wide) if dtypes.is_floating(dtype) else value

    low, high = rounded(low), rounded(high)
    in_range = (x >= low) & (x <= high)
    safe = xp.where(in_range, x, low)
    at = rounded(divide(rounded(rounded(safe - low) * rounded(xp.full((), bins, wide))), rounded(high - low)))
    at = xp.minimum(xp.astype(at, dtypes.int64), bins - 1)
    zeros = xp.zeros((bins,), x.dtype)
    return xp.scatter(zeros, (at,), xp.astype(in_range, x.dtype), mode="add")


@with_operators
def _bin_of(xp: Any, edges: Value, x: Value) -> tuple[Value, Value]:
    """Return (the bin of each of `x` (n,), whether it is in any): bins are half open, the last one closed."""
    n = edges.shape[0] - 1
    last = xp.take_slice(edges, 0, n, n + 1)
    in_range = (x >= xp.take_slice(edges, 0, 0, 1)) & (x <= last)
    return xp.clip(xp.searchsorted(edges, x, right=True) - 1, 0, n - 1), in_range


def _histogram(xp: Any, points: Array, edges: list[Array], weight: Array | None, density: bool) -> Array:
    """Return the number of `points` (..., d), or the sum of their weights, in each of the boxes between `edges`."""
    d = len(edges)
    n = xp.size(points) // d
    points = xp.reshape(points, (n, d))
    bins_of = [_bin_of(xp, e, xp.squeeze(xp.take_slice(points, 1, k, k + 1), 1)) for k, e in enumerate(edges)]
    in_range = functools.reduce(xp.logical_and, [in_range for _, in_range in bins_of])
    amount = xp.full((n,), 1, xp.dtype_of(points)) if weight is None else xp.reshape(weight, (n,))
    zeros = xp.zeros(tuple(xp.shape(e)[0] - 1 for e in edges), xp.dtype_of(points))
    hist = xp.scatter(zeros, [at for at, _ in bins_of], xp.where(in_range, amount, xp.zeros_like(amount)), mode="add")
    if density:
        hist = xp.divide(hist, xp.sum(hist))
        for k, e in enumerate(edges):
            count = xp.shape(e)[0] - 1
            widths = xp.subtract(xp.take_slice(e, 0, 1, count + 1), xp.take_slice(e, 0, 0, count))
            hist = xp.divide(hist, xp.reshape(widths, tuple(count if a == k else 1 for a in range(d))))
    return hist


@with_operators
def _edges(xp: Any, x: Value, bins: int, span: tuple[float, float] | None, axis: int = 0) -> Value:
    """Return the edges of `bins` bins of equal width over the given range, or that of `x`; symmetric, as
    torch.linspace."""
    dtype = x.dtype
    span = (0.0, 1.0) if span is None and not xp.size(x) else span
    low, high = _ends(xp, x, span, 0.5, f"torch.histogramdd: dimension {axis}'s range")
    at = xp.astype(xp.iota(bins + 1, dtypes.int64), dtype)
    step = (high - low) / bins
    left = at * step + low
    right = high - (bins - at) * step
    return xp.where(at < (bins + 1) // 2, left, right)


@kernel("histogram.bins_tensor", meta=False)
def _histogram_tensor(
    xp: Any, x: Array, bins: Array, weight: Array | None = None, density: bool = False
) -> tuple[Array, Array]:
    return _histogram(xp, x, [bins], weight, density), bins


@kernel("histogram.bin_ct", meta=False)
def _histogram_count(
    xp: Any,
    x: Array,
    bins: int = 100,
    range: list[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    return _histogram_tensor(xp, x, _edges(xp, x, bins, _pair(range, 0)), weight, density)


def _pair(ends: list[float] | None, k: int) -> tuple[float, float] | None:
    return None if ends is None else (ends[2 * k], ends[2 * k + 1])


# ---- of points in several dimensions ---------------------------------------------------------------------------------


def _boxes_meta(x: Tensor, bins: list[int], range: list[float] | None, weight: Tensor | None) -> None:
    """Raise RuntimeError where PyTorch refuses the arguments; the CPU is then asked for the message."""
    if x.dim() < 2 or x.shape[-1] != len(bins) or not x.dtype.is_floating_point or any(b < 1 for b in bins):
        raise RuntimeError("histogramdd: the bins do not fit")
    if range is not None and (
        len(range) != 2 * len(bins) or any(a > b for a, b in zip(range[::2], range[1::2], strict=False))
    ):
        raise RuntimeError("histogramdd: the range does not fit")
    if weight is not None and (weight.shape != x.shape[:-1] or weight.dtype != x.dtype):
        raise RuntimeError("histogramdd: the weights do not fit")


def _edges_meta(
    x: Tensor, bins: list[int], *, range: list[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> list[Tensor]:
    _boxes_meta(x, bins, range, weight)
    return [x.new_empty((n + 1,)) for n in bins]


@kernel("_histogramdd_bin_edges", meta=_edges_meta)
def _all_edges(
    xp: Any,
    x: Array,
    bins: list[int],
    *,
    range: list[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> list[Array]:
    return [_edges(xp, xp.take_slice(x, -1, k, k + 1), n, _pair(range, k), k) for k, n in enumerate(bins)]


def _counts_meta(
    x: Tensor, bins: list[int], *, range: list[float] | None = None, weight: Tensor | None = None, density: bool = False
) -> Tensor:
    _boxes_meta(x, bins, range, weight)
    return x.new_empty(bins)


@kernel("_histogramdd_from_bin_cts", meta=_counts_meta)
def _histogram_counts(
    xp: Any,
    x: Array,
    bins: list[int],
    *,
    range: list[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    return _histogram(xp, x, _all_edges(xp, x, bins, range=range), weight, density)


def _tensors_meta(x: Tensor, bins: list[Tensor], *, weight: Tensor | None = None, density: bool = False) -> Tensor:
    _boxes_meta(x, [b.numel() - 1 for b in bins], None, weight)
    if any(b.dim() != 1 or b.dtype != x.dtype for b in bins):
        raise RuntimeError("histogramdd: the bins do not fit")
    return x.new_empty([b.numel() - 1 for b in bins])


@kernel("_histogramdd_from_bin_tensors", meta=_tensors_meta)
def _histogram_tensors(
    xp: Any, x: Array, bins: list[Array], *, weight: Array | None = None, density: bool = False
) -> Array:
    return _histogram(xp, x, bins, weight, density)
