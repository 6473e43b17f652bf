"""Words: what a front end may write in a `SourceTrace` beside operations of the hub, as people write.

A word is a function of a backend, which says what it means in operations of the hub (a target that has no name for it
writes these), and of arrays and static values. Layouts are PyTorch's: channels first, weights (out, in). A front end
adds a word where a target's users would look for it, not for each of its operators.

    @word
    def linear(xp, x, weight, bias=None): ...

`SourceStep("linear", (x, w), {}, y)` is a call of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Ints = tuple[int, ...]
Pads = tuple[tuple[int, int], ...]
WORDS: dict[str, Callable[..., Any]] = {}


def word(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Declare a word: `fn(xp, *arguments)`."""
    WORDS[fn.__name__] = fn
    return fn


# ---- shapes ----------------------------------------------------------------------------------------------------------


@word
def getitem(xp: Any, x: Array, index: tuple[Any, ...]) -> Array:
    """`x[index]`: numbers, slices (of positive steps), None and Ellipsis, as in NumPy; no arrays (see `index`)."""
    shape = xp.shape(x)
    taken = sum(i is not None and i is not Ellipsis for i in index)
    if Ellipsis not in index:
        index = (*index, Ellipsis)
    at = index.index(Ellipsis)
    index = (*index[:at], *[slice(None)] * (len(shape) - taken), *index[at + 1 :])
    start: list[int] = []
    stop: list[int] = []
    step: list[int] = []
    new: list[int] = []
    for i in index:
        if i is None:
            new.append(1)
            continue
        n = shape[len(start)]
        if isinstance(i, slice):
            a, b, c = i.indices(n)
            new.append(max(0, -(-(b - a) // c)))
            b = max(a, b)
        else:
            a, c = i + n if i < 0 else i, 1
            b = a + 1
        start.append(a)
        stop.append(b)
        step.append(c)
    return xp.reshape(xp.slice(x, tuple(start), tuple(stop), tuple(step)), tuple(new))


@word
def flatten(xp: Any, x: Array, start: int = 0, end: int = -1) -> Array:
    """The axes from `start` to `end`, both included, as one."""
    shape = xp.shape(x)
    start, end = start % max(len(shape), 1), end % max(len(shape), 1)
    size = 1
    for n in shape[start : end + 1]:
        size *= n
    return xp.reshape(x, (*shape[:start], size, *shape[end + 1 :]))


@word
def repeat(xp: Any, x: Array, times: int, axis: int) -> Array:
    """Each element along an axis `times` times, one beside the other."""
    shape = xp.shape(x)
    before, after = shape[: axis + 1], shape[axis + 1 :]
    y = xp.broadcast_to(xp.reshape(x, (*before, 1, *after)), (*before, times, *after))
    return xp.reshape(y, (*shape[:axis], times * shape[axis], *after))


@word
def index(xp: Any, x: Array, indices: tuple[Array | None, ...]) -> Array:
    """`x[indices]` with arrays of integers that are within the axes or negative, and None for `:`; as in NumPy."""
    order, arrays, place = _indexed(xp, x, indices)
    return xp.permute_dims(xp.gather(xp.permute_dims(x, order), arrays), place)


@word
def index_update(xp: Any, x: Array, indices: tuple[Array | None, ...], values: Array, mode: str = "set") -> Array:
    """`x` after `x[indices] = values`, or `+=` of every one of them (`mode="add"`)."""
    order, arrays, place = _indexed(xp, x, indices)
    lead = np.broadcast_shapes(*map(xp.shape, arrays))
    target = (*lead, *(xp.shape(x)[a] for a in order[len(arrays) :]))
    values = xp.broadcast_to(values, tuple(target[a] for a in place))
    values = xp.permute_dims(values, tuple(np.argsort(place).tolist()))
    out = xp.scatter(xp.permute_dims(x, order), arrays, values, mode=mode)
    return xp.permute_dims(out, tuple(np.argsort(order).tolist()))


def _indexed(xp: Any, x: Array, indices: tuple[Any, ...]) -> tuple[Ints, tuple[Array, ...], Ints]:
    """(the axes that are indexed, then the others; indices that are not negative; where axes of the result lie)."""
    axes = tuple(axis for axis, i in enumerate(indices) if i is not None)
    rest = tuple(axis for axis in range(xp.ndim(x)) if axis not in axes)
    arrays = tuple(_counted(xp, indices[axis], xp.shape(x)[axis]) for axis in axes)
    k = len(np.broadcast_shapes(*map(xp.shape, arrays)))
    together = axes == tuple(range(axes[0], axes[0] + len(axes)))
    before = axes[0] if together else 0
    place = (*range(k, k + before), *range(k), *range(k + before, k + len(rest)))
    return (*axes, *rest), arrays, place


def _counted(xp: Any, i: Array, n: int) -> Array:
    return i if xp.dtype_of(i).kind == "u" else xp.where(xp.less(i, 0), xp.add(i, n), i)


@word
def arange(xp: Any, start: float, stop: float, step: float, dtype: np.dtype) -> Array:
    """start, start + step, ... as long as they are before stop."""
    n = max(0, math.ceil((stop - start) / step))
    wide = dtypes.int64 if dtypes.is_integer(dtype) else dtypes.float64
    at = xp.astype(xp.iota(n, dtypes.int64), wide)
    return xp.astype(xp.add(xp.multiply(at, step), start), dtype)


@word
def pad_reflect(xp: Any, x: Array, pads: Pads) -> Array:
    """`x` with (before, after) more elements along each of its last axes, of which there are up to three, after one or
    two others: the elements inside of the first and the last one, mirrored."""

    def around(x: Array, axis: int, low: int, high: int) -> tuple[Array, Array]:
        n = xp.shape(x)[axis]
        before, after = xp.take_slice(x, axis, 1, low + 1), xp.take_slice(x, axis, n - 1 - high, n - 1)
        return xp.flip(before, (axis,)), xp.flip(after, (axis,))

    return _padded(xp, x, pads, around)


@word
def pad_edge(xp: Any, x: Array, pads: Pads) -> Array:
    """Pad `x` along its axes as `pad_reflect` does, with the first and the last element repeated."""

    def around(x: Array, axis: int, low: int, high: int) -> tuple[Array, Array]:
        n = xp.shape(x)[axis]
        first, last = xp.take_slice(x, axis, 0, 1), xp.take_slice(x, axis, n - 1, n)
        return repeat(xp, first, low, axis), repeat(xp, last, high, axis)

    return _padded(xp, x, pads, around)


def _padded(xp: Any, x: Array, pads: Pads, around: Callable[..., tuple[Array, Array]]) -> Array:
    for axis, (low, high) in enumerate(pads, xp.ndim(x) - len(pads)):
        before, after = around(x, axis, low, high)
        parts = [*([before] if low else []), x, *([after] if high else [])]
        x = xp.concat(parts, axis=axis) if len(parts) > 1 else x
    return x


# ---- products --------------------------------------------------------------------------------------------------------


@word
def linear(xp: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x (..., in) by weight (out, in), and bias (out)."""
    y = xp.matmul(x, xp.matrix_transpose(weight) if xp.ndim(weight) == 2 else weight)
    return y if bias is None else xp.add(y, bias)


@word
def conv(
    xp: Any,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: tuple[int, ...] = (1,),
    padding: tuple[tuple[int, int], ...] = ((0, 0),),
    dilation: tuple[int, ...] = (1,),
    groups: int = 1,
) -> Array:
    """x (N, C, spatial...) with weight (O, C / groups, spatial...) and bias (O); an entry for each spatial axis."""
    n = len(stride)
    y = xp.convolution(x, weight, stride, padding, (1,) * n, dilation, groups)
    return y if bias is None else xp.add(y, xp.reshape(bias, (xp.shape(bias)[0], *[1] * n)))


@word
def conv_transpose(
    xp: Any,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Ints = (1,),
    padding: Ints = (0,),
    output_padding: Ints = (0,),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Array:
    """x (N, C, spatial...) with weight (C, O / groups, spatial...) and bias (O): the transpose of `conv` in its images,
    which is padded by `padding` on both sides; `output_padding` is added at the end."""
    y = xp.transposed_convolution(x, weight, stride, padding, dilation, output_padding, groups)
    return y if bias is None else xp.add(y, xp.reshape(bias, (xp.shape(bias)[0], *[1] * len(stride))))


@word
def conv_channels_last(
    xp: Any,
    x: Array,
    weight: Array,
    bias: Array | None = None,
    stride: Ints = (1,),
    padding: Pads = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Array:
    """x (N, spatial..., C) with weight (spatial..., C / groups, O) and bias (O), as JAX's and TensorFlow's layers."""
    n = len(stride)
    x = xp.permute_dims(x, (0, n + 1, *range(1, n + 1)))
    weight = xp.permute_dims(weight, (n + 1, n, *range(n)))
    y = xp.convolution(x, weight, stride, padding, (1,) * n, dilation, groups)
    y = xp.permute_dims(y, (0, *range(2, n + 2), 1))
    return y if bias is None else xp.add(y, bias)


@word
def einsum(xp: Any, equation: str, operands: tuple[Array, ...]) -> Array:
    """Two operands at a time; letters, without repeated ones in an operand; `...` in front."""
    terms, _, result = equation.replace(" ", "").partition("->")
    letters = terms.split(",")
    spare = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    most = max(
        (xp.ndim(x) - len(t.replace("...", "")) for t, x in zip(letters, operands, strict=True) if "..." in t),
        default=0,
    )
    dots = "".join(c for c in spare if c not in equation)[:most]
    letters = [
        t.replace("...", dots[most - (xp.ndim(x) - len(t.replace("...", ""))) :] if "..." in t else "")
        for t, x in zip(letters, operands, strict=True)
    ]
    result = result.replace("...", dots)
    axes, x = letters[0], operands[0]
    for k in range(1, len(operands)):
        later = set("".join(letters[k + 1 :])) | set(result)
        axes, x = _contracted(xp, axes, x, letters[k], operands[k], later)
    gone = tuple(i for i, c in enumerate(axes) if c not in result)
    if gone:
        x, axes = xp.sum(x, gone), "".join(c for c in axes if c in result)
    return xp.permute_dims(x, tuple(axes.index(c) for c in result))


def _contracted(xp: Any, a: str, x: Array, b: str, y: Array, later: set[str]) -> tuple[str, Array]:
    for mine, other in ((0, b), (1, a)):
        axes = a if mine == 0 else b
        gone = tuple(i for i, c in enumerate(axes) if c not in other and c not in later)
        if gone:
            kept = "".join(c for c in axes if c in other or c in later)
            if mine == 0:
                x, a = xp.sum(x, gone), kept
            else:
                y, b = xp.sum(y, gone), kept
    batch = [c for c in a if c in b and c in later]
    contract = [c for c in a if c in b and c not in later]
    free = [[c for c in own if c not in other] for own, other in ((a, b), (b, a))]
    z = xp.dot_general(
        x, y, ([a.index(c) for c in contract], [b.index(c) for c in contract]),
        ([a.index(c) for c in batch], [b.index(c) for c in batch]),
    )  # fmt: skip
    return "".join([*batch, *free[0], *free[1]]), z


@word
def embedding(xp: Any, weight: Array, indices: Array, padding: int | None = None) -> Array:
    """Rows of weight (rows, width). That of `padding` is not trained: it has no derivative."""
    return xp.gather(weight, (indices,))


# ---- normalisation ---------------------------------------------------------------------------------------------------


def _affine(xp: Any, y: Array, weight: Array | None, bias: Array | None) -> Array:
    y = y if weight is None else xp.multiply(y, weight)
    return y if bias is None else xp.add(y, bias)


@word
def layer_norm(
    xp: Any, x: Array, weight: Array | None = None, bias: Array | None = None, axes: int = 1, eps: float = 1e-5
) -> Array:
    """Over the last `axes` axes (Ba, Kiros, Hinton 2016)."""
    over = tuple(range(-axes, 0))
    centred = xp.subtract(x, xp.mean(x, over, keepdims=True))
    variance = xp.mean(xp.square(centred), over, keepdims=True)
    return _affine(xp, xp.multiply(centred, xp.rsqrt(xp.add(variance, eps))), weight, bias)


@word
def group_norm(
    xp: Any, x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Array:
    """Over the channels of a group and all that follows (Wu, He 2018): x (N, C, ...), weight and bias (C)."""
    n, c, *rest = xp.shape(x)
    parts = xp.reshape(x, (n, groups, c // groups * math.prod(rest)))
    centred = xp.subtract(parts, xp.mean(parts, (2,), keepdims=True))
    variance = xp.mean(xp.square(centred), (2,), keepdims=True)
    y = xp.reshape(xp.multiply(centred, xp.rsqrt(xp.add(variance, eps))), (n, c, *rest))
    return _affine(xp, y, _of_channels(xp, weight, x), _of_channels(xp, bias, x))


def _of_channels(xp: Any, v: Array | None, x: Array) -> Array | None:
    return None if v is None else xp.reshape(v, (1, xp.size(v), *[1] * (xp.ndim(x) - 2)))


@word
def batch_norm(
    xp: Any,
    x: Array,
    mean: Array,
    variance: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """x (N, C, ...) by statistics (C) that are known (Ioffe, Szegedy 2015)."""
    scale = xp.rsqrt(xp.add(_of_channels(xp, variance, x), eps))
    y = xp.multiply(xp.subtract(x, _of_channels(xp, mean, x)), scale)
    return _affine(xp, y, _of_channels(xp, weight, x), _of_channels(xp, bias, x))


@word
def batch_norm_training(
    xp: Any,
    x: Array,
    mean: Array | None,
    variance: Array | None,
    weight: Array | None = None,
    bias: Array | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Array, Array, Array]:
    """x (N, C, ...) by its own statistics: (y, the running mean and variance (C) after it, which are its own where None
    are given). The running variance is the unbiased one."""
    axes = (0, *range(2, xp.ndim(x)))
    own = xp.mean(x, axes)
    centred = xp.subtract(x, _of_channels(xp, own, x))
    biased = xp.mean(xp.square(centred), axes)
    y = xp.multiply(centred, _of_channels(xp, xp.rsqrt(xp.add(biased, eps)), x))
    y = _affine(xp, y, _of_channels(xp, weight, x), _of_channels(xp, bias, x))
    n = xp.size(x) // xp.shape(x)[1]
    news = own, xp.multiply(biased, n / (n - 1) if n > 1 else math.nan)
    moved: Any = (_moved(xp, old, new, momentum) for old, new in zip((mean, variance), news, strict=True))
    return (y, *moved)


def _moved(xp: Any, old: Array | None, new: Array, momentum: float) -> Array:
    return new if old is None else xp.add(xp.multiply(old, 1 - momentum), xp.multiply(new, momentum))


@word
def rms_norm(xp: Any, x: Array, weight: Array | None = None, axes: int = 1, eps: float = 1e-6) -> Array:
    """Over the last `axes` axes (Zhang, Sennrich 2019)."""
    mean = xp.mean(xp.square(x), tuple(range(-axes, 0)), keepdims=True)
    return _affine(xp, xp.multiply(x, xp.rsqrt(xp.add(mean, eps))), weight, None)


# ---- activations -----------------------------------------------------------------------------------------------------


@word
def relu(xp: Any, x: Array) -> Array:
    """Compute max(x, 0), without a derivative at zero."""
    return xp.where(xp.less_equal(x, 0), xp.zeros_like(x), x)


@word
def silu(xp: Any, x: Array) -> Array:
    return xp.multiply(x, xp.sigmoid(x))


@word
def gelu(xp: Any, x: Array, approximate: bool = False) -> Array:
    """Exact, or by tanh (Hendrycks, Gimpel 2016)."""
    if approximate:
        cubic = xp.multiply(xp.add(x, xp.multiply(xp.multiply(xp.square(x), x), 0.044715)), 0.7978845608028654)
        return xp.multiply(xp.multiply(x, 0.5), xp.add(xp.tanh(cubic), 1.0))
    return xp.multiply(xp.multiply(x, 0.5), xp.add(xp.erf(xp.multiply(x, 0.7071067811865476)), 1.0))


@word
def leaky_relu(xp: Any, x: Array, slope: float = 0.01) -> Array:
    return xp.where(xp.greater(x, 0), x, xp.multiply(x, slope))


@word
def elu(xp: Any, x: Array, alpha: float = 1.0) -> Array:
    return xp.where(xp.greater(x, 0), x, xp.multiply(xp.expm1(xp.minimum(x, 0)), alpha))


@word
def selu(xp: Any, x: Array) -> Array:
    """Klambauer et al. 2017."""
    return xp.multiply(elu(xp, x, 1.6732632423543772), 1.0507009873554805)


@word
def mish(xp: Any, x: Array) -> Array:
    return xp.multiply(x, xp.tanh(xp.softplus(x)))


@word
def log_sigmoid(xp: Any, x: Array) -> Array:
    return xp.negative(xp.softplus(xp.negative(x)))


@word
def relu6(xp: Any, x: Array) -> Array:
    """Clip x to [0, 6], without a derivative at the ends."""
    return xp.where(xp.less_equal(x, 0), xp.zeros_like(x), xp.where(xp.less(x, 6), x, xp.full_like(x, 6)))


@word
def hard_sigmoid(xp: Any, x: Array) -> Array:
    return xp.divide(relu6(xp, xp.add(x, 3)), 6)


@word
def hard_silu(xp: Any, x: Array) -> Array:
    return xp.multiply(x, hard_sigmoid(xp, x))


# ---- windows ---------------------------------------------------------------------------------------------------------


@word
def max_pool(
    xp: Any, x: Array, window: Ints, stride: Ints, padding: Pads = ((0, 0),), dilation: Ints | None = None
) -> Array:
    """The largest in each window over the last axes of x (..., spatial...)."""
    lead = xp.ndim(x) - len(window)
    ones = (1,) * lead
    return xp.reduce_window(
        x,
        "max",
        ones + window,
        ones + stride,
        ((0, 0),) * lead + tuple(padding),
        ones + (dilation or (1,) * len(window)),
    )


@word
def avg_pool(
    xp: Any, x: Array, window: Ints, stride: Ints, padding: Pads = ((0, 0),), count_padding: bool = True
) -> Array:
    """The mean of each window over the last axes of x (..., spatial...), whose padding is zeros that count or not."""
    lead = xp.ndim(x) - len(window)
    ones = (1,) * lead
    pads = ((0, 0),) * lead + tuple(padding)

    def total(values: Array) -> Array:
        return xp.reduce_window(values, "sum", ones + window, ones + stride, pads, (1,) * xp.ndim(x))

    return xp.divide(total(x), float(math.prod(window)) if count_padding else total(xp.ones_like(x)))


@word
def max_pool_channels_last(xp: Any, x: Array, window: Ints, stride: Ints, padding: Pads = ((0, 0),)) -> Array:
    """The largest in each window of x (N, spatial..., C)."""
    return _window_channels_last(xp, x, "max", window, stride, padding)


@word
def avg_pool_channels_last(xp: Any, x: Array, window: Ints, stride: Ints, padding: Pads = ((0, 0),)) -> Array:
    """The mean of each window of x (N, spatial..., C), whose padding is zeros that count."""
    return xp.divide(_window_channels_last(xp, x, "sum", window, stride, padding), float(math.prod(window)))


def _window_channels_last(xp: Any, x: Array, kind: str, window: Ints, stride: Ints, padding: Pads) -> Array:
    pads = ((0, 0), *padding, (0, 0))
    return xp.reduce_window(x, kind, (1, *window, 1), (1, *stride, 1), pads, (1,) * xp.ndim(x))


@word
def resize(xp: Any, x: Array, size: Ints, method: str = "nearest", corners: bool = False) -> Array:
    """The last axes of x (N, C, spatial...) at another size. "nearest" takes the place at or before i n / m; "linear"
    and "cubic" (Keys 1981, a = -0.75) look from the middles of the places, or, with `corners`, from the first to the
    last; places outside are those at the edge. Nothing is blurred where it becomes smaller."""
    for axis, m in zip(range(xp.ndim(x) - len(size), xp.ndim(x)), size, strict=True):
        n = xp.shape(x)[axis]
        if n == m:
            continue
        if method == "nearest":
            x = xp.take(x, xp.asarray(np.arange(m) * n // m), axis)
        else:
            weights = xp.asarray(_taps(n, m, method, corners).astype(xp.dtype_of(x)))
            x = xp.moveaxis(xp.dot_general(x, weights, ((axis,), (1,))), -1, axis)
    return x


def _taps(n: int, m: int, method: str, corners: bool) -> np.ndarray:
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
            inner = ((1.25 * t) - 2.25) * t * t + 1
            weight = np.where(t <= 1, inner, np.where(t < 2, -0.75 * (((t - 5) * t + 8) * t - 4), 0))
        np.add.at(table, (np.arange(m), np.clip(left + tap, 0, n - 1).astype(int)), weight)
    return table


# ---- losses ----------------------------------------------------------------------------------------------------------


@word
def cross_entropy(
    xp: Any,
    logits: Array,
    labels: Array,
    weight: Array | None = None,
    reduction: str = "mean",
    ignored: int | None = -100,
    smoothing: float = 0.0,
) -> Array:
    """Logits (N, C, ...) or (C), labels (N, ...) of integers; weight (C). Labels that are `ignored` count nothing, also
    in the mean. `reduction`: "mean", "sum", "none"."""
    axis = 1 if xp.ndim(logits) > 1 else 0
    scores = xp.log_softmax(logits, axis)
    real = xp.not_equal(labels, xp.full((), -100 if ignored is None else ignored, xp.dtype_of(labels)))
    at = xp.where(real, labels, xp.zeros_like(labels))
    loss = xp.negative(xp.squeeze(xp.take_along_axis(scores, xp.expand_dims(at, axis), axis), axis))
    counts = xp.astype(real, xp.dtype_of(scores))
    if weight is not None:
        counts = xp.multiply(counts, xp.gather(weight, (at,)))
    loss = xp.multiply(loss, counts)
    if smoothing:
        of_class = (
            xp.reshape(weight, (xp.size(weight), *[1] * (xp.ndim(scores) - axis - 1))) if weight is not None else None
        )
        spread = xp.negative(xp.sum(scores if of_class is None else xp.multiply(scores, of_class), (axis,)))
        spread = xp.multiply(spread, xp.astype(real, xp.dtype_of(scores)))
        loss = xp.add(xp.multiply(loss, 1 - smoothing), xp.multiply(spread, smoothing / xp.shape(logits)[axis]))
    if reduction == "none":
        return loss
    total = xp.sum(loss)
    return total if reduction == "sum" else xp.divide(total, xp.sum(counts))


# ---- recurrence ------------------------------------------------------------------------------------------------------


@word
def lstm(
    xp: Any,
    x: Array,
    h: Array,
    c: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None = None,
    b_hh: Array | None = None,
    w_hr: Array | None = None,
    reverse: bool = False,
) -> tuple[Array, Array, Array]:
    """One layer in one direction (Hochreiter, Schmidhuber 1997): x (T, N, I), h (N, H), c (N, H), weights (4 H, I) and
    (4 H, H) of the gates i, f, g, o, biases (4 H) -> (every h (T, N, H), the last h, the last c). `w_hr` (P, H)
    projects h to P."""

    def step(carry: tuple[Array, Array], gates: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = carry
        i, f, g, o = xp.split(xp.add(gates, linear(xp, h, w_hh, b_hh)), (xp.shape(c)[1],) * 4, 1)
        c = xp.add(xp.multiply(xp.sigmoid(f), c), xp.multiply(xp.sigmoid(i), xp.tanh(g)))
        h = xp.multiply(xp.sigmoid(o), xp.tanh(c))
        h = h if w_hr is None else linear(xp, h, w_hr)
        return (h, c), h

    (h, c), ys = xp.scan(step, (h, c), linear(xp, x, w_ih, b_ih), length=xp.shape(x)[0], reverse=reverse)
    return ys, h, c


@word
def gru(
    xp: Any,
    x: Array,
    h: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None = None,
    b_hh: Array | None = None,
    reverse: bool = False,
) -> tuple[Array, Array]:
    """A layer in one direction (Cho et al. 2014): x (T, N, I), h (N, H), weights (3 H, I) and (3 H, H) of the gates r,
    z, n, biases (3 H) -> (every h (T, N, H), the last h)."""

    def step(h: Array, gates: Array) -> tuple[Array, Array]:
        sizes = (xp.shape(h)[1],) * 3
        r, z, n = xp.split(gates, sizes, 1)
        of_h = xp.split(linear(xp, h, w_hh, b_hh), sizes, 1)
        r, z = xp.sigmoid(xp.add(r, of_h[0])), xp.sigmoid(xp.add(z, of_h[1]))
        n = xp.tanh(xp.add(n, xp.multiply(r, of_h[2])))
        h = xp.add(xp.multiply(xp.subtract(1, z), n), xp.multiply(z, h))
        return h, h

    h, ys = xp.scan(step, h, linear(xp, x, w_ih, b_ih), length=xp.shape(x)[0], reverse=reverse)
    return ys, h


@word
def rnn(
    xp: Any,
    x: Array,
    h: Array,
    w_ih: Array,
    w_hh: Array,
    b_ih: Array | None = None,
    b_hh: Array | None = None,
    activation: str = "tanh",
    reverse: bool = False,
) -> tuple[Array, Array]:
    """One layer in one direction (Elman 1990): x (T, N, I), h (N, H), weights (H, I) and (H, H), biases (H) -> (every h
    (T, N, H), the last h). `activation`: "tanh" or "relu"."""

    def step(h: Array, given: Array) -> tuple[Array, Array]:
        total = xp.add(given, linear(xp, h, w_hh, b_hh))
        h = xp.tanh(total) if activation == "tanh" else xp.maximum(total, 0)
        return h, h

    h, ys = xp.scan(step, h, linear(xp, x, w_ih, b_ih), length=xp.shape(x)[0], reverse=reverse)
    return ys, h


# ---- attention -------------------------------------------------------------------------------------------------------


@word
def attend(
    xp: Any, q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False, scale: float | None = None
) -> Array:
    """`attention` of the hub without its second result: q (N, H, L, E), k (N, G, S, E), v (N, G, S, F). The mask is
    added to the scores, or says what is seen."""
    if mask is not None and xp.dtype_of(mask) == dtypes.bool_:
        mask = xp.where(mask, xp.zeros(xp.shape(mask), xp.dtype_of(q)), xp.full((), -math.inf, xp.dtype_of(q)))
    return xp.attention(q, k, v, mask, causal, scale)[0]


@word
def attention_weights(
    xp: Any, q: Array, k: Array, mask: Array | None = None, causal: bool = False, scale: float | None = None
) -> Array:
    """Return the weights of v in `attend`: softmax(scale q k^T + mask) of q (N, H, L, E) and k (N, H, S, E), zeros for
    a query that sees nothing."""
    scores = xp.multiply(xp.matmul(q, xp.matrix_transpose(k)), xp.shape(q)[3] ** -0.5 if scale is None else scale)
    if causal:
        seen = xp.tril(xp.full(xp.shape(scores)[2:], True, dtypes.bool_))
        mask = seen if mask is None else mask
    if mask is None:
        return xp.softmax(scores, 3)
    if xp.dtype_of(mask) == dtypes.bool_:
        scores = xp.where(mask, scores, xp.full((), -math.inf, xp.dtype_of(scores)))
    else:
        scores = xp.add(scores, mask)
    high = xp.max(scores, 3, keepdims=True)
    exps = xp.exp(xp.subtract(scores, xp.where(xp.equal(high, -math.inf), xp.zeros_like(high), high)))
    total = xp.sum(exps, 3, keepdims=True)
    return xp.divide(exps, xp.where(xp.equal(total, 0), xp.ones_like(total), total))


# ---- gradients and randomness ----------------------------------------------------------------------------------------


@word
def stop_gradient(xp: Any, x: Array) -> Array:
    return x


@word
def dropout(xp: Any, x: Array, key: Array, rate: float) -> Array:
    """Zeros in the places that `key` says, the rest divided by 1 - rate. Each framework has its own random numbers."""
    kept = xp.greater_equal(xp.uniform(key, xp.shape(x), xp.dtype_of(x)), rate)
    return xp.where(kept, xp.multiply(x, 1 / (1 - rate)), xp.zeros_like(x))


@word
def split_key(xp: Any, key: Array) -> tuple[Array, Array]:
    """(a key to go on with, a key to use): uint32 (2,) each."""
    zero, one, two = (xp.full((), n, dtypes.uint32) for n in range(3))
    return xp.fold_in(key, zero, one), xp.fold_in(key, zero, two)


# ---- the random numbers of JAX ---------------------------------------------------------------------------------------
# of keys as `jax.random.key_data` has them: uint32 (2,), of Threefry


def _numbered(xp: Any, key: Array, shape: Ints) -> tuple[Array, Array]:
    """The cipher of 0, 1, 2, ..."""
    at = xp.reshape(xp.iota(math.prod(shape), dtypes.uint32), shape)
    return xp.threefry2x32(key, xp.zeros(shape, dtypes.uint32), at)


@word
def jax_bits(xp: Any, key: Array, shape: Ints) -> Array:
    """`jax.random.bits`: uint32."""
    return xp.bitwise_xor(*_numbered(xp, key, shape))


@word
def jax_uniform(xp: Any, key: Array, shape: Ints) -> Array:
    """`jax.random.uniform`: float32 in [0, 1), on a grid of 2^-23."""
    bits = xp.bitwise_right_shift(jax_bits(xp, key, shape), xp.full((), 9, dtypes.uint32))
    return xp.multiply(xp.astype(bits, dtypes.float32), 2.0**-23)


@word
def jax_normal(xp: Any, key: Array, shape: Ints) -> Array:
    """`jax.random.normal`: float32."""
    low = float(np.nextafter(np.float32(-1), np.float32(0)))
    z = xp.maximum(xp.add(xp.multiply(jax_uniform(xp, key, shape), 2.0), low), low)
    return xp.multiply(xp.erf_inv(z), float(np.float32(math.sqrt(2))))


@word
def jax_split(xp: Any, key: Array, shape: Ints) -> Array:
    """`jax.random.split`: keys (*shape, 2)."""
    return xp.stack(_numbered(xp, key, shape), axis=len(shape))


@word
def jax_fold_in(xp: Any, key: Array, data: Array) -> Array:
    """`jax.random.fold_in` of a number (uint32 without axes)."""
    return xp.stack(xp.threefry2x32(key, xp.zeros_like(data), data), axis=0)
