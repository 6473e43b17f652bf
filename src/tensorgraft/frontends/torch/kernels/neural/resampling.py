"""Images of other sizes: interpolation and padding by copies, axis by axis.

Interpolation along an axis is a table: for each new place some old places and their weights. Forwards the old places
are read; backwards the same table, as a matrix, is transposed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import gradients, wide
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


class Taps(NamedTuple):
    """The old places (taps, out) that each of `out` new places reads, and their weights (taps, out)."""

    positions: np.ndarray
    weights: np.ndarray | None  # None: one tap, copied
    read: np.ndarray | None = (
        None  # where a tap is read at all (an infinity that is not, has no part); None: everywhere
    )

    def matrix(self, n: int) -> np.ndarray:
        """Return the taps as a dense matrix (out, n)."""
        out = self.positions.shape[1]
        dense = np.zeros((out, n), np.float64)
        weights = np.ones(self.positions.shape) if self.weights is None else self.weights
        for position, weight in zip(self.positions, weights, strict=True):
            np.add.at(dense, (np.arange(out), position), weight)
        return dense

    def transposed(self, n: int) -> Taps:
        """Return the table of the derivative: the new places to which each of `n` old ones contributes."""
        to, at = np.nonzero(self.matrix(n))
        order = np.argsort(at, kind="stable")
        to, at = to[order], at[order]
        rank = np.arange(len(at)) - np.searchsorted(at, at)
        positions, weights = np.zeros((2, int(rank.max(initial=0)) + 1, n))
        positions[rank, at], weights[rank, at] = to, self.matrix(n)[to, at]
        return Taps(positions.astype(np.int64), weights)


Rule = Callable[[int, int, bool, float | None, Any], Taps]  # (old extent, new extent, align corners, scale, dtype)


def _scale(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Any:
    """Return the number of old places per new place, in the precision in which PyTorch computes it."""
    if align_corners:
        return real(n - 1) / real(out - 1) if out > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(n) / real(max(out, 1))


def _centres(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> np.ndarray:
    """Return the centres of the new places, counted from the centre of the first old one."""
    at, by = np.arange(out).astype(real), _scale(n, out, align_corners, scale, real)
    return at * by if align_corners else (at + real(0.5)) * by - real(0.5)


def _nearest(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
    by = _scale(n, out, False, scale, np.float32)
    return Taps(np.minimum(np.floor(np.arange(out).astype(np.float32) * by).astype(np.int64), n - 1)[None], None)


def _nearest_exact(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
    by = _scale(n, out, False, scale, np.float32)
    at = (np.arange(out).astype(np.float32) + np.float32(0.5)) * by
    return Taps(np.minimum(np.floor(at).astype(np.int64), n - 1)[None], None)


def _linear(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
    at = np.maximum(_centres(n, out, align_corners, scale, real), 0)
    left = np.minimum(at.astype(np.int64), n - 1)
    right = np.minimum(left + (n != out), n - 1)
    t = np.clip(at - left, 0, 1)
    return Taps(np.stack([left, right]), np.stack([1 - t, t]))


def _keys(t: np.ndarray, a: float) -> np.ndarray:
    """Return the cubic convolution kernel (Keys 1981)."""
    t = np.abs(t)
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer = (((t - 5) * t + 8) * t - 4) * a
    return np.where(t <= 1, inner, np.where(t < 2, outer, 0))


def _cubic(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
    at = _centres(n, out, align_corners, scale, real)
    left = np.minimum(np.floor(at), n - 1)
    t = np.clip(at - left, 0, 1)
    offsets = np.arange(-1, 3)[:, None]
    positions = np.clip(left.astype(np.int64) + offsets, 0, n - 1)
    return Taps(positions, _keys(t - offsets, -0.75))


def _antialiased(kernel_of: Callable[[np.ndarray], np.ndarray], width: int) -> Rule:
    """Resize with a kernel that is stretched over all old pixels of a new one, as PIL does."""

    def taps(n: int, out: int, align_corners: bool, scale: float | None, real: Any) -> Taps:
        by = float(_scale(n, out, align_corners, scale, real))
        stretch = max(by, 1.0)
        support = width / 2 * stretch
        centre = by * (np.arange(out) + 0.5)
        first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
        size = np.clip(np.minimum((centre + support + 0.5).astype(np.int64), n) - first, 0, math.ceil(support) * 2 + 1)
        j = np.arange(int(size.max(initial=1)))[:, None]
        weights = np.where(j < size, kernel_of((j + first - centre + 0.5) / stretch), 0)
        total = weights.sum(axis=0)
        return Taps(np.minimum(first + j, n - 1), weights / np.where(total == 0, 1, total), j < size)

    return taps


RULES: dict[str, tuple[Rule, int, bool]] = {  # name -> (rule, axes, takes `align_corners`)
    **{f"upsample_nearest{d}d": (_nearest, d, False) for d in (1, 2, 3)},
    **{f"_upsample_nearest_exact{d}d": (_nearest_exact, d, False) for d in (1, 2, 3)},
    "upsample_linear1d": (_linear, 1, True),
    "upsample_bilinear2d": (_linear, 2, True),
    "upsample_trilinear3d": (_linear, 3, True),
    "upsample_bicubic2d": (_cubic, 2, True),
    "_upsample_bilinear2d_aa": (_antialiased(lambda t: np.maximum(1 - np.abs(t), 0), 2), 2, True),
    "_upsample_bicubic2d_aa": (_antialiased(lambda t: _keys(t, -0.5), 4), 2, True),
    "_upsample_lanczos2d_aa": (
        _antialiased(lambda t: np.where(np.abs(t) < 3, np.sinc(t) * np.sinc(t / 3), 0), 6),
        2,
        True,
    ),
}


def _tables(
    rule: Rule,
    olds: Sequence[int],
    new_sizes: Sequence[int],
    rest: Sequence[Any],
    aligned: bool,
    dtype: np.dtype,
    is_backward: bool,
) -> list[Taps]:
    """`rest`: (align corners,) scales. Computed in single precision for images of smaller floats than float64."""
    corners = bool(rest[0]) if aligned else False
    scales = [*(rest[1:] if aligned else rest), None, None, None][: len(olds)]
    real = np.float64 if dtype == dtypes.float64 or dtypes.is_integer(dtype) else np.float32
    return [
        rule(n, m, corners, None if _unscaled(rule, olds, new_sizes, n, m, is_backward) else s, real)
        for n, m, s in zip(olds, new_sizes, scales, strict=True)
    ]


def _unscaled(rule: Rule, olds: Sequence[int], new_sizes: Sequence[int], n: int, m: int, is_backward: bool) -> bool:
    """Return whether the CPU's kernel for these sizes ignores a scale that does not fit the extents (3 * 1.3 is 3)."""
    if rule is _nearest:  # forwards, one of its kernels: that for small images
        return m in (n, 2 * n) and (is_backward or (len(olds) == 2 and sum(new_sizes) <= 128))
    return (rule is _linear and n == m) or (rule is _cubic and is_backward and list(olds) == list(new_sizes))


def _read(xp: Any, x: Array, axis: int, taps: Taps) -> Array:
    total: Any = None
    shape = tuple(taps.positions.shape[1] if a == axis else 1 for a in range(xp.ndim(x)))
    for j, position in enumerate(taps.positions):
        piece = xp.take(x, xp.asarray(position), axis)
        if taps.weights is not None:
            piece = xp.multiply(piece, xp.asarray(taps.weights[j].astype(xp.dtype_of(x)).reshape(shape)))
        if taps.read is not None and not taps.read[j].all():
            piece = xp.where(xp.asarray(taps.read[j].reshape(shape)), piece, xp.zeros((), xp.dtype_of(piece)))
        total = piece if total is None else xp.add(total, piece)
    return total


def _read_fixed(xp: Any, x: Array, axis: int, taps: Taps) -> Array:
    """Bytes by 16-bit fixed-point weights, as the CPU (and PIL) read them: rounded and clipped after every axis."""
    assert taps.weights is not None
    summed = np.array(taps.weights, np.float64)
    for j in range(1, len(summed)):  # beyond an edge all weights are the edge's
        is_repeated = taps.positions[j] == taps.positions[j - 1]
        summed[j] += np.where(is_repeated, summed[j - 1], 0)
        summed[j - 1] = np.where(is_repeated, 0, summed[j - 1])
    top, digits = float(summed.max(initial=0.0)), 0
    while digits < 22 and int(0.5 + top * (1 << (digits + 1))) < 1 << 15:
        digits += 1
    scaled = summed * (1 << digits)
    weights = np.trunc(scaled + np.where(scaled < 0, -0.5, 0.5))
    total = xp.add(_read(xp, x, axis, Taps(taps.positions, weights)), 1 << (digits - 1))
    return xp.clip(xp.bitwise_right_shift(total, xp.full((), digits, dtypes.int32)), 0, 255)


def _forwards(rule: Rule, d: int, aligned: bool) -> Any:
    def fn(xp: Any, x: Array, output_size: Sequence[int], *rest: Any) -> Array:
        dtype = xp.dtype_of(x)
        tables = _tables(rule, xp.shape(x)[-d:], output_size, rest, aligned, dtype, is_backward=False)
        copies = all(t.weights is None for t in tables)
        of_bytes = dtypes.is_integer(dtype) and not copies  # uint8
        out = x if copies else xp.astype(x, dtypes.int32 if of_bytes else dtypes.accumulator(dtype))
        for axis, taps in reversed(list(zip(range(xp.ndim(x) - d, xp.ndim(x)), tables, strict=True))):
            if (of_bytes or taps.read is not None) and taps.positions.shape[1] == xp.shape(x)[axis]:
                continue
            out = _read_fixed(xp, out, axis, taps) if of_bytes else _read(xp, out, axis, taps)
        return out

    return fn


def _returned(xp: Any, grad: Array, axis: int, taps: Taps, n: int) -> Array:
    """Return the gradient of `n` old places along an axis: sums of neighbours, a few reads of each new place, or a
    product with the table as a matrix, whose cost grows with the number of new places."""
    shape, (width, out) = xp.shape(grad), taps.positions.shape
    copies = out // max(n, 1)
    if width == 1 and out == copies * n and np.array_equal(taps.positions[0], np.arange(out) // copies):
        parts = xp.reshape(grad, (*shape[:axis], n, copies, *shape[axis + 1 :]))
        return grad if copies == 1 else xp.sum(parts, axis=axis + 1)
    table = taps.transposed(n)
    assert table.weights is not None
    if (
        n == out
        and len(table.weights) == 1
        and (table.positions[0] == np.arange(n)).all()
        and (table.weights == 1).all()
    ):
        return grad
    if len(table.weights) * _READ <= out:
        return _read(xp, grad, axis, table)
    matrix = xp.asarray(taps.matrix(n).astype(xp.dtype_of(grad)))
    return xp.moveaxis(xp.dot_general(grad, matrix, ((axis,), (0,))), -1, axis)


_READ = 64  # rows of a matrix that take as long as a read


def _backwards(rule: Rule, d: int, aligned: bool) -> Any:
    def fn(xp: Any, grad: Array, output_size: Sequence[int], input_size: Sequence[int], *rest: Any) -> Array:
        dtype = xp.dtype_of(grad)
        out = wide(xp, grad) if dtypes.is_floating(dtype) else grad
        tables = _tables(rule, input_size[-d:], output_size, rest, aligned, dtype, is_backward=True)
        for axis, taps in zip(range(xp.ndim(grad) - d, xp.ndim(grad)), tables, strict=True):
            out = _returned(xp, out, axis, taps, input_size[axis])
        return out

    return fn


for _name, (_rule, _axes, _aligned) in RULES.items():
    kernel(_name)(_forwards(_rule, _axes, _aligned))
    kernel(f"{_name}_backward")(_backwards(_rule, _axes, _aligned))


# ---- padding ---------------------------------------------------------------------------------------------------------


def _reflected(n: int, low: int, high: int) -> np.ndarray:
    at = np.abs(np.arange(-low, n + high))
    return np.where(at >= n, 2 * (n - 1) - at, at)


def _replicated(n: int, low: int, high: int) -> np.ndarray:
    return np.clip(np.arange(-low, n + high), 0, n - 1)


def _pad(positions_of: Callable[[int, int, int], np.ndarray], d: int) -> tuple[Any, Any]:
    def forward(xp: Any, x: Array, padding: Sequence[int]) -> Array:
        for k in range(d):
            axis = xp.ndim(x) - 1 - k
            x = xp.take(x, xp.asarray(positions_of(xp.shape(x)[axis], *padding[2 * k : 2 * k + 2])), axis)
        return x

    def backward(xp: Any, grad: Array, x: Array, padding: Sequence[int]) -> Array:
        grad = wide(xp, grad)
        primal = xp.zeros(xp.shape(x), xp.dtype_of(grad))
        return gradients(xp, lambda inner, v: forward(inner, v, padding), (primal,), grad)[0]

    return forward, backward


for _prefix, _places in (("reflection", _reflected), ("replication", _replicated)):
    for _d in (1, 2, 3):
        _fn, _gradient = _pad(_places, _d)
        kernel(f"{_prefix}_pad{_d}d")(_fn)
        kernel(f"{_prefix}_pad{_d}d_backward")(_gradient)
