"""Functions of generated NumPy files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.codegen.targets.helpers import shared

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


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution function (Hendrycks, Gimpel 2016)."""
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def elu(x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def selu(x: np.ndarray) -> np.ndarray:
    """Klambauer et al. 2017."""
    return 1.0507009873554805 * elu(x, 1.6732632423543772)


def mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.logaddexp(x, 0))


def log_sigmoid(x: np.ndarray) -> np.ndarray:
    return -np.logaddexp(-x, 0)


def relu6(x: np.ndarray) -> np.ndarray:
    return np.clip(x, 0, 6)


def hard_sigmoid(x: np.ndarray) -> np.ndarray:
    return relu6(x + 3) / 6


def hard_silu(x: np.ndarray) -> np.ndarray:
    return x * hard_sigmoid(x)


def each(fn: Callable[[float], float], x: np.ndarray) -> np.ndarray:
    """A function of Python's numbers, of every element in double precision."""
    return np.vectorize(fn, otypes=[np.float64])(np.asarray(x, np.float64)).astype(x.dtype)


def erf(x: np.ndarray) -> np.ndarray:
    return each(math.erf, x)


def erfc(x: np.ndarray) -> np.ndarray:
    return each(math.erfc, x)


def erf_inv(x: np.ndarray) -> np.ndarray:
    """The inverse of erf: Giles's approximation (2012), and Newton's method from there."""
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


def top_k(x: np.ndarray, k: int, axis: int = -1, largest: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """The `k` greatest (or least) values in order, and where they are."""
    order = argsort_descending(x, axis) if largest else np.argsort(x, axis=axis, stable=True)
    order = np.take(order, range(k), axis=axis)
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


while_loop = shared.while_loop


scan = shared.scan


# ---- words -----------------------------------------------------------------------------------------------------------


def layer_norm(
    x: np.ndarray, weight: np.ndarray | None = None, bias: np.ndarray | None = None, axes: int = 1, eps: float = 1e-5
) -> np.ndarray:
    """Over the last `axes` axes (Ba, Kiros, Hinton 2016)."""
    over = tuple(range(-axes, 0))
    y = (x - x.mean(over, keepdims=True)) / np.sqrt(x.var(over, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(x: np.ndarray, weight: np.ndarray | None = None, axes: int = 1, eps: float = 1e-6) -> np.ndarray:
    """Over the last `axes` axes (Zhang, Sennrich 2019)."""
    y = x / np.sqrt(np.square(x).mean(tuple(range(-axes, 0)), keepdims=True) + eps)
    return y if weight is None else y * weight


per_channel = shared.per_channel


def group_norm(
    x: np.ndarray, groups: int, weight: np.ndarray | None = None, bias: np.ndarray | None = None, eps: float = 1e-5
) -> np.ndarray:
    """Over the channels of a group of x (N, C, ...) and all that follows (Wu, He 2018)."""
    parts = x.reshape(x.shape[0], groups, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + eps)
    y = parts.reshape(x.shape)
    y = y if weight is None else y * per_channel(weight, x)
    return y if bias is None else y + per_channel(bias, x)


batch_norm = shared.batch_norm


batch_norm_training = shared.batch_norm_training


def cross_entropy(
    logits: np.ndarray,
    labels: np.ndarray,
    weight: np.ndarray | None = None,
    reduction: str = "mean",
    ignored: int | None = -100,
    smoothing: float = 0.0,
) -> np.ndarray:
    """Logits (N, C, ...) or (C), labels (N, ...) of integers, of which the ignored ones count nothing; weight (C)."""
    axis = min(logits.ndim - 1, 1)
    scores = log_softmax(logits, axis)
    real = labels != (-100 if ignored is None else ignored)
    at = np.where(real, labels, 0)
    loss = -np.take_along_axis(scores, np.expand_dims(at, axis), axis).squeeze(axis)
    counts = real.astype(scores.dtype) if weight is None else real * weight[at]
    loss = loss * counts
    if smoothing:
        of_class = 1 if weight is None else weight.reshape(-1, *[1] * (scores.ndim - axis - 1))
        spread = -(scores * of_class).sum(axis) * real
        loss = (1 - smoothing) * loss + smoothing / logits.shape[axis] * spread
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counts.sum()


def attention_weights(
    q: np.ndarray, k: np.ndarray, mask: np.ndarray | None = None, causal: bool = False, scale: float | None = None
) -> np.ndarray:
    """softmax(scale q k^T + mask) of q (N, H, L, E) and k (N, H, S, E); zeros where nothing is seen."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    hidden = np.finfo(scores.dtype).min
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, hidden)
    if mask is None:
        return softmax(scores)
    scores = np.where(mask, scores, hidden) if mask.dtype == bool else np.maximum(scores + mask, hidden)
    return softmax(scores) * (scores > hidden)


dot_product_attention = shared.dot_product_attention


def dropout(x: np.ndarray, key: np.random.Generator, rate: float) -> np.ndarray:
    """Zeros at random, the rest divided by 1 - rate."""
    return np.where(key.random(x.shape) < 1 - rate, x / x.dtype.type(1 - rate), x.dtype.type(0))


# ---- recurrence ------------------------------------------------------------------------------------------------------


def lstm(
    x: np.ndarray,
    h: np.ndarray,
    c: np.ndarray,
    w_ih: np.ndarray,
    w_hh: np.ndarray,
    b_ih: np.ndarray | None = None,
    b_hh: np.ndarray | None = None,
    w_hr: np.ndarray | None = None,
    reverse: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One layer (Hochreiter, Schmidhuber 1997): x (T, N, I), h and c (N, H), gates i, f, g, o -> (every h, the last h,
    the last c)."""
    rows = []
    given = x @ w_ih.T if b_ih is None else x @ w_ih.T + b_ih
    for row in given[::-1] if reverse else given:
        gates = row + h @ w_hh.T if b_hh is None else row + h @ w_hh.T + b_hh
        i, f, g, o = np.split(gates, 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        h = h if w_hr is None else h @ w_hr.T
        rows.append(h)
    return np.stack(rows[::-1] if reverse else rows), h, c


def gru(
    x: np.ndarray,
    h: np.ndarray,
    w_ih: np.ndarray,
    w_hh: np.ndarray,
    b_ih: np.ndarray | None = None,
    b_hh: np.ndarray | None = None,
    reverse: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """One layer (Cho et al. 2014): x (T, N, I), h (N, H), gates r, z, n -> (every h, the last h)."""
    rows = []
    given = x @ w_ih.T if b_ih is None else x @ w_ih.T + b_ih
    for row in given[::-1] if reverse else given:
        r, z, n = np.split(row, 3, axis=-1)
        of_h = h @ w_hh.T if b_hh is None else h @ w_hh.T + b_hh
        r_h, z_h, n_h = np.split(of_h, 3, axis=-1)
        z = sigmoid(z + z_h)
        n = np.tanh(n + sigmoid(r + r_h) * n_h)
        h = (1 - z) * n + z * h
        rows.append(h)
    return np.stack(rows[::-1] if reverse else rows), h


def rnn(
    x: np.ndarray,
    h: np.ndarray,
    w_ih: np.ndarray,
    w_hh: np.ndarray,
    b_ih: np.ndarray | None = None,
    b_hh: np.ndarray | None = None,
    activation: str = "tanh",
    reverse: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """One layer (Elman 1990): x (T, N, I), h (N, H) -> (every h, the last h)."""
    rows = []
    given = x @ w_ih.T if b_ih is None else x @ w_ih.T + b_ih
    for row in given[::-1] if reverse else given:
        total = row + h @ w_hh.T if b_hh is None else row + h @ w_hh.T + b_hh
        h = np.tanh(total) if activation == "tanh" else np.maximum(total, 0)
        rows.append(h)
    return np.stack(rows[::-1] if reverse else rows), h


# ---- convolution and pooling of words --------------------------------------------------------------------------------


def conv(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int | tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> np.ndarray:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...) and bias (O)."""
    n = weight.ndim - 2
    each: list[Any] = [v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, dilation)]
    strides, pads, gaps = each
    pads = tuple(p if isinstance(p, tuple) else (p, p) for p in pads)
    y = convolution(x, weight, strides, pads, rhs_dilation=gaps, groups=groups)
    return y if bias is None else y + bias.reshape(-1, *[1] * n)


def conv_transpose(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> np.ndarray:
    """The transpose of `conv` in its images: x (N, C, spatial...), weight (C, O / groups, spatial...), bias (O)."""
    c, o, *taps = weight.shape
    n = len(taps)
    strides, pads, extra, gaps = (
        v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, output_padding, dilation)
    )
    weight = weight.reshape(groups, c // groups, o, *taps).swapaxes(1, 2).reshape(groups * o, c // groups, *taps)
    reach = [d * (k - 1) - p for k, d, p in zip(taps, gaps, pads, strict=True)]
    around = [(r, r + e) for r, e in zip(reach, extra, strict=True)]
    weight = np.flip(weight, tuple(range(2, n + 2)))
    y = convolution(x, weight, (1,) * n, around, lhs_dilation=strides, rhs_dilation=gaps, groups=groups)
    return y if bias is None else y + bias.reshape(-1, *[1] * n)


def max_pool(
    x: np.ndarray,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...] | None = None,
    dilation: tuple[int, ...] | None = None,
) -> np.ndarray:
    """The largest in each window over the last axes of x."""
    n = len(window)
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    spread = pad(x, least, [(0, 0, 0)] * (x.ndim - n) + [(*p, 0) for p in padding or ((0, 0),) * n])
    return windows(spread, window, stride, dilation or (1,) * n).max(axis=tuple(range(-n, 0)))


def avg_pool(
    x: np.ndarray,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...] | None = None,
    count_padding: bool = True,
) -> np.ndarray:
    """The mean of each window over the last axes of x, whose padding is zeros that count or not."""
    n = len(window)

    def total(values: np.ndarray) -> np.ndarray:
        spread = pad(values, 0, [(0, 0, 0)] * (x.ndim - n) + [(*p, 0) for p in padding or ((0, 0),) * n])
        return windows(spread, window, stride, (1,) * n).sum(axis=tuple(range(-n, 0)))

    return total(x) / (math.prod(window) if count_padding else total(np.ones_like(x)))


def taps(n: int, m: int, method: str, corners: bool) -> np.ndarray:
    """(m, n): how much of each old place is in each new one."""
    at = np.arange(m) * ((n - 1) / max(m - 1, 1)) if corners else (np.arange(m) + 0.5) * n / m - 0.5
    at = np.maximum(at, 0) if method == "linear" else at
    left = np.floor(at)
    table = np.zeros((m, n))
    for tap in range(-1, 3):
        t = np.abs(at - left - tap)
        if method == "linear":
            weight = np.maximum(1 - t, 0)
        else:
            near, far = (1.25 * t - 2.25) * t * t + 1, -0.75 * (((t - 5) * t + 8) * t - 4)
            weight = np.where(t <= 1, near, np.where(t < 2, far, 0))
        np.add.at(table, (np.arange(m), np.clip(left + tap, 0, n - 1).astype(int)), weight)
    return table


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
