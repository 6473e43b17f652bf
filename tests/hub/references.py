"""References in plain NumPy and SciPy, written for clearness: loops, and nothing of a backend."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.hub.draw import Draw

from tensorgraft.hub import dtypes

_UFUNCS = {"add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum, "sum": np.add}


def where_operands(d: Draw) -> tuple[Any, ...]:
    shapes = d.broadcastable(3)
    return d.array(shapes[0], dtypes.bool_), d.array(shapes[1]), d.array(shapes[2])


def fill_value(d: Draw) -> Any:
    """A Python scalar, or a 0-d array of some dtype."""
    if d.flag():
        return d.array((), dtypes.float32 if dtypes.is_inexact(d.dtype) else dtypes.int32, low=0, high=3)
    return 2.5 if dtypes.is_inexact(d.dtype) else 1


def some_axes(d: Draw, x: np.ndarray) -> tuple[int, ...]:
    return tuple(a for a in range(x.ndim) if d.flag())


def astype(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """By way of double precision and int64, so that every value is what C would make of it."""
    if x.dtype.kind == "c" and dtype.kind not in "cb":
        x = x.real
    if dtypes.is_floating(x.dtype):
        x = x.astype(np.float64)
        if dtype.kind in "iu":
            return np.trunc(x).astype(np.int64).astype(dtype)
        if dtypes.is_floating(dtype) and dtype.itemsize < 4:  # ml_dtypes rounds from float32
            x = x.astype(np.float32)
    return x.astype(dtype)


def reduced(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, axis, keepdims: fn(x, axis=axis, keepdims=keepdims)


def extreme(fn: Callable[..., Any], identity: Callable[[np.dtype], Any]) -> Callable[..., Any]:
    return lambda x, axis, keepdims: fn(x, axis=axis, keepdims=keepdims, initial=identity(x.dtype))


def pad(x: np.ndarray, value: Any, config: Any) -> np.ndarray:
    shape = tuple(n + low + high + max(n - 1, 0) * gap for n, (low, high, gap) in zip(x.shape, config, strict=True))
    out = np.full(shape, value, x.dtype)
    for at in np.ndindex(x.shape):
        to = tuple(low + i * (gap + 1) for i, (low, _, gap) in zip(at, config, strict=True))
        if all(0 <= i < n for i, n in zip(to, shape, strict=True)):
            out[to] = x[at]
    return out


def slice_update(x: np.ndarray, update: np.ndarray, start: Any, step: Any) -> np.ndarray:
    out = x.copy()
    for at in np.ndindex(update.shape):
        out[tuple(b + i * s for i, b, s in zip(at, start, step, strict=True))] = update[at]
    return out


def window(x: np.ndarray, start: Any, sizes: Any) -> tuple[slice, ...]:
    lows = (int(np.clip(b, 0, n - k)) for b, n, k in zip(start, x.shape, sizes, strict=True))
    return tuple(slice(low, low + k) for low, k in zip(lows, sizes, strict=True))


def dynamic_update_slice(x: np.ndarray, update: np.ndarray, start: Any) -> np.ndarray:
    out = x.copy()
    out[window(x, start, update.shape)] = update
    return out


def scatter(x: np.ndarray, indices: list[np.ndarray], updates: np.ndarray, mode: str) -> np.ndarray:
    out = x.copy()
    grids = np.broadcast_arrays(*indices)
    updates = np.broadcast_to(updates, grids[0].shape + x.shape[len(indices) :])
    for at in np.ndindex(grids[0].shape):
        to = tuple(int(grid[at]) for grid in grids)
        out[to] = updates[at] if mode == "set" else _UFUNCS[mode](out[to], updates[at])
    return out


def sort(operands: list[np.ndarray], axis: int, num_keys: int) -> tuple[np.ndarray, ...]:
    """Python's own sort of one line after the other."""
    moved = [np.moveaxis(x, axis, -1) for x in operands]
    out = [np.array(x) for x in moved]
    for row in np.ndindex(moved[0].shape[:-1]):
        keys = [[(bool(v != v), 0 if v != v else v) for v in x[row].tolist()] for x in moved[:num_keys]]
        order = sorted(range(moved[0].shape[-1]), key=lambda i: tuple(key[i] for key in keys))
        for x, target in zip(moved, out, strict=True):
            target[row] = x[row][order]
    return tuple(np.moveaxis(x, -1, axis) for x in out)


def searchsorted(boundaries: np.ndarray, values: np.ndarray, right: bool) -> np.ndarray:
    if boundaries.ndim > 1:
        boundaries = boundaries[..., None, :]
    before = boundaries <= values[..., None] if right else boundaries < values[..., None]
    return before.sum(-1)


def products_of(dtype: np.dtype) -> tuple[np.dtype, ...]:
    """Dtypes in which products of `dtype` may be accumulated."""
    if dtypes.is_integer(dtype):
        return tuple(wide for wide in (dtypes.int32, dtypes.int64) if wide.itemsize >= dtype.itemsize)
    return (dtypes.float32,) if dtype in (dtypes.float16, dtypes.bfloat16) else ()


def dot_general(a: np.ndarray, b: np.ndarray, contract: Any, batch: Any, dtype: np.dtype | None) -> np.ndarray:
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names_a, names_b = ["" for _ in a.shape], ["" for _ in b.shape]
    shared = ""
    for i, j in zip(*batch, strict=True):
        names_a[i] = names_b[j] = letter = next(letters)
        shared += letter
    for i, j in zip(*contract, strict=True):
        names_a[i] = names_b[j] = next(letters)
    free = ""
    for names in (names_a, names_b):
        for i, name in enumerate(names):
            if not name:
                names[i] = letter = next(letters)
                free += letter
    if dtype is not None and dtypes.is_integer(dtype):
        a, b = a.astype(dtype), b.astype(dtype)
    return np.einsum(f"{''.join(names_a)},{''.join(names_b)}->{shared}{free}", a, b)


def triangular_solve(
    a: np.ndarray, b: np.ndarray, lower: bool, left: bool, transpose: bool, adjoint: bool, unit_diagonal: bool
) -> np.ndarray:
    a = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        i = np.arange(a.shape[-1])
        a = a.copy()
        a[..., i, i] = 1
    if transpose or adjoint:
        a = a.swapaxes(-1, -2)
    if adjoint:
        a = a.conj()
    if left:
        return np.linalg.solve(a, b)
    return np.linalg.solve(a.swapaxes(-1, -2), b.swapaxes(-1, -2)).swapaxes(-1, -2)


def householder_product(a: np.ndarray, tau: np.ndarray) -> np.ndarray:
    m, n = a.shape[-2:]
    out = np.empty_like(a)
    for at in np.ndindex(a.shape[:-2]):
        q = np.eye(m, dtype=a.dtype)
        for i in range(tau.shape[-1]):
            v = np.concatenate([np.zeros(i), [1], a[at][i + 1 :, i]])
            q = q @ (np.eye(m) - tau[(*at, i)] * np.outer(v, v.conj()))
        out[at] = q[:, :n]
    return out


def convolution(x: Any, w: Any, strides: Any, padding: Any, lhs: Any, rhs: Any, groups: int, batch_groups: int) -> Any:
    """One output element at a time."""
    x = pad(x, 0, [(0, 0, 0), (0, 0, 0), *((*p, d - 1) for p, d in zip(padding, lhs, strict=True))])
    taps = w.shape[2:]
    out = tuple(
        max((n - d * (k - 1) - 1) // s + 1, 0) for n, k, s, d in zip(x.shape[2:], taps, strides, rhs, strict=True)
    )
    batch, outputs, channels = x.shape[0] // batch_groups, w.shape[0], w.shape[1]
    y = np.zeros((batch, outputs, *out), x.dtype)
    for at in np.ndindex(y.shape):
        n, o, *place = at
        group = o // (outputs // (groups * batch_groups))
        rows = n + batch * group if batch_groups > 1 else n
        first = channels * group if groups > 1 else 0
        seen = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d) for p, s, d, k in zip(place, strides, rhs, taps, strict=True)
        )
        y[at] = np.sum(x[(rows, slice(first, first + channels), *seen)] * w[o], dtype=x.dtype)
    return y


def reduce_window(x: np.ndarray, kind: str, extents: Any, strides: Any, padding: Any, dilation: Any) -> np.ndarray:
    identity = {"sum": 0, "max": dtypes.lowest(x.dtype), "min": dtypes.highest(x.dtype)}[kind]
    x = pad(x, identity, [(*p, 0) for p in padding])
    out = tuple(
        max((n - d * (k - 1) - 1) // s + 1, 0) for n, k, s, d in zip(x.shape, extents, strides, dilation, strict=True)
    )
    y = np.empty(out, x.dtype)
    for at in np.ndindex(out):
        seen = itertools.product(
            *(
                range(p * s, p * s + d * (k - 1) + 1, d)
                for p, s, d, k in zip(at, strides, dilation, extents, strict=True)
            )
        )
        y[at] = _UFUNCS[kind].reduce(np.array([x[i] for i in seen]), dtype=x.dtype)
    return y


# ---- results that are not unique -------------------------------------------------------------------------------------


def _near(found: np.ndarray, wanted: np.ndarray, dtype: np.dtype) -> None:
    tolerance = 512 * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def _adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


def _unitary(x: np.ndarray, dtype: np.dtype) -> None:
    """The columns of `x` are orthonormal."""
    _near(_adjoint(x) @ x, np.broadcast_to(np.eye(x.shape[-1]), (*x.shape[:-2], x.shape[-1], x.shape[-1])), dtype)


def verify_qr(operands: Any, results: Any) -> None:
    (x, _), (q, r) = operands, results
    _near(q @ r, x, x.dtype)
    _unitary(q, x.dtype)
    np.testing.assert_array_equal(np.tril(r, -1), 0)


def verify_svd(operands: Any, results: Any) -> None:
    (x, _), (u, s, vh) = operands, results
    k = s.shape[-1]
    _near((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x, x.dtype)
    _unitary(u, x.dtype)
    _unitary(_adjoint(vh), x.dtype)
    assert np.all(np.diff(s, axis=-1) <= 0) and np.all(s >= 0)


def verify_eigh(operands: Any, results: Any) -> None:
    (x, lower), (values, vectors) = operands, results
    half = np.tril(x, -1) if lower else np.triu(x, 1)
    diagonal = np.eye(x.shape[-1]) * x.real
    whole = (half + _adjoint(half) + diagonal).astype(x.dtype)
    _near(whole @ vectors, vectors * values[..., None, :], x.dtype)
    _unitary(vectors, x.dtype)
    assert np.all(np.diff(values, axis=-1) >= 0)


def verify_eig(operands: Any, results: Any) -> None:
    (x,), (values, vectors) = operands, results
    _near(x @ vectors, vectors * values[..., None, :], x.dtype)
    _near(np.linalg.norm(vectors, axis=-2), np.ones(values.shape), x.dtype)


def verify_lu(operands: Any, results: Any) -> None:
    (x,), (lu, pivots, permutation) = operands, results
    m, n = x.shape[-2:]
    k = min(m, n)
    lower, upper = np.tril(lu[..., :k], -1) + np.eye(m, k), np.triu(lu[..., :k, :])
    _near(lower @ upper, np.take_along_axis(x, permutation[..., None].astype(np.int64), -2), x.dtype)
    assert math.prod(lu.shape) == 0 or np.abs(np.tril(lu[..., :k], -1)).max() < 1.5  # partial pivoting
    for at in np.ndindex(x.shape[:-2]):
        order = np.arange(m)
        for i, j in enumerate(pivots[at]):
            order[[i, j]] = order[[j, i]]
        np.testing.assert_array_equal(order, permutation[at])
