"""Gather, for all dimension numbers, with shortcuts for common cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.lax import GatherScatterMode

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.frontends.jax.rules.gather_windows import GatherWindows, gather_windows
from tensorgraft.frontends.jax.rules.structural import broadcast_in_dim, permuted, reshaped
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Ints = tuple[int, ...]


@rule("gather")
def gather(
    xp: Backend,
    x: Array,
    indices: Array,
    *,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    mode: Any,
    fill_value: Any,
    out: Any,
    known: Any,
    **_: Any,
) -> Array:
    """Windows that do not fit are moved until they do; in mode fill they are the fill value."""
    numbers, shape = dimension_numbers, tuple(out[0].shape)
    dtype = xp.dtype_of(x)
    if 0 in shape:
        return xp.zeros(shape, dtype)
    filled = GatherScatterMode.from_any(mode) == GatherScatterMode.FILL_OR_DROP
    where = gather_windows(
        xp,
        xp.shape(x),
        indices,
        tuple(slice_sizes),
        numbers.start_index_map,
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
        masked=filled,
        known=known[1],
    )
    absent_axes = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    # for each axis of the result: an axis of the operand, or (~i) axis i of the batch
    kept_axes = iter([a for a in range(len(where.shape)) if a not in absent_axes])
    batch = iter(range(len(where.batch)))
    names = tuple(next(kept_axes) if a in numbers.offset_dims else ~next(batch) for a in range(len(shape)))
    gathered = _gathered(xp, x, where, names, shape)
    if where.fits is None:
        return gathered
    mask_shape = tuple(n if name < 0 else 1 for n, name in zip(shape, names, strict=True))
    fill = xp.full((), np.asarray(fill_value).item(), dtype)
    return xp.where(reshaped(xp, where.fits, mask_shape), gathered, fill)


def _gathered(xp: Backend, x: Array, where: GatherWindows, names: Ints, shape: Ints) -> Array:
    if where.count == 1:  # one window
        return reshaped(xp, xp.dynamic_slice(x, where.corner(xp), where.sizes) if where.axes else x, shape)
    axes, spans, whole_axes = where.axes, where.spans, where.full_axes
    batch_names = tuple(~i for i in range(len(where.batch)))
    if not axes:  # the operand, for every index
        return broadcast_in_dim(
            xp,
            reshaped(xp, x, tuple(n for n, name in zip(shape, names, strict=True) if name >= 0)),
            shape=shape,
            broadcast_dimensions=tuple(i for i, name in enumerate(names) if name >= 0),
        )
    if len(axes) == 1 and not spans and axes[0] in where.starts and axes[0] not in where.batching:
        out = xp.take(x, where.starts[axes[0]], axis=axes[0])
        dims = tuple(name for a in range(len(where.shape)) for name in (batch_names if a == axes[0] else (a,)))
    else:
        out = xp.gather(permuted(xp, x, (*axes, *whole_axes)), where.index(xp))
        dims = (*batch_names, *spans, *whole_axes)
    # whole axes of extent 1 that the result lacks, and points that it has, come and go by the last reshape
    order = [dims.index(name) for name in names if name in dims]
    rest = [i for i in range(len(dims)) if i not in order]
    return reshaped(xp, permuted(xp, out, (*order, *rest)), shape)
