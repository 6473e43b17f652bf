"""Layers of neural networks, without their state: products, norms, activations, pooling, losses, recurrence, attention.

Layouts are PyTorch's: channels first, weights (out, in). Kernels and front ends compute with these composites, and
files of generated source contain them as functions if a framework has no equivalent.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]


class Neural:
    # ---- products --------------------------------------------------------------------------------------------------

    def linear(self: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """x (..., in) by weight (out, in) or (in), and bias (out)."""
        y = self.matmul(x, self.matrix_transpose(weight) if self.ndim(weight) == 2 else weight)
        return y if bias is None else self.add(y, bias)

    def conv(
        self: Any, x: Array, weight: Array, bias: Array | None = None, stride: Ints = (1,), padding: Pads = ((0, 0),),
        dilation: Ints = (1,), groups: int = 1,
    ) -> Array:  # fmt: skip
        """Convolve x (N, C, spatial...) with weight (O, C / groups, spatial...) and add bias (O); an entry for each
        spatial axis."""
        n = len(stride)
        y = self.convolution(x, weight, stride, padding, (1,) * n, dilation, groups)
        return y if bias is None else self.add(y, _of_channels(self, bias, n))

    def conv_channels_last(
        self: Any, x: Array, weight: Array, bias: Array | None = None, stride: Ints = (1,), padding: Pads = ((0, 0),),
        dilation: Ints = (1,), groups: int = 1,
    ) -> Array:  # fmt: skip
        """Convolve x (N, spatial..., C) with weight (spatial..., C / groups, O) and add bias (O), as JAX's and
        TensorFlow's layers do."""
        n = len(stride)
        x = self.permute_dims(x, (0, n + 1, *range(1, n + 1)))
        weight = self.permute_dims(weight, (n + 1, n, *range(n)))
        y = self.convolution(x, weight, stride, padding, (1,) * n, dilation, groups)
        y = self.permute_dims(y, (0, *range(2, n + 2), 1))
        return y if bias is None else self.add(y, bias)

    def conv_transpose(
        self: Any, x: Array, weight: Array, bias: Array | None = None, stride: Ints = (1,), padding: Ints = (0,),
        output_padding: Ints = (0,), dilation: Ints = (1,), groups: int = 1,
    ) -> Array:  # fmt: skip
        """Compute the transpose of `conv` in its images: x (N, C, spatial...), weight (C, O / groups, spatial...), bias
        (O). The images of `conv` are padded by `padding` on both sides; `output_padding` is added at the end."""
        y = self.transposed_convolution(x, weight, stride, padding, dilation, output_padding, groups)
        return y if bias is None else self.add(y, _of_channels(self, bias, len(stride)))

    # ---- norms -----------------------------------------------------------------------------------------------------

    def standardize(self: Any, x: Array, axes: Ints, eps: float = 1e-5) -> tuple[Array, Array, Array]:
        """((x - mean) / sqrt(variance + eps), the mean, 1 / sqrt(variance + eps)), of statistics over `axes`, which
        they keep."""
        mean = self.mean(x, axes, keepdims=True)
        centred = self.subtract(x, mean)
        variance = self.mean(self.square(centred), axes, keepdims=True)
        rstd = self.rsqrt(self.add(variance, eps))
        return self.multiply(centred, rstd), mean, rstd

    def layer_norm(
        self: Any, x: Array, weight: Array | None = None, bias: Array | None = None, axes: int = 1, eps: float = 1e-5
    ) -> Array:
        """Standardize x over its last axes, then scale and shift it (Ba, Kiros, Hinton 2016)."""
        y, _, _ = self.standardize(x, tuple(range(-axes, 0)), eps)
        return _affine(self, y, weight, bias)

    def rms_norm(self: Any, x: Array, weight: Array | None = None, axes: int = 1, eps: float = 1e-6) -> Array:
        """Divide x by the root of its mean square over the last axes, then scale it (Zhang, Sennrich 2019)."""
        mean = self.mean(self.square(x), tuple(range(-axes, 0)), keepdims=True)
        return _affine(self, self.multiply(x, self.rsqrt(self.add(mean, eps))), weight, None)

    def group_norm(
        self: Any, x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
    ) -> Array:
        """Standardize each group of channels of x (N, C, ...), then scale and shift each channel (Wu, He 2018)."""
        n, c, *rest = self.shape(x)
        parts = self.reshape(x, (n, groups, c // groups * math.prod(rest)))
        y, _, _ = self.standardize(parts, (2,), eps)
        y = self.reshape(y, (n, c, *rest))
        return _affine(self, y, *(_of_channels(self, v, len(rest)) for v in (weight, bias)))

    def batch_norm(
        self: Any, x: Array, mean: Array, variance: Array, weight: Array | None = None, bias: Array | None = None,
        eps: float = 1e-5,
    ) -> Array:  # fmt: skip
        """Standardize x (N, C, ...) by known statistics (C), then scale and shift each channel (Ioffe, Szegedy
        2015)."""
        n = self.ndim(x) - 2
        scale = _of_channels(self, self.rsqrt(self.add(variance, eps)), n)
        y = self.multiply(self.subtract(x, _of_channels(self, mean, n)), scale)
        return _affine(self, y, *(_of_channels(self, v, n) for v in (weight, bias)))

    def batch_norm_training(
        self: Any, x: Array, mean: Array | None, variance: Array | None, weight: Array | None = None,
        bias: Array | None = None, momentum: float = 0.1, eps: float = 1e-5,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """Batch norm of x (N, C, ...) by its own statistics: (y, the running mean and variance (C) after it, which are
        its own where None are given). The running variance is the unbiased one."""
        axes, rest = (0, *range(2, self.ndim(x))), self.ndim(x) - 2
        batch_mean = self.mean(x, axes)
        centred = self.subtract(x, _of_channels(self, batch_mean, rest))
        biased = self.mean(self.square(centred), axes)
        y = self.multiply(centred, _of_channels(self, self.rsqrt(self.add(biased, eps)), rest))
        y = _affine(self, y, *(_of_channels(self, v, rest) for v in (weight, bias)))
        n = self.count(x, axes)
        unbiased = self.multiply(biased, n / (n - 1) if n > 1 else math.nan)
        return y, _moved(self, mean, batch_mean, momentum), _moved(self, variance, unbiased, momentum)

    # ---- activations -----------------------------------------------------------------------------------------------

    def relu(self: Any, x: Array) -> Array:
        """Compute max(x, 0), without a derivative at zero."""
        return self.where(self.less_equal(x, 0), self.zeros_like(x), x)

    def silu(self: Any, x: Array) -> Array:
        """Compute x sigmoid(x) (Elfwing, Uchibe, Doya 2018)."""
        return self.multiply(x, self.sigmoid(x))

    def gelu(self: Any, x: Array, approximate: bool = False) -> Array:
        """Compute x times the normal distribution function, exactly or by tanh (Hendrycks, Gimpel 2016)."""
        if approximate:
            cubic = self.add(x, self.multiply(self.multiply(self.square(x), x), 0.044715))
            rate = self.tanh(self.multiply(cubic, 0.7978845608028654))
        else:
            rate = self.erf(self.multiply(x, 0.7071067811865476))
        return self.multiply(self.multiply(x, 0.5), self.add(rate, 1.0))

    def leaky_relu(self: Any, x: Array, slope: float = 0.01) -> Array:
        """Compute x where it is positive, else slope x."""
        return self.where(self.greater(x, 0), x, self.multiply(x, slope))

    def elu(self: Any, x: Array, alpha: float = 1.0) -> Array:
        """Compute x where it is positive, else alpha (exp(x) - 1) (Clevert, Unterthiner, Hochreiter 2015)."""
        positive = self.greater(x, 0)
        below = self.where(positive, self.zeros_like(x), x)  # else exp's derivative is infinite where it is not taken
        return self.where(positive, x, self.multiply(self.expm1(below), alpha))

    def selu(self: Any, x: Array) -> Array:
        """Compute a scaled `elu` that keeps mean and variance (Klambauer and others 2017)."""
        return self.multiply(self.elu(x, 1.6732632423543772), 1.0507009873554805)

    def mish(self: Any, x: Array) -> Array:
        """Compute x tanh(softplus(x)) (Misra 2019)."""
        return self.multiply(x, self.tanh(self.softplus(x)))

    def log_sigmoid(self: Any, x: Array) -> Array:
        """Compute log(sigmoid(x)), without underflow."""
        return self.negative(self.softplus(self.negative(x)))

    def relu6(self: Any, x: Array) -> Array:
        """Clip x to [0, 6], without a derivative at the ends."""
        return self.where(
            self.less_equal(x, 0), self.zeros_like(x), self.where(self.less(x, 6), x, self.full_like(x, 6))
        )

    def hard_sigmoid(self: Any, x: Array) -> Array:
        """Compute relu6(x + 3) / 6."""
        return self.divide(self.relu6(self.add(x, 3)), 6)

    def hard_silu(self: Any, x: Array) -> Array:
        """Compute x hard_sigmoid(x)."""
        return self.multiply(x, self.hard_sigmoid(x))

    # ---- windows ---------------------------------------------------------------------------------------------------

    def max_pool(
        self: Any, x: Array, window: Ints, stride: Ints, padding: Pads = ((0, 0),), dilation: Ints | None = None
    ) -> Array:
        """Return the largest in each window over the last axes of x (..., spatial...)."""
        lead = self.ndim(x) - len(window)
        no_axes = (1,) * lead
        gaps = no_axes + (dilation or (1,) * len(window))
        return self.reduce_window(x, "max", no_axes + window, no_axes + stride, ((0, 0),) * lead + tuple(padding), gaps)

    def avg_pool(
        self: Any, x: Array, window: Ints, stride: Ints, padding: Pads = ((0, 0),), count_padding: bool = True
    ) -> Array:
        """Return the mean of each window over the last axes of x (..., spatial...), whose padding is zeros that count
        or not."""
        lead = self.ndim(x) - len(window)
        no_axes = (1,) * lead
        where = no_axes + window, no_axes + stride, ((0, 0),) * lead + tuple(padding), (1,) * self.ndim(x)
        total = self.reduce_window(x, "sum", *where)
        if count_padding:
            return self.divide(total, float(math.prod(window)))
        return self.divide(total, self.reduce_window(self.ones_like(x), "sum", *where))

    def max_pool_channels_last(self: Any, x: Array, window: Ints, stride: Ints, padding: Pads = ((0, 0),)) -> Array:
        """Return the largest in each window of x (N, spatial..., C)."""
        return _window_channels_last(self, x, "max", window, stride, padding)

    def avg_pool_channels_last(self: Any, x: Array, window: Ints, stride: Ints, padding: Pads = ((0, 0),)) -> Array:
        """Return the mean of each window of x (N, spatial..., C), whose padding is zeros that count."""
        total = _window_channels_last(self, x, "sum", window, stride, padding)
        return self.divide(total, float(math.prod(window)))

    def resize(self: Any, x: Array, size: Ints, method: str = "nearest", corners: bool = False) -> Array:
        """Return the last axes of x (N, C, spatial...) at another size. "nearest" takes the place at or before i n / m;
        "linear" and "cubic" (Keys 1981, a = -0.75) look from the middles of the places, or, with `corners`, from the
        first to the last; places outside are those at the edge. Nothing is blurred where it becomes smaller."""
        for axis, m in zip(range(self.ndim(x) - len(size), self.ndim(x)), size, strict=True):
            n = self.shape(x)[axis]
            if n == m:
                continue
            if method == "nearest":
                x = self.take(x, self.asarray(np.arange(m) * n // m), axis)
            else:
                weights = self.asarray(taps(n, m, method, corners).astype(self.dtype_of(x)))
                x = self.moveaxis(self.dot_general(x, weights, ((axis,), (1,))), -1, axis)
        return x

    # ---- losses ----------------------------------------------------------------------------------------------------

    def cross_entropy(
        self: Any, logits: Array, labels: Array, weight: Array | None = None, reduction: str = "mean",
        ignored: int | None = -100, smoothing: float = 0.0,
    ) -> Array:  # fmt: skip
        """Minus the log-likelihood of labels, integers (N, ...), under logits (N, C, ...) or (C). Classes have a weight
        (C). Labels that are `ignored` count nothing, also in the mean. `reduction`: "mean", "sum", "none"."""
        axis = 1 if self.ndim(logits) > 1 else 0
        scores = self.log_softmax(logits, axis)
        real = self.not_equal(labels, -100 if ignored is None else ignored)
        at = self.expand_dims(self.where(real, labels, 0), axis)
        loss = self.negative(self.squeeze(self.take_along_axis(scores, at, axis), axis))
        counts = self.astype(real, self.dtype_of(scores))
        if weight is not None:
            counts = self.multiply(counts, self.gather(weight, (self.squeeze(at, axis),)))
        loss = self.multiply(loss, counts)
        if smoothing:
            weighted = scores
            if weight is not None:
                weighted = self.multiply(scores, _of_channels(self, weight, self.ndim(scores) - axis - 1))
            even = self.multiply(self.negative(self.sum(weighted, (axis,))), self.astype(real, self.dtype_of(scores)))
            share = self.multiply(even, smoothing / self.shape(logits)[axis])
            loss = self.add(self.multiply(loss, 1 - smoothing), share)
        if reduction == "none":
            return loss
        return self.sum(loss) if reduction == "sum" else self.divide(self.sum(loss), self.sum(counts))

    # ---- recurrence ------------------------------------------------------------------------------------------------

    def lstm(
        self: Any, x: Array, h: Array, c: Array, w_ih: Array, w_hh: Array, b_ih: Array | None = None,
        b_hh: Array | None = None, w_hr: Array | None = None, reverse: bool = False,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """One layer (Hochreiter, Schmidhuber 1997), from x (T, N, I) and states h, c (N, H): (every h, the last h, the
        last c). Weights are (4 H, I) and (4 H, H), of the gates i, f, g, o; biases (4 H). `w_hr` (P, H) projects h to
        P."""

        def step(carry: tuple[Array, Array], gates: Array) -> tuple[tuple[Array, Array], Array]:
            h, c = carry
            gates = self.add(gates, self.linear(h, w_hh, b_hh))
            i, f, g, o = self.split(gates, (self.shape(c)[1],) * 4, 1)
            c = self.add(self.multiply(self.sigmoid(f), c), self.multiply(self.sigmoid(i), self.tanh(g)))
            h = self.multiply(self.sigmoid(o), self.tanh(c))
            h = h if w_hr is None else self.linear(h, w_hr)
            return (h, c), h

        gates = self.linear(x, w_ih, b_ih)
        (h, c), ys = self.scan(step, (h, c), gates, length=self.shape(x)[0], reverse=reverse)
        return ys, h, c

    def gru(
        self: Any, x: Array, h: Array, w_ih: Array, w_hh: Array, b_ih: Array | None = None, b_hh: Array | None = None,
        reverse: bool = False,
    ) -> tuple[Array, Array]:  # fmt: skip
        """One layer (Cho and others 2014), from x (T, N, I) and a state h (N, H): (every h, the last h). Weights are (3
        H, I) and (3 H, H), of the gates r, z, n; biases (3 H)."""

        def step(h: Array, gates: Array) -> tuple[Array, Array]:
            sizes = (self.shape(h)[1],) * 3
            r, z, n = self.split(gates, sizes, 1)
            r_h, z_h, n_h = self.split(self.linear(h, w_hh, b_hh), sizes, 1)
            z = self.sigmoid(self.add(z, z_h))
            n = self.tanh(self.add(n, self.multiply(self.sigmoid(self.add(r, r_h)), n_h)))
            h = self.add(self.multiply(self.subtract(1, z), n), self.multiply(z, h))
            return h, h

        gates = self.linear(x, w_ih, b_ih)
        h, ys = self.scan(step, h, gates, length=self.shape(x)[0], reverse=reverse)
        return ys, h

    def rnn(
        self: Any, x: Array, h: Array, w_ih: Array, w_hh: Array, b_ih: Array | None = None, b_hh: Array | None = None,
        activation: str = "tanh", reverse: bool = False,
    ) -> tuple[Array, Array]:  # fmt: skip
        """One layer (Elman 1990), from x (T, N, I) and a state h (N, H): (every h, the last h). Weights are (H, I) and
        (H, H); biases (H). `activation`: "tanh" or "relu"."""

        def step(h: Array, projected: Array) -> tuple[Array, Array]:
            total = self.add(projected, self.linear(h, w_hh, b_hh))
            h = self.tanh(total) if activation == "tanh" else self.maximum(total, 0)
            return h, h

        projected = self.linear(x, w_ih, b_ih)
        h, ys = self.scan(step, h, projected, length=self.shape(x)[0], reverse=reverse)
        return ys, h

    # ---- attention -------------------------------------------------------------------------------------------------

    def attention_weights(
        self: Any, q: Array, k: Array, mask: Array | None = None, causal: bool = False, scale: float | None = None
    ) -> Array:
        """softmax(scale q k^T + mask) of q (N, H, L, E) and k (N, H, S, E), zeros for a query without visible keys. The
        mask is added to the scores, or, if boolean, is true for visible keys (Vaswani et al. 2017)."""
        scores = self.multiply(
            self.matmul(q, self.matrix_transpose(k)), self.shape(q)[3] ** -0.5 if scale is None else scale
        )
        if causal:
            scores = self.where(self.triangle_mask(*self.shape(scores)[2:]), scores, -math.inf)
        if mask is None:
            return self.softmax(scores, -1)
        is_bool = self.dtype_of(mask) == dtypes.bool_
        scores = self.where(mask, scores, -math.inf) if is_bool else self.add(scores, mask)
        any_visible = self.greater(self.max(scores, -1, keepdims=True), -math.inf)
        return self.where(any_visible, self.softmax(self.where(any_visible, scores, 0), -1), 0)

    def dot_product_attention(
        self: Any, q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False,
        scale: float | None = None,
    ) -> Array:  # fmt: skip
        """softmax(scale q k^T + mask) v of q (N, H, L, E), k (N, G, S, E), v (N, G, S, F). `attention` computes it
        in parts, with sums of at least float32."""
        shared = self.shape(q)[1] // max(self.shape(k)[1], 1)
        if shared > 1:
            k, v = self.repeat(k, shared, 1), self.repeat(v, shared, 1)
        return self.matmul(self.attention_weights(q, k, mask, causal, scale), v)


def _affine(xp: Any, y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else xp.multiply(y, weight)
    return y if bias is None else xp.add(y, bias)


def _of_channels(xp: Any, v: Array | None, n: int) -> Array | None:
    """Return a number for each channel, before `n` spatial axes."""
    return None if v is None else xp.reshape(v, (xp.size(v), *[1] * n))


def _moved(xp: Any, old: Array | None, new: Array, momentum: float) -> Array:
    return new if old is None else xp.add(xp.multiply(old, 1 - momentum), xp.multiply(new, momentum))


def _window_channels_last(xp: Any, x: Array, kind: str, window: Ints, stride: Ints, padding: Pads) -> Array:
    pads = ((0, 0), *padding, (0, 0))
    return xp.reduce_window(x, kind, (1, *window, 1), (1, *stride, 1), pads, (1,) * xp.ndim(x))


def taps(n: int, m: int, method: str, corners: bool) -> np.ndarray:
    """Return (m, n): the fraction of each old element in each new one."""
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


__all__ = ["Neural", "taps"]
