"""Functions of generated files in the Array API standard."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.codegen.targets.helpers import shared

# ---- elementwise -----------------------------------------------------------------------------------------------------


def integer_pow(x: Any, y: Any) -> Any:
    """Integers to any power; negative powers are the truncated reciprocal, as in C."""
    xp = (x if hasattr(x, "dtype") else y).__array_namespace__()
    zero = xp.zeros_like(x * y)
    inverse = xp.where((x == 1) | (x == -1), xp.where(y % 2 == 1, x + zero, x * x + zero), zero)
    return xp.where(y < zero, inverse, (x + zero) ** xp.where(y < zero, zero, y + zero))


def fmod(x: Any, y: Any) -> Any:
    """The remainder with the sign of x."""
    like = x if hasattr(x, "dtype") else y
    xp = like.__array_namespace__()
    x, y = xp.broadcast_arrays(xp.asarray(x, dtype=like.dtype), xp.asarray(y, dtype=like.dtype))
    rest = xp.abs(x) % xp.abs(y)
    return xp.copysign(rest, x) if xp.isdtype(x.dtype, "real floating") else xp.where(x < 0, -rest, rest)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)), without overflow."""
    xp = x.__array_namespace__()
    small = xp.exp(-xp.abs(x))
    return xp.where(x < 0, small, xp.ones_like(x)) / (1 + small)


def silu(x: Any) -> Any:
    return x * sigmoid(x)


def erf(x: Any) -> Any:
    """Compute erf by a series of positive terms (Abramowitz, Stegun 7.1.6)."""
    xp = x.__array_namespace__()
    z = xp.clip(x, -6.0, 6.0)
    total = term = z
    for n in range(1, 120):
        term = term * (2 * z * z / (2 * n + 1))
        total = total + term
    return 2 / math.sqrt(math.pi) * xp.exp(-z * z) * total


def gelu(x: Any) -> Any:
    """x times the normal distribution function (Hendrycks, Gimpel 2016)."""
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Any) -> Any:
    xp = x.__array_namespace__()
    return 0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


# ---- reductions ------------------------------------------------------------------------------------------------------


def softmax(x: Any, axis: int = -1) -> Any:
    xp = x.__array_namespace__()
    exps = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    return exps / xp.sum(exps, axis=axis, keepdims=True)


def log_softmax(x: Any, axis: int = -1) -> Any:
    xp = x.__array_namespace__()
    shifted = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def running(combine: Callable[[Any, Any], Any], x: Any, axis: int) -> Any:
    """Combine each element with those before it along an axis, in log2(n) rounds (Hillis, Steele 1986)."""
    xp = x.__array_namespace__()
    x = xp.moveaxis(x, axis, 0)
    n, step = x.shape[0], 1
    while step < n:
        x = xp.concat([x[:step, ...], combine(x[step:, ...], x[: n - step, ...])], axis=0)
        step *= 2
    return xp.moveaxis(x, 0, axis)


def layer_norm(x: Any, weight: Any = None, bias: Any = None, axes: int = 1, eps: float = 1e-5) -> Any:
    """Over the last `axes` axes (Ba, Kiros, Hinton 2016)."""
    xp = x.__array_namespace__()
    over = tuple(range(-axes, 0))
    y = (x - xp.mean(x, axis=over, keepdims=True)) / xp.sqrt(xp.var(x, axis=over, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def rms_norm(x: Any, weight: Any = None, axes: int = 1, eps: float = 1e-6) -> Any:
    """Over the last `axes` axes (Zhang, Sennrich 2019)."""
    xp = x.__array_namespace__()
    y = x / xp.sqrt(xp.mean(xp.square(x), axis=tuple(range(-axes, 0)), keepdims=True) + eps)
    return y if weight is None else y * weight


# ---- updates, sorting ------------------------------------------------------------------------------------------------


def updated(x: Any, index: Any, value: Any) -> Any:
    """A copy of `x` with `value` at `index` (of libraries whose arrays can be written)."""
    out = x.__array_namespace__().asarray(x, copy=True)
    out[index] = value
    return out


def pad(x: Any, value: Any, config: Sequence[tuple[int, int, int]]) -> Any:
    """Each axis by (low, high, between two elements); negative numbers cut off."""
    xp = x.__array_namespace__()
    apart = [n + max(n - 1, 0) * gap for n, (_, _, gap) in zip(x.shape, config, strict=True)]
    wide = tuple(max(low, 0) + n + max(high, 0) for n, (low, high, _) in zip(apart, config, strict=True))
    out = xp.asarray(xp.broadcast_to(xp.asarray(value, dtype=x.dtype), wide), copy=True)
    inner = zip(apart, config, strict=True)
    out[tuple(slice(max(low, 0), max(low, 0) + n, gap + 1) for n, (low, _, gap) in inner)] = x
    return out[tuple(slice(max(-low, 0), n + min(high, 0)) for n, (low, high, _) in zip(wide, config, strict=True))]


def take(x: Any, indices: Any, axis: int) -> Any:
    """Indices of any shape."""
    xp = x.__array_namespace__()
    flat = xp.take(x, xp.reshape(indices, (-1,)), axis=axis)
    return xp.reshape(flat, (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))


def argsort(x: Any, axis: int = -1, descending: bool = False) -> Any:
    """Stable, NaN last (or first)."""
    xp = x.__array_namespace__()
    if not descending:
        return xp.argsort(x, axis=axis, stable=True)
    backwards = xp.argsort(xp.flip(x, axis=axis), axis=axis, stable=True)
    return x.shape[axis] - 1 - xp.flip(backwards, axis=axis)


def sort_with_indices(x: Any, axis: int = -1, descending: bool = False) -> tuple[Any, Any]:
    """The values in order, and where they were."""
    order = argsort(x, axis, descending)
    return x.__array_namespace__().take_along_axis(x, order, axis=axis), order


def top_k(x: Any, k: int, axis: int = -1, largest: bool = True) -> tuple[Any, Any]:
    """The `k` greatest (or least) values in order, and where they are."""
    xp = x.__array_namespace__()
    order = xp.take(argsort(x, axis, largest), xp.arange(k), axis=axis)
    return xp.take_along_axis(x, order, axis=axis), order


def searchsorted(boundaries: Any, values: Any, side: str = "left") -> Any:
    """Return the indices at which `values` go into the sorted `boundaries`, row by row."""
    xp = boundaries.__array_namespace__()
    b, v = boundaries[..., None, :], values[..., None]
    return xp.sum(xp.astype(b < v if side == "left" else b <= v, xp.int64), axis=-1)


def contracted(a: Any, b: Any, contract: Sequence[Sequence[int]], batch: Sequence[Sequence[int]]) -> Any:
    """The product of a and b along axes; the result has the batch, then the other axes of a, then those of b."""
    xp = a.__array_namespace__()
    free = [[i for i in range(x.ndim) if i not in contract[k] and i not in batch[k]] for k, x in enumerate((a, b))]
    left = xp.permute_dims(a, (*batch[0], *free[0], *contract[0]))
    right = xp.permute_dims(b, (*batch[1], *contract[1], *free[1]))
    lead = tuple(a.shape[i] for i in batch[0])
    rows, columns = (tuple(x.shape[i] for i in f) for x, f in zip((a, b), free, strict=True))
    n = math.prod(a.shape[i] for i in contract[0])
    left = xp.reshape(left, (*lead, math.prod(rows), n))
    return xp.reshape(left @ xp.reshape(right, (*lead, n, math.prod(columns))), (*lead, *rows, *columns))


# ---- windows ---------------------------------------------------------------------------------------------------------


def windows(
    x: Any, sizes: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> tuple[list[Any], tuple[int, ...]]:
    """(what each place of a window over the last axes sees, how many windows there are)."""
    n = len(sizes)
    spans = zip(x.shape[x.ndim - n :], sizes, strides, dilation, strict=True)
    places = tuple(max(s - d * (k - 1) - 1, -t) // t + 1 for s, k, t, d in spans)
    seen = []
    for at in range(math.prod(sizes)):
        index: list[Any] = []
        for k, t, d, m in zip(reversed(sizes), reversed(strides), reversed(dilation), reversed(places), strict=True):
            at, i = divmod(at, k)
            index.insert(0, slice(i * d, i * d + (m - 1) * t + 1 if m else i * d, t))
        seen.append(x[(..., *index)])
    return seen, places


def convolution(
    x: Any,
    weight: Any,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    groups: int = 1,
    batch_groups: int = 1,
) -> Any:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...), by one product of all windows."""
    xp = x.__array_namespace__()
    n = len(strides)
    if batch_groups > 1:
        rows, outputs = x.shape[0] // batch_groups, weight.shape[0] // batch_groups
        xs = [x[i * rows : (i + 1) * rows, ...] for i in range(batch_groups)]
        ws = [weight[i * outputs : (i + 1) * outputs, ...] for i in range(batch_groups)]
        parts = [convolution(a, b, strides, padding, lhs_dilation, rhs_dilation) for a, b in zip(xs, ws, strict=True)]
        return xp.concat(parts, axis=1)
    gaps = [d - 1 for d in lhs_dilation or [1] * n]
    spread = pad(x, 0, [(0, 0, 0), (0, 0, 0), *((*p, g) for p, g in zip(padding, gaps, strict=True))])
    seen, places = windows(spread, weight.shape[2:], strides, rhs_dilation or [1] * n)
    rows = xp.stack(seen, axis=2)  # (N, C, window, places...)
    rows = xp.reshape(rows, (x.shape[0], groups, x.shape[1] // groups * len(seen), math.prod(places)))
    parts = xp.reshape(weight, (groups, weight.shape[0] // groups, weight.shape[1] * len(seen)))
    return xp.reshape(parts @ rows, (x.shape[0], weight.shape[0], *places))


def conv(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: int | tuple[int, ...] = 1,
    padding: int | tuple[int | tuple[int, int], ...] = 0,
    dilation: int | tuple[int, ...] = 1,
    groups: int = 1,
) -> Any:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...) and bias (O)."""
    n = weight.ndim - 2
    each: list[Any] = [v if isinstance(v, tuple) else (v,) * n for v in (stride, padding, dilation)]
    strides, pads, gaps = each
    pads = tuple(p if isinstance(p, tuple) else (p, p) for p in pads)
    y = convolution(x, weight, strides, pads, rhs_dilation=gaps, groups=groups)
    return y if bias is None else y + x.__array_namespace__().reshape(bias, (-1, *[1] * n))


def reduce_window(
    combine: Callable[[Any, Any], Any],
    x: Any,
    initial: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int] | None = None,
) -> Any:
    """Sums, maxima or minima over windows, one size for each of the last axes."""
    n = len(window)
    spread = pad(x, initial, [(0, 0, 0)] * (x.ndim - n) + [(*p, 0) for p in padding])
    seen, _ = windows(spread, window, strides, dilation or [1] * n)
    out = seen[0]
    for piece in seen[1:]:
        out = combine(out, piece)
    return out


def max_pool(x: Any, window: Any, stride: Any, padding: Any = None, dilation: Any = None) -> Any:
    """The largest in each window over the last axes of x."""
    xp = x.__array_namespace__()
    least = -math.inf if xp.isdtype(x.dtype, "real floating") else xp.iinfo(x.dtype).min
    return reduce_window(xp.maximum, x, least, window, stride, padding or [(0, 0)] * len(window), dilation)


def avg_pool(x: Any, window: Any, stride: Any, padding: Any = None, count_padding: bool = True) -> Any:
    """The mean of each window over the last axes of x, whose padding is zeros that count or not."""
    xp = x.__array_namespace__()
    pads = padding or [(0, 0)] * len(window)
    total = reduce_window(xp.add, x, 0, window, stride, pads)
    if count_padding:
        return total / math.prod(window)
    return total / reduce_window(xp.add, xp.ones_like(x), 0, window, stride, pads)


# ---- attention, control flow -----------------------------------------------------------------------------------------


def attention_weights(q: Any, k: Any, mask: Any = None, causal: bool = False, scale: float | None = None) -> Any:
    """softmax(scale q k^T + mask) of q (N, H, L, E) and k (N, H, S, E); zeros where nothing is seen."""
    xp = q.__array_namespace__()
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    hidden = xp.asarray(xp.finfo(scores.dtype).min, dtype=scores.dtype)
    if causal:
        seen = xp.arange(scores.shape[-2])[:, None] >= xp.arange(scores.shape[-1])
        scores = xp.where(seen, scores, hidden)
    if mask is None:
        return softmax(scores)
    scores = xp.where(mask, scores, hidden) if mask.dtype == xp.bool else xp.maximum(scores + mask, hidden)
    return softmax(scores) * xp.astype(scores > hidden, scores.dtype)


def dot_product_attention(
    q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False, scale: float | None = None
) -> Any:
    """softmax(scale q k^T + mask) v of q (N, H, L, E), k (N, G, S, E), v (N, G, S, F)."""
    xp = q.__array_namespace__()
    shared = q.shape[1] // k.shape[1]
    if shared > 1:
        k, v = xp.repeat(k, shared, axis=1), xp.repeat(v, shared, axis=1)
    return attention_weights(q, k, mask, causal, scale) @ v


while_loop = shared.while_loop


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: tuple[Any, ...], length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """`step(carry, x) -> (carry, y)` along the first axis; (the last carry, the stacked ys)."""
    rows = []
    for i in reversed(range(length)) if reverse else range(length):
        carry, y = step(carry, tuple(x[i, ...] for x in xs))
        rows.append(y)
    if reverse:
        rows.reverse()
    return carry, tuple(ys[0].__array_namespace__().stack(ys) for ys in zip(*rows, strict=True))
