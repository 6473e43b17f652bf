"""Rules of creation and layouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.abstract.array import (
    Shape,
    ShapeDtype,
    axes_of,
    axis_of,
    check,
    check_arrays,
    check_broadcasts_to,
    check_indices,
    check_kinds,
    check_shape,
    fail,
)


def full(op: str, shape: Shape, value: Any, dtype: np.dtype) -> ShapeDtype:
    check_shape(op, shape)
    if isinstance(value, ShapeDtype):
        check(not value.shape, op, (shape, value, dtype), "a 0-dimensional value")
    return ShapeDtype(tuple(shape), np.dtype(dtype))


def iota(op: str, n: int, dtype: np.dtype) -> ShapeDtype:
    check(n >= 0, op, (n, dtype), "a length that is not negative")
    return ShapeDtype((n,), np.dtype(dtype))


def reshape(op: str, x: ShapeDtype, shape: Shape) -> ShapeDtype:
    check_arrays(op, x)
    check_shape(op, shape)
    out = x.like(*shape)
    check(out.size == x.size, op, (x, shape), f"a shape of {x.size} elements, not {out.size}")
    return out


def permute_dims(op: str, x: ShapeDtype, axes: Sequence[int]) -> ShapeDtype:
    check_arrays(op, x)
    check(sorted(axes) == list(range(x.ndim)), op, (x, axes), f"a permutation of 0 to {x.ndim - 1}")
    return x.like(*(x.shape[a] for a in axes))


def broadcast_to(op: str, x: ShapeDtype, shape: Shape) -> ShapeDtype:
    check_arrays(op, x)
    check_shape(op, shape)
    check_broadcasts_to(op, (x, shape), x.shape, shape)
    return x.like(*shape)


def concat(op: str, arrays: Sequence[ShapeDtype], axis: int) -> ShapeDtype:
    check(arrays, op, (arrays, axis), "at least one array")
    check_kinds(op, "bifc", *arrays)
    first = arrays[0]
    axis = axis_of(op, first, axis)
    rest = {(*x.shape[:axis], *x.shape[axis + 1 :]) for x in arrays}
    check(
        len(rest) == 1 and all(x.ndim == first.ndim for x in arrays),
        op,
        (arrays, axis),
        f"arrays whose extents agree on every axis but {axis}",
    )
    return first.like(*first.shape[:axis], sum(x.shape[axis] for x in arrays), *first.shape[axis + 1 :])


def pad(op: str, x: ShapeDtype, value: Any, config: Sequence[tuple[int, int, int]]) -> ShapeDtype:
    check_arrays(op, x)
    if isinstance(value, ShapeDtype):
        check_kinds(op, "bifc", x, value)
        check(not value.shape, op, (x, value, config), "a 0-dimensional value")
    check(len(config) == x.ndim, op, (x, value, config), "one (low, high, interior) an axis")
    check(all(inner >= 0 for _, _, inner in config), op, (x, value, config), "interior padding that is not negative")
    out = tuple(n + low + high + max(n - 1, 0) * inner for n, (low, high, inner) in zip(x.shape, config, strict=True))
    check(all(n >= 0 for n in out), op, (x, value, config), f"no more to be cut off than there is, got extents {out}")
    return x.like(*out)


def slice_(op: str, x: ShapeDtype, start: Shape, stop: Shape, step: Shape) -> ShapeDtype:
    check_arrays(op, x)
    arguments = (x, start, stop, step)
    check(len(start) == len(stop) == len(step) == x.ndim, op, arguments, "one start, stop and step an axis")
    is_valid = all(0 <= b <= e <= n and s >= 1 for n, b, e, s in zip(x.shape, start, stop, step, strict=True))
    check(is_valid, op, arguments, "0 <= start <= stop <= extent and step >= 1 on every axis")
    return x.like(*(-((b - e) // s) for b, e, s in zip(start, stop, step, strict=True)))


def slice_update(op: str, x: ShapeDtype, update: ShapeDtype, start: Shape, step: Shape) -> ShapeDtype:
    check_kinds(op, "bifc", x, update)
    arguments = (x, update, start, step)
    check(len(start) == len(step) == x.ndim == update.ndim, op, arguments, "one start and step an axis")
    is_valid = all(
        0 <= b <= n and s >= 1 and (not k or b + (k - 1) * s < n)
        for n, k, b, s in zip(x.shape, update.shape, start, step, strict=True)
    )
    check(is_valid, op, arguments, "an update that fits into the array")
    return x


def flip(op: str, x: ShapeDtype, axes: Sequence[int]) -> ShapeDtype:
    check_arrays(op, x)
    axes_of(op, x, axes)
    return x


def _check_starts(op: str, x: ShapeDtype, start: Sequence[Any], sizes: Sequence[int]) -> None:
    arguments = (x, start, tuple(sizes))
    check_indices(op, arguments, start)
    check(
        len(start) == len(sizes) == x.ndim and all(not i.shape for i in start),
        op,
        arguments,
        "one 0-d start and one size an axis",
    )
    check(
        all(0 <= k <= n for k, n in zip(sizes, x.shape, strict=True)),
        op,
        arguments,
        "a window that fits into the array",
    )


def dynamic_slice(op: str, x: ShapeDtype, start: Sequence[ShapeDtype], sizes: Shape) -> ShapeDtype:
    check_arrays(op, x)
    _check_starts(op, x, start, sizes)
    return x.like(*sizes)


def dynamic_update_slice(op: str, x: ShapeDtype, update: ShapeDtype, start: Sequence[ShapeDtype]) -> ShapeDtype:
    check_kinds(op, "bifc", x, update)
    _check_starts(op, x, start, update.shape)
    return x


def copy(op: str, x: ShapeDtype) -> ShapeDtype:
    check_arrays(op, x)
    return x


def shape(op: str, x: ShapeDtype) -> Shape:
    if not hasattr(x, "shape"):
        fail(op, (x,), "an array", TypeError)
    return x.shape


RULES: dict[str, Callable[..., Any]] = {
    "full": full,
    "iota": iota,
    "reshape": reshape,
    "permute_dims": permute_dims,
    "broadcast_to": broadcast_to,
    "concat": concat,
    "pad": pad,
    "slice": slice_,
    "slice_update": slice_update,
    "flip": flip,
    "dynamic_slice": dynamic_slice,
    "dynamic_update_slice": dynamic_update_slice,
    "copy": copy,
    "shape": shape,
}
