"""Gather and scatter: advanced indexing, and for sums over rows a sort in place of `ufunc.at`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorgraft.backends.numpy.precision import widened
from tensorgraft.hub.array import NativeArray as Array

_UFUNCS = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


def _rows(shape: tuple[int, ...], indices: Sequence[Array]) -> Array:
    """Return the rows (of the axes without index) that the indices select in the array: int64, flat."""
    grid = np.broadcast_arrays(*indices)
    return np.ravel_multi_index([np.ravel(i).astype(np.int64, copy=False) for i in grid], shape[: len(indices)])


@widened
def _accumulate(x: Array, updates: Array, rows: Array, ufunc: np.ufunc) -> Array:
    """Combine `updates` (len(rows), width) into `rows` of `x` (rows, width)."""
    out = np.array(x)
    updates = updates.astype(x.dtype, copy=False)
    if x.shape[1] == 1:  # `ufunc.at` is fast with one index array into one axis
        ufunc.at(out[:, 0], rows, updates[:, 0])
        return out
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    targets = ordered[starts]
    totals = ufunc.reduceat(updates[order], starts, axis=0, dtype=x.dtype)
    out[targets] = ufunc(out[targets], totals)
    return out


class NumpyIndexing:
    def gather(self, x: Array, indices: Sequence[Array], /) -> Array:
        if len(indices) == 1:
            return self.take(x, indices[0], 0)
        out = x[tuple(indices)]
        return out if any(map(np.ndim, indices)) else np.array(out)  # 0-d indices give a view

    def scatter(self, x: Array, indices: Sequence[Array], updates: Array, /, mode: str = "set") -> Array:
        x = np.asarray(x)
        if mode == "set":
            out = np.array(x)
            out[tuple(indices)] = updates
            return out
        rest = x.shape[len(indices) :]
        lead = np.broadcast_shapes(*map(np.shape, indices))
        updates = np.broadcast_to(updates, lead + rest)
        if not updates.size:
            return np.array(x)
        if not indices:
            return np.asarray(_UFUNCS[mode](x, updates))
        rows = _rows(x.shape, indices)
        width = updates.size // rows.size
        out = _accumulate(x.reshape(-1, width), updates.reshape(-1, width), rows, _UFUNCS[mode])
        return out.reshape(x.shape)

    def nonzero(self, x: Array, /) -> tuple[Array, ...]:
        if not np.ndim(x):
            return ()
        return tuple(at.astype(np.int64, copy=False) for at in np.nonzero(x))

    # ---- composites ------------------------------------------------------------------------------------------------

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        return np.take(x, indices.astype(np.intp, copy=False), axis=axis)  # NumPy refuses indices of uint64
