"""Functions of generated JAX files."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from tensorgraft.codegen.targets.helpers import shared


def integer_pow(x: jax.Array, y: jax.Array | int) -> jax.Array:
    """Integers to any power; negative powers are the truncated reciprocal, as in C."""
    inverse = jnp.where(jnp.abs(x) == 1, jnp.where(y & 1 == 1, x, 1), 0)
    return jnp.where(y < 0, inverse, x ** jnp.maximum(y, 0))


def sort_with_indices(x: jax.Array, axis: int = -1, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    """The values in order, and where they were."""
    order = jnp.argsort(x, axis=axis, descending=descending)
    return jnp.take_along_axis(x, order, axis=axis), order


def top_k(x: jax.Array, k: int, axis: int = -1) -> tuple[jax.Array, jax.Array]:
    """The greatest `k` values along an axis, in order, and where they are."""
    order = jnp.argsort(x, axis=axis, descending=True)
    order = jax.lax.slice_in_dim(order, 0, k, axis=axis)
    return jnp.take_along_axis(x, order, axis=axis), order


def bottom_k(x: jax.Array, k: int, axis: int = -1) -> tuple[jax.Array, jax.Array]:
    """The least `k` values along an axis, in order, and where they are."""
    order = jax.lax.slice_in_dim(jnp.argsort(x, axis=axis), 0, k, axis=axis)
    return jnp.take_along_axis(x, order, axis=axis), order


def put_along_axis(x: jax.Array, indices: jax.Array, updates: jax.Array, axis: int, mode: str = "set") -> jax.Array:
    """`x` with `updates` put, added, ... (`mode`) where `indices` say along an axis."""
    if x.ndim == 0:
        return put_along_axis(x[None], indices.reshape(-1), updates.reshape(-1), 0, mode)[0]
    places = list(jnp.indices(indices.shape, sparse=True))
    places[axis] = indices
    return getattr(x.at[tuple(places)], mode)(updates)


def searchsorted(boundaries: jax.Array, values: jax.Array, side: str) -> jax.Array:
    """Return the indices at which `values` go into the sorted `boundaries`, row by row."""
    search = lambda b, v: jnp.searchsorted(b, v, side=side)  # noqa: E731
    for _ in boundaries.shape[:-1]:
        search = jax.vmap(search)
    return search(boundaries, values).astype(int)


# ---- convolution and pooling -----------------------------------------------------------------------------------------


def conv(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int | tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> jax.Array:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...) and bias (O)."""
    n = weight.ndim - 2
    strides, pads, gaps = (v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, dilation))
    pads = [p if isinstance(p, tuple) else (p, p) for p in pads]
    y = jax.lax.conv_general_dilated(x, weight, strides, pads, rhs_dilation=gaps, feature_group_count=groups)
    return y if bias is None else y + bias.reshape(-1, *[1] * n)


def conv_channels_last(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int | tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> jax.Array:
    """x (N, spatial..., C) with weight (spatial..., C / groups, O) and bias (O)."""
    n = weight.ndim - 2
    strides, pads, gaps = (v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, dilation))
    y = jax.lax.conv_general_dilated(
        x,
        weight,
        strides,
        [p if isinstance(p, tuple) else (p, p) for p in pads],
        rhs_dilation=gaps,
        dimension_numbers=("N" + "DHW"[3 - n :] + "C", "DHW"[3 - n :] + "IO", "N" + "DHW"[3 - n :] + "C"),
        feature_group_count=groups,
    )
    return y if bias is None else y + bias


def conv_transpose(
    x: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int, ...] = 0,
    output_padding: int | tuple[int, ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> jax.Array:
    """The transpose of `conv` in its images: x (N, C, spatial...), weight (C, O / groups, spatial...), bias (O)."""
    taps = weight.shape[2:]
    n = len(taps)
    strides, pads, extra, gaps = (
        v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, output_padding, dilation)
    )
    weight = (
        weight.swapaxes(0, 1)
        if groups == 1
        else weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(groups * weight.shape[1], -1, *taps)
    )
    reach = [d * (k - 1) - p for k, d, p in zip(taps, gaps, pads, strict=True)]
    y = jax.lax.conv_general_dilated(
        x,
        jnp.flip(weight, range(2, n + 2)),
        (1,) * n,
        [(r, r + e) for r, e in zip(reach, extra, strict=True)],
        lhs_dilation=strides,
        rhs_dilation=gaps,
        feature_group_count=groups,
    )
    return y if bias is None else y + bias.reshape(-1, *[1] * n)


def max_pool(
    x: jax.Array,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...] | None = None,
    dilation: tuple[int, ...] | None = None,
) -> jax.Array:
    """The largest in each window over the last axes of x."""
    lead = x.ndim - len(window)
    least = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jax.lax.reduce_window(
        x,
        np.array(least, x.dtype),
        jax.lax.max,
        (1,) * lead + window,
        (1,) * lead + stride,
        ((0, 0),) * lead + (padding or ((0, 0),) * len(window)),
        window_dilation=None if dilation is None else (1,) * lead + dilation,
    )


def avg_pool(
    x: jax.Array,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[tuple[int, int], ...] | None = None,
    count_padding: bool = True,
) -> jax.Array:
    """The mean of each window over the last axes of x, whose padding is zeros that count or not."""
    lead = x.ndim - len(window)
    pads = ((0, 0),) * lead + (padding or ((0, 0),) * len(window))

    def total(values: jax.Array) -> jax.Array:
        zero = np.array(0, values.dtype)
        return jax.lax.reduce_window(values, zero, jax.lax.add, (1,) * lead + window, (1,) * lead + stride, pads)

    return total(x) / (math.prod(window) if count_padding else total(jnp.ones_like(x)))


# ---- normalisation ---------------------------------------------------------------------------------------------------


def layer_norm(
    x: jax.Array, weight: jax.Array | None = None, bias: jax.Array | None = None, axes: int = 1, eps: float = 1e-5
) -> jax.Array:
    """Over the last `axes` axes (Ba, Kiros, Hinton 2016)."""
    over = tuple(range(-axes, 0))
    y = (x - x.mean(over, keepdims=True)) * jax.lax.rsqrt(x.var(over, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(x: jax.Array, weight: jax.Array | None = None, axes: int = 1, eps: float = 1e-6) -> jax.Array:
    """Over the last `axes` axes (Zhang, Sennrich 2019)."""
    y = x * jax.lax.rsqrt(jnp.square(x).mean(tuple(range(-axes, 0)), keepdims=True) + eps)
    return y if weight is None else y * weight


per_channel = shared.per_channel


def group_norm(
    x: jax.Array, groups: int, weight: jax.Array | None = None, bias: jax.Array | None = None, eps: float = 1e-5
) -> jax.Array:
    """Over the channels of a group of x (N, C, ...) and all that follows (Wu, He 2018)."""
    parts = x.reshape(x.shape[0], groups, -1)
    parts = (parts - parts.mean(-1, keepdims=True)) * jax.lax.rsqrt(parts.var(-1, keepdims=True) + eps)
    y = parts.reshape(x.shape)
    y = y if weight is None else y * per_channel(weight, x)
    return y if bias is None else y + per_channel(bias, x)


def batch_norm(
    x: jax.Array,
    mean: jax.Array,
    variance: jax.Array,
    weight: jax.Array | None = None,
    bias: jax.Array | None = None,
    eps: float = 1e-5,
) -> jax.Array:
    """x (N, C, ...) by the statistics of each channel (Ioffe, Szegedy 2015)."""
    y = (x - per_channel(mean, x)) * per_channel(jax.lax.rsqrt(variance + eps), x)
    y = y if weight is None else y * per_channel(weight, x)
    return y if bias is None else y + per_channel(bias, x)


batch_norm_training = shared.batch_norm_training


# ---- losses, recurrence, attention -----------------------------------------------------------------------------------


def cross_entropy(
    logits: jax.Array,
    labels: jax.Array,
    weight: jax.Array | None = None,
    reduction: str = "mean",
    ignored: int | None = -100,
    smoothing: float = 0.0,
) -> jax.Array:
    """Logits (N, C, ...) or (C), labels (N, ...) of integers, of which the ignored ones count nothing; weight (C)."""
    axis = min(logits.ndim - 1, 1)
    scores = jax.nn.log_softmax(logits, axis)
    real = labels != (-100 if ignored is None else ignored)
    at = jnp.where(real, labels, 0)
    loss = -jnp.take_along_axis(scores, jnp.expand_dims(at, axis), axis).squeeze(axis)
    counts = real.astype(scores.dtype) if weight is None else real * weight[at]
    loss = loss * counts
    if smoothing:
        of_class = 1 if weight is None else weight.reshape(-1, *[1] * (scores.ndim - axis - 1))
        spread = -(scores * of_class).sum(axis) * real
        loss = (1 - smoothing) * loss + smoothing / logits.shape[axis] * spread
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / counts.sum()


def lstm(
    x: jax.Array,
    h: jax.Array,
    c: jax.Array,
    w_ih: jax.Array,
    w_hh: jax.Array,
    b_ih: jax.Array | None = None,
    b_hh: jax.Array | None = None,
    w_hr: jax.Array | None = None,
    reverse: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One layer (Hochreiter, Schmidhuber 1997): x (T, N, I), h and c (N, H), gates i, f, g, o -> (every h, the last h,
    the last c)."""

    def step(carry: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        gates = gates + h @ w_hh.T if b_hh is None else gates + h @ w_hh.T + b_hh
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        h = h if w_hr is None else h @ w_hr.T
        return (h, c), h

    gates = x @ w_ih.T if b_ih is None else x @ w_ih.T + b_ih
    (h, c), ys = jax.lax.scan(step, (h, c), gates, reverse=reverse)
    return ys, h, c


def gru(
    x: jax.Array,
    h: jax.Array,
    w_ih: jax.Array,
    w_hh: jax.Array,
    b_ih: jax.Array | None = None,
    b_hh: jax.Array | None = None,
    reverse: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """One layer (Cho et al. 2014): x (T, N, I), h (N, H), gates r, z, n -> (every h, the last h)."""

    def step(h: jax.Array, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
        r, z, n = jnp.split(gates, 3, axis=-1)
        of_h = h @ w_hh.T if b_hh is None else h @ w_hh.T + b_hh
        r_h, z_h, n_h = jnp.split(of_h, 3, axis=-1)
        z = jax.nn.sigmoid(z + z_h)
        n = jnp.tanh(n + jax.nn.sigmoid(r + r_h) * n_h)
        h = (1 - z) * n + z * h
        return h, h

    gates = x @ w_ih.T if b_ih is None else x @ w_ih.T + b_ih
    h, ys = jax.lax.scan(step, h, gates, reverse=reverse)
    return ys, h


def rnn(
    x: jax.Array,
    h: jax.Array,
    w_ih: jax.Array,
    w_hh: jax.Array,
    b_ih: jax.Array | None = None,
    b_hh: jax.Array | None = None,
    activation: str = "tanh",
    reverse: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """One layer (Elman 1990): x (T, N, I), h (N, H) -> (every h, the last h)."""
    function = jnp.tanh if activation == "tanh" else jax.nn.relu

    def step(h: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = function(given + h @ w_hh.T if b_hh is None else given + h @ w_hh.T + b_hh)
        return h, h

    given = x @ w_ih.T if b_ih is None else x @ w_ih.T + b_ih
    h, ys = jax.lax.scan(step, h, given, reverse=reverse)
    return ys, h


def attention_weights(
    q: jax.Array, k: jax.Array, mask: jax.Array | None = None, causal: bool = False, scale: float | None = None
) -> jax.Array:
    """softmax(scale q k^T + mask) of q (N, H, L, E) and k (N, H, S, E); zeros where nothing is seen."""
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    hidden = jnp.finfo(scores.dtype).min
    if causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, hidden)
    if mask is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(mask, scores, hidden) if mask.dtype == bool else jnp.maximum(scores + mask, hidden)
    return jax.nn.softmax(scores, axis=-1) * (scores > hidden)


dot_product_attention = shared.dot_product_attention


def dropout(x: jax.Array, key: jax.Array, rate: float) -> jax.Array:
    """Zeros at random, the rest divided by 1 - rate."""
    kept = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(kept, x / (1 - rate), 0)


def padded_embedding(weight, indices, padding):
    """Rows of weight; that of `padding` is not trained."""
    rows = weight[indices]
    return jnp.where((indices == padding)[..., None], jax.lax.stop_gradient(rows), rows)


taps = shared.taps


def resize(x: jax.Array, size: tuple[int, ...], method: str = "nearest", corners: bool = False) -> jax.Array:
    """The last axes of x at another size: by the nearest places, or "linear" or "cubic" (Keys 1981) between them."""
    for axis, m in zip(range(x.ndim - len(size), x.ndim), size, strict=True):
        n = x.shape[axis]
        if method == "nearest":
            x = jnp.take(x, np.arange(m) * n // m, axis=axis)
        elif n != m:
            weights = jnp.asarray(taps(n, m, method, corners), x.dtype)
            x = jnp.moveaxis(jnp.tensordot(x, weights, axes=(axis, 1)), -1, axis)
    return x
