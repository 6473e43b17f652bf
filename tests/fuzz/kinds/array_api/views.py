"""Statements that show the memory of an array another way, or pick elements of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fuzz.kinds.array_api.drawing import Drawing, result, statement


@statement(4)
def indexed(d: Drawing) -> str:
    n = d.array()
    return result(d, f"{n}[{d.key(d.arrays[n])}]")


@statement(4)
def viewed(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    to = tuple(d.one(1, 2, 3) if m == 1 else m for m in x.shape)
    forms = [
        *2 * [f"xp.reshape({n}, {reshaped(d, x)})"],
        f"xp.flip({n}, axis={d.axes(x)})",
        f"xp.expand_dims({n}, axis={d.rng.randint(-x.ndim - 1, x.ndim)})",
        f"xp.broadcast_to({n}, {(d.one(1, 2), *to) if d.maybe() else to})",
    ]
    if x.ndim:
        forms += 2 * [f"xp.permute_dims({n}, {tuple(d.rng.sample(range(x.ndim), x.ndim))})"]
        forms.append(f"xp.moveaxis({n}, {d.axis(x)}, {d.axis(x)})")
        axis = d.rng.randrange(-x.ndim, x.ndim)
        if x.shape[axis]:
            forms.append(f"xp.unstack({n}, axis={axis})[{d.rng.randrange(x.shape[axis])}]")
    if x.ndim > 1:
        forms += [f"{n}.mT", f"xp.matrix_transpose({n})", f"xp.linalg.diagonal({n}, offset={d.one(-1, 0, 0, 1)})"]
    if x.ndim == 2:
        forms.append(f"{n}.T")
    if 1 in x.shape:
        forms += 2 * [f"xp.squeeze({n}, axis={d.one(x.shape.index(1), x.shape.index(1) - x.ndim)})"]
    return result(d, d.rng.choice(forms))


def reshaped(d: Drawing, x: Any) -> tuple[int, ...]:
    if not x.size:
        return tuple(d.rng.sample(x.shape, x.ndim))
    left, shape = x.size, []
    while left > 1 and d.maybe(0.6):
        shape.append(d.rng.choice([k for k in range(1, left + 1) if left % k == 0]))
        left //= shape[-1]
    shape.append(left)
    if d.maybe(0.2):
        shape[d.rng.randrange(len(shape))] = -1
    if d.maybe(0.02):
        shape.append(2)
    return tuple(shape)


@statement(2)
def picked(d: Drawing) -> str:
    n = d.array()
    return result(d, f"{n}[{d.points(d.arrays[n])}]")


@statement(1)
def taken(d: Drawing) -> str:
    n = d.array(where=lambda x: x.ndim > 0 and x.size > 0)
    x = d.arrays[n]
    axis = d.rng.randrange(x.ndim)
    m = x.shape[axis]
    if d.maybe(0.3):
        shape = tuple(d.one(1, 2, 3) if a == axis else k for a, k in enumerate(x.shape))
        rows = np.random.default_rng(d.rng.randrange(99)).integers(0, m, shape).tolist()
        return result(d, f"xp.take_along_axis({n}, xp.asarray({rows}, dtype=xp.int64, device=D), axis={axis})")
    rows = [d.rng.randrange(m) for _ in range(d.rng.randint(0, 4))]
    return result(d, f"xp.take({n}, xp.asarray({rows}, dtype=xp.int64, device=D), axis={d.one(axis, axis - x.ndim)})")
