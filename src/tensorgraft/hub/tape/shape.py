"""Rules of shape operations: each is linear, and its transpose is one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.tape.elementwise import unbroadcast

Shape = tuple[int, ...]


def _full(xp: Any, y: Array, g: Array, shape: Shape, value: Any, dtype: np.dtype) -> list[Any]:
    value_dtype = xp.dtype_of(value)
    return [(lambda: xp.astype(xp.sum(g), value_dtype)) if dtypes.is_inexact(value_dtype) else None]


def _concat(xp: Any, y: Array, g: Array, arrays: Sequence[Array], axis: int) -> list[Any]:
    pulls, at = [], 0
    for x in arrays:
        n = xp.shape(x)[axis % len(xp.shape(x))]
        pulls.append(lambda at=at, n=n: xp.take_slice(g, axis, at, at + n))
        at += n
    return pulls


def _pad(xp: Any, y: Array, g: Array, x: Array, value: Any, config: Sequence[tuple[int, int, int]]) -> list[Any]:
    def unpad(v: Array) -> Array:
        unpadded = xp.pad(v, xp.full((), 0, xp.dtype_of(v)), [(-low, -high, 0) for low, high, _ in config])
        shape = xp.shape(unpadded)
        return xp.slice(unpadded, (0,) * len(shape), shape, tuple(interior + 1 for *_, interior in config))

    pulls: list[Any] = [lambda: unpad(g)]
    if xp.is_array(value):
        pulls.append(lambda: xp.subtract(xp.sum(g), xp.sum(unpad(g))))
    return pulls


def _slice(xp: Any, y: Array, g: Array, x: Array, start: Shape, stop: Shape, step: Shape) -> list[Any]:
    def pull() -> Array:
        config = []
        for n, count, a, s in zip(xp.shape(x), xp.shape(g), start, step, strict=True):
            end = a + (count - 1) * s + 1 if count else a
            config.append((a, n - end, s - 1))
        return xp.pad(g, xp.full((), 0, xp.dtype_of(g)), config)

    return [pull]


def _slice_update(xp: Any, y: Array, g: Array, x: Array, update: Array, start: Shape, step: Shape) -> list[Any]:
    stop = tuple(a + (n - 1) * s + 1 if n else a for a, n, s in zip(start, xp.shape(update), step, strict=True))
    return [lambda: xp.slice_update(g, xp.zeros_like(update), start, step), lambda: xp.slice(g, start, stop, step)]


def _dynamic_slice(xp: Any, y: Array, g: Array, x: Array, start: Sequence[Array], sizes: Shape) -> list[Any]:
    return [lambda: xp.dynamic_update_slice(xp.zeros_like(x), g, start), *(None for _ in _arrays(xp, start))]


def _dynamic_update_slice(xp: Any, y: Array, g: Array, x: Array, update: Array, start: Sequence[Array]) -> list[Any]:
    return [
        lambda: xp.dynamic_update_slice(g, xp.zeros_like(update), start),
        lambda: xp.dynamic_slice(g, start, xp.shape(update)),
        *(None for _ in _arrays(xp, start)),
    ]


def _arrays(xp: Any, values: Sequence[Any]) -> list[Any]:
    return [v for v in values if xp.is_array(v)]


def _inverse(axes: Sequence[int]) -> Shape:
    return tuple(list(axes).index(a) for a in range(len(axes)))


RULES: dict[str, Callable[..., Any]] = {
    "full": _full,
    "reshape": lambda xp, y, g, x, shape: [lambda: xp.reshape(g, xp.shape(x))],
    "permute_dims": lambda xp, y, g, x, axes: [lambda: xp.permute_dims(g, _inverse(axes))],
    "broadcast_to": lambda xp, y, g, x, shape: [lambda: unbroadcast(xp, g, xp.shape(x))],
    "concat": _concat,
    "pad": _pad,
    "slice": _slice,
    "slice_update": _slice_update,
    "flip": lambda xp, y, g, x, axes: [lambda: xp.flip(g, axes)],
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
}
