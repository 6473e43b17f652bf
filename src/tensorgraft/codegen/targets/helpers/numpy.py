"""Functions of generated NumPy files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.operations.neural import taps

# ---- elementwise -----------------------------------------------------------------------------------------------------


def to_complex(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    """A complex array of its parts (which real + 1j * imag is not for infinities)."""
    real, imag = np.broadcast_arrays(real, imag)
    out = np.empty(real.shape, np.result_type(real, np.complex64))
    out.real, out.imag = real, imag
    return out


def integer_pow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Integers to any power; negative powers are the truncated reciprocal, as in C."""
    inverse = np.where(np.abs(x) == 1, np.where(np.bitwise_and(y, 1) == 1, x, x * x), 0 * x)
    return np.where(np.less(y, 0), inverse, x ** np.maximum(y, 0))


def complex_log1p(x: np.ndarray) -> np.ndarray:
    """log(1 + x) of complex numbers, without loss for small ones."""
    a, b = x.real, x.imag
    out = np.log(1 + x)
    near = 0.5 * np.log1p(a * (a + 2) + b * b) + 1j * out.imag
    return np.where(np.maximum(np.abs(a), np.abs(b)) < 0.5, near, out).astype(x.dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def each(fn: Callable[[float], float], x: np.ndarray) -> np.ndarray:
    """A function of Python's numbers, of every element in double precision."""
    return np.vectorize(fn, otypes=[np.float64])(np.asarray(x, np.float64)).astype(x.dtype)


def erf(x: np.ndarray) -> np.ndarray:
    return each(math.erf, x)


def erfc(x: np.ndarray) -> np.ndarray:
    return each(math.erfc, x)


def erf_inv(x: np.ndarray) -> np.ndarray:
    """Return the inverse of erf: Giles's approximation (2012), refined by Newton's method."""
    y = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        w = -np.log1p(-y * y)
        near, far = w - 2.5, np.sqrt(w) - 3
        centre = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
                  -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
        tail = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
                0.00943887047, 1.00167406, 2.83297682)  # fmt: skip
        z = np.where(w < 5, np.polyval(centre, near), np.polyval(tail, far)) * y
        for _ in range(3):
            left = np.where(np.abs(y) < 0.9, erf(z) - y, np.sign(y) * ((1 - np.abs(y)) - erfc(np.abs(z))))
            step = left / (2 / math.sqrt(math.pi) * np.exp(-z * z))
            z = z - np.where(np.isfinite(step), step, 0)
        ends = np.where(np.abs(y) == 1, y * np.inf, np.nan)
    return np.where(np.abs(y) < 1, z, ends).astype(x.dtype)


def lgamma(x: np.ndarray) -> np.ndarray:
    """log |gamma(x)|; infinite at 0, -1, -2, ..."""
    return each(lambda v: math.inf if v == -math.inf or (v <= 0 and v == int(v)) else math.lgamma(v), x)


def digamma(x: np.ndarray) -> np.ndarray:
    """The derivative of log gamma: reflected, moved to where Stirling's series is exact."""
    y = np.asarray(x, np.float64)
    with np.errstate(all="ignore"):
        low = y < 0.5
        z = np.where(low, 1 - y, y)
        moved = np.zeros_like(z)
        for _ in range(10):
            moved = moved - np.where(z < 10, 1 / z, 0)
            z = np.where(z < 10, z + 1, z)
        s = 1 / (z * z)
        series = s * (1 / 12 - s * (1 / 120 - s * (1 / 252 - s * (1 / 240 - s * (1 / 132 - s * 691 / 32760)))))
        out = moved + np.log(z) - 0.5 / z - np.where(np.isinf(z), 0, series)
        out = np.where(low, out - math.pi / np.tan(math.pi * (y - np.round(y))), out)
        out = np.where((y < 0) & (y == np.floor(y)), np.nan, out)
        out = np.where(y == 0, -np.copysign(np.inf, y), out)
    return out.astype(x.dtype)


# ---- reductions ------------------------------------------------------------------------------------------------------


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    exps = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
    return exps / np.sum(exps, axis=axis, keepdims=True)


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def logsumexp(x: np.ndarray, axis: Any = None, keepdims: bool = False) -> np.ndarray:
    high = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    high = np.where(np.isfinite(high), high, 0)
    out = np.log(np.sum(np.exp(x - high), axis=axis, keepdims=True)) + high
    return out if keepdims else np.squeeze(out, axis=tuple(range(x.ndim)) if axis is None else axis)


# ---- updates, sorting ------------------------------------------------------------------------------------------------


def updated(x: np.ndarray, index: Any, value: np.ndarray) -> np.ndarray:
    """A copy of `x` with `value` at `index`."""
    out = np.array(x)
    out[index] = value
    return out


def combined(ufunc: np.ufunc, x: np.ndarray, index: Any, value: np.ndarray) -> np.ndarray:
    """A copy of `x` into which `value` is added (multiplied, ...) at `index`, each time that a place occurs."""
    out = np.array(x)
    ufunc.at(out, index, np.broadcast_to(value, out[index].shape))  # which it does wrongly itself, in NumPy 2.4
    return out


def put_along_axis(
    x: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int, ufunc: np.ufunc | None = None
) -> np.ndarray:
    """A copy of `x` with `updates` put (added, ...) where `indices` say along an axis."""
    out = np.atleast_1d(np.array(x))
    shape = np.shape(indices) or (1,)
    places: list[Any] = list(np.indices(shape, sparse=True))
    places[axis] = np.reshape(indices, shape).astype(np.int64)
    if ufunc is None:
        out[tuple(places)] = np.reshape(updates, shape)
    else:
        ufunc.at(out, tuple(places), np.reshape(updates, shape))
    return out.reshape(np.shape(x))


def window(x: np.ndarray, start: Sequence[Any], sizes: Sequence[int]) -> tuple[slice, ...]:
    """Return the index of a window, moved so that it fits."""
    first = [min(max(int(at), 0), n - size) for at, n, size in zip(start, x.shape, sizes, strict=True)]
    return tuple(slice(at, at + size) for at, size in zip(first, sizes, strict=True))


def dynamic_slice(x: np.ndarray, start: Sequence[Any], sizes: Sequence[int]) -> np.ndarray:
    return x[window(x, start, sizes)]


def dynamic_update_slice(x: np.ndarray, update: np.ndarray, start: Sequence[Any]) -> np.ndarray:
    return updated(x, window(x, start, update.shape), update)


def pad(x: np.ndarray, value: Any, config: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """Each axis by (low, high, between two elements); negative numbers cut off."""
    apart = [n + max(n - 1, 0) * gap for n, (_, _, gap) in zip(x.shape, config, strict=True)]
    wide = [max(low, 0) + n + max(high, 0) for n, (low, high, _) in zip(apart, config, strict=True)]
    out = np.full(wide, value, x.dtype)
    out[tuple(slice(max(low, 0), max(low, 0) + n, gap + 1) for n, (low, _, gap) in zip(apart, config, strict=True))] = x
    return out[tuple(slice(max(-low, 0), n + min(high, 0)) for n, (low, high, _) in zip(wide, config, strict=True))]


def sort(operands: Sequence[np.ndarray], axis: int = -1, num_keys: int = 1) -> tuple[np.ndarray, ...]:
    """Arrays ordered together, by the first of them."""
    order = np.lexsort(operands[:num_keys][::-1], axis=axis)
    return tuple(np.take_along_axis(x, order, axis=axis) for x in operands)


def argsort_descending(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Stable, NaN first."""
    backwards = np.argsort(np.flip(x, axis), axis=axis, stable=True)
    return x.shape[axis] - 1 - np.flip(backwards, axis)


def sort_with_indices(x: np.ndarray, axis: int = -1, descending: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The values in order, and where they were."""
    order = argsort_descending(x, axis) if descending else np.argsort(x, axis=axis, stable=True)
    return np.take_along_axis(x, order, axis), order


def searchsorted(boundaries: np.ndarray, values: np.ndarray, side: str = "left") -> np.ndarray:
    """Return the indices at which `values` go into the sorted `boundaries`, row by row."""
    before = np.less if side == "left" else np.less_equal
    return before(boundaries[..., None, :], values[..., None]).sum(-1)


# ---- matrices --------------------------------------------------------------------------------------------------------


def lu(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(L and U in one matrix, which row was swapped in each step, the order of the rows)."""
    *batch, m, n = x.shape
    out = np.array(x)
    pivots = np.zeros((*batch, min(m, n)), np.int32)
    order = np.broadcast_to(np.arange(m, dtype=np.int32), (*batch, m)).copy()
    for at in np.ndindex(*batch):
        a = out[at]
        for k in range(min(m, n)):
            best = k + int(np.argmax(np.abs(a[k:, k])))
            pivots[at][k] = best
            a[[k, best]], order[at][[k, best]] = a[[best, k]], order[at][[best, k]]
            if a[k, k] != 0:
                a[k + 1 :, k] /= a[k, k]
                a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return out, pivots, order


def triangular_solve(
    a: np.ndarray, b: np.ndarray, lower: bool, left: bool = True, transpose: bool = False, adjoint: bool = False,
    unit_diagonal: bool = False,
) -> np.ndarray:  # fmt: skip
    """x with a x = b (or x a = b), from one triangle of `a`."""
    a = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        eye = np.eye(a.shape[-1], dtype=a.dtype)
        a = a * (1 - eye) + eye
    if transpose or adjoint:
        a = a.mT.conj() if adjoint else a.mT
    return np.linalg.solve(a, b) if left else np.linalg.solve(a.mT, b.mT).mT


def householder_product(a: np.ndarray, tau: np.ndarray) -> np.ndarray:
    """The first columns of the product of reflectors (LAPACK's orgqr)."""
    m, n = a.shape[-2:]
    out = np.broadcast_to(np.eye(m, n, dtype=a.dtype), a.shape)
    for k in reversed(range(tau.shape[-1])):
        v = np.concatenate([np.zeros_like(a[..., :k, k]), np.ones_like(a[..., :1, k]), a[..., k + 1 :, k]], axis=-1)
        row = v.conj()[..., None, :] @ out
        out = out - tau[..., k, None, None] * v[..., None] * row
    return out


# ---- windows ---------------------------------------------------------------------------------------------------------


def windows(x: np.ndarray, sizes: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> np.ndarray:
    """Return the elements of windows over the last axes: (..., places..., window...)."""
    n = len(sizes)
    whole = [d * (k - 1) + 1 for k, d in zip(sizes, dilation, strict=True)]
    if any(k > s for k, s in zip(whole, x.shape[x.ndim - n :], strict=True)):  # none fits
        places = [max(s - k, -1) // t + 1 for s, k, t in zip(x.shape[x.ndim - n :], whole, strides, strict=True)]
        return np.zeros((*x.shape[: x.ndim - n], *places, *sizes), x.dtype)
    seen = np.lib.stride_tricks.sliding_window_view(x, whole, tuple(range(x.ndim - n, x.ndim)))
    steps: list[Any] = [*(slice(None, None, s) for s in strides), *(slice(None, None, d) for d in dilation)]
    index: Any = (..., *steps)
    return seen[index]


def convolution(
    x: np.ndarray,
    weight: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    groups: int = 1,
    batch_groups: int = 1,
) -> np.ndarray:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...), by one product of all windows."""
    n = len(strides)
    wide = np.float32 if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x.dtype
    gaps = [d - 1 for d in lhs_dilation or [1] * n]
    spread = [(0, 0, 0), (0, 0, 0), *((*p, g) for p, g in zip(padding, gaps, strict=True))]
    seen = windows(pad(x.astype(wide), 0, spread), weight.shape[2:], strides, rhs_dilation or [1] * n)
    seen = seen.reshape(batch_groups, seen.shape[0] // batch_groups, groups, seen.shape[1] // groups, *seen.shape[2:])
    many = groups * batch_groups
    seen = np.moveaxis(seen, 2, 1).reshape(many, *seen.shape[1:2], *seen.shape[3:])
    parts = weight.astype(wide).reshape(many, weight.shape[0] // many, *weight.shape[1:])
    axes = (1, *range(n + 2, 2 * n + 2)), (1, *range(2, n + 2))  # channels and window
    out = [np.tensordot(s, w, axes=axes) for s, w in zip(seen, parts, strict=True)]
    return np.moveaxis(np.concatenate(out, axis=-1), -1, 1).astype(x.dtype)


def reduce_window(
    reduce: Callable[..., np.ndarray],
    x: np.ndarray,
    initial: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> np.ndarray:
    """Sums, maxima or minima over windows, one size an axis."""
    if x.ndim == 0:
        return x
    wide = np.float32 if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x.dtype
    spread = pad(x.astype(wide), initial, [(*p, 0) for p in padding])
    seen = windows(spread, window, strides, dilation or [1] * x.ndim)
    return reduce(seen, axis=tuple(range(-x.ndim, 0))).astype(x.dtype)


# ---- control flow ----------------------------------------------------------------------------------------------------


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
    while condition(state):
        state = body(state)
    return state


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Any, ...], length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """`step(carry, x) -> (carry, y)` along the first axis; (the last carry, the stacked ys)."""
    rows = []
    for i in reversed(range(length)) if reverse else range(length):
        carry, y = step(carry, tuple(x[i] for x in xs))
        rows.append(y)
    if reverse:
        rows.reverse()
    return carry, tuple(np.stack(ys) for ys in zip(*rows, strict=True))


# ---- words -----------------------------------------------------------------------------------------------------------


def dropout(x: np.ndarray, key: np.random.Generator, rate: float) -> np.ndarray:
    """Zeros at random, the rest divided by 1 - rate."""
    return np.where(key.random(x.shape) < 1 - rate, x / x.dtype.type(1 - rate), x.dtype.type(0))


# ---- convolution and pooling of words --------------------------------------------------------------------------------


def resize(x: np.ndarray, size: tuple[int, ...], method: str = "nearest", corners: bool = False) -> np.ndarray:
    """The last axes of x at another size: by the nearest places, or "linear" or "cubic" (Keys 1981) between them."""
    for axis, m in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        n = x.shape[axis]
        if method == "nearest":
            x = np.take(x, np.arange(m) * n // m, axis=axis)
        elif n != m:
            weights = taps(n, m, method, corners).astype(x.dtype)
            x = np.moveaxis(np.tensordot(x, weights, axes=(axis, 1)), -1, axis)
    return x


# ---- the random numbers of JAX ---------------------------------------------------------------------------------------


def threefry(key: np.ndarray, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 of 20 rounds (Salmon et al. 2011): words of 32 bits in int64, encrypted with `key` (2,)."""
    mask = 0xFFFFFFFF
    first, second = key.astype(np.int64)
    keys = (first, second, first ^ second ^ 0x1BD11BDA)
    high, low = (high + first) & mask, (low + second) & mask
    for group in range(5):
        for r in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            high = (high + low) & mask
            low = ((low << r) | (low >> (32 - r))) & mask ^ high
        high = (high + keys[(group + 1) % 3]) & mask
        low = (low + keys[(group + 2) % 3] + group + 1) & mask
    return high, low


def jax_words(key: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The words of 0, 1, 2, ... in `shape`."""
    at = np.arange(math.prod(shape)).reshape(shape)
    return threefry(key, np.zeros_like(at), at)


def jax_bits(key: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """jax.random.bits."""
    high, low = jax_words(key, shape)
    return (high ^ low).astype(np.uint32)


def jax_uniform(key: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """jax.random.uniform."""
    high, low = jax_words(key, shape)
    return ((high ^ low) >> 9).astype(np.float32) * np.float32(2.0**-23)


def jax_normal(key: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """jax.random.normal."""
    low = np.float32(-0.99999994)
    return erf_inv(np.maximum(jax_uniform(key, shape) * np.float32(2) + low, low)) * np.float32(1.4142135)


def jax_split(key: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """jax.random.split: keys (*shape, 2)."""
    return np.stack(jax_words(key, shape), -1).astype(np.uint32)


def jax_fold_in(key: np.ndarray, data: np.ndarray) -> np.ndarray:
    """jax.random.fold_in."""
    data = np.asarray(data).astype(np.int64)
    return np.stack(threefry(key, np.zeros_like(data), data)).astype(np.uint32)
