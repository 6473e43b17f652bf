"""Observers: which range of numbers the codes of a block cover."""

from __future__ import annotations

import math
import re

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.quantized import dense
from tensorgraft.quantization.ranges import ranges, split_of, with_ranges
from tensorgraft.quantization.scheme import Scheme

_PERCENTILE = re.compile(r"percentile(?:_(\d+(?:\.\d+)?))?")
_SHARES = tuple(np.linspace(1.0, 0.2, 41)[1:].tolist())  # fractions of the whole range that "mse" tries


def percentile_of(observer: str, argument: str = "observer") -> float | None:
    """99.9 of "percentile", 98.5 of "percentile_98.5", None of "minmax" and "mse". Raises ValueError for others."""
    match = _PERCENTILE.fullmatch(observer) if isinstance(observer, str) else None
    if match is not None and 50.0 < (percent := float(match[1] or 99.9)) <= 100.0:
        return percent
    if observer not in ("minmax", "mse"):
        raise ValueError(
            f"expected {argument} to be 'minmax', 'mse', 'percentile' (99.9) or, for example, 'percentile_99.5'"
            f" (more than 50, at most 100), got {observer!r}"
        )
    return None


def observed(
    xp: Backend, x: Array, scheme: Scheme, block: tuple[int, ...], observer: str
) -> tuple[Array, Array | None]:
    """Return float32 (scales, zero points or None) of every block: "minmax" covers all its numbers, "percentile" all
    but the outermost, "mse" those with which the mean square error is least."""
    percent = percentile_of(observer)
    if observer == "minmax" or 0 in xp.shape(x):
        return ranges(xp, x, scheme, block)
    if percent is not None:
        return ranges(xp, _without_outermost(xp, x, scheme, block, percent / 100), scheme, block)
    scale, zero = ranges(xp, x, scheme, block)
    values = xp.astype(x, dtypes.float32)
    split, inner = split_of(xp.shape(x), block)

    def error(scale: Array) -> Array:
        residual = xp.subtract(dense(xp, with_ranges(xp, values, scheme, scale, zero)), values)
        return xp.reshape(xp.sum(xp.reshape(xp.multiply(residual, residual), split), axis=inner), xp.shape(scale))

    best_scale, least = scale, error(scale)
    for share in _SHARES:
        candidate = xp.multiply(scale, share)
        errors = error(candidate)
        better = xp.less(errors, least)
        best_scale, least = xp.where(better, candidate, best_scale), xp.where(better, errors, least)
    return best_scale, zero


def _without_outermost(xp: Backend, x: Array, scheme: Scheme, block: tuple[int, ...], part: float) -> Array:
    """Return the numbers of each block, clipped to the range that contains a `part` of them: of magnitudes, or with
    zero points of the numbers on either side."""
    split, inner = split_of(xp.shape(x), block)
    outer = tuple(i for i in range(len(split)) if i not in inner)
    n = math.prod(block)
    blocks = xp.reshape(xp.astype(x, dtypes.float32), split)
    rows = xp.reshape(xp.permute_dims(blocks, (*outer, *inner)), (*(split[i] for i in outer), n))
    last = len(outer)
    (rows,) = xp.sort((rows if scheme.has_zero_points else xp.abs(rows),), axis=last)
    at = math.ceil(part * (n - 1))

    def rank(k: int) -> Array:
        return xp.reshape(
            xp.take_slice(rows, last, k, k + 1), tuple(1 if i in inner else m for i, m in enumerate(split))
        )

    high = rank(at)
    low = rank(n - 1 - at) if scheme.has_zero_points else xp.negative(high)
    return xp.reshape(xp.minimum(xp.maximum(blocks, low), high), xp.shape(x))
