"""Layers of neural networks: operands for each, and PyTorch as the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.hub.cases import FLOATS, Case
from tests.hub.draw import Draw

from tensorgraft.hub import dtypes

Operands = Callable[[Draw], tuple[Any, ...]]


def _torch(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of tensors as one of arrays."""

    def run(*operands: Any) -> Any:
        with torch.no_grad():
            out = fn(*(torch.from_numpy(x.copy()) if isinstance(x, np.ndarray) else x for x in operands))
        return tuple(x.numpy() for x in out) if isinstance(out, tuple | list) else out.numpy()

    return run


def _linear(d: Draw) -> tuple[Any, ...]:
    i, o = d.int(1, 4), d.int(1, 4)
    return d.array((*d.shape(1, 2, smallest=1), i)), d.array((o, i)), d.one_of((None, d.array((o,))))


def _conv(d: Draw) -> tuple[Any, ...]:
    n, groups = d.int(1, 2), d.int(1, 2)
    x = d.array((d.int(1, 2), 2 * groups, *(d.int(5, 7) for _ in range(n))))
    w = d.array((groups * d.int(1, 2), 2, *(d.int(1, 3) for _ in range(n))))
    stride, dilation = (tuple(d.int(1, 2) for _ in range(n)) for _ in range(2))
    padding = tuple((p, d.one_of((p, 1))) for p in (d.int(0, 2) for _ in range(n)))
    return x, w, d.one_of((None, d.array(w.shape[:1]))), stride, padding, dilation, groups


def _conv_channels_last(d: Draw) -> tuple[Any, ...]:
    x, w, *rest = _conv(d)
    return np.moveaxis(x, 1, -1).copy(), np.moveaxis(w, (0, 1), (-1, -2)).copy(), *rest


def _conv_transpose(d: Draw) -> tuple[Any, ...]:
    n, groups = d.int(1, 2), d.int(1, 2)
    x = d.array((d.int(1, 2), 2 * groups, *(d.int(3, 5) for _ in range(n))))
    w = d.array((2 * groups, d.int(1, 2), *(d.int(1, 3) for _ in range(n))))
    stride = tuple(d.int(2, 3) for _ in range(n))
    padding, extra = (tuple(d.int(0, 1) for _ in range(n)) for _ in range(2))
    return x, w, d.one_of((None, d.array((w.shape[1] * groups,)))), stride, padding, extra, (1,) * n, groups


def _norm(d: Draw) -> tuple[Any, ...]:
    shape, axes = d.shape(2, 3, smallest=2), d.int(1, 2)
    return (
        d.array(shape),
        d.one_of((None, d.array(shape[-axes:]))),
        d.one_of((None, d.array(shape[-axes:]))),
        axes,
        1e-3,
    )


def _groups(d: Draw) -> tuple[Any, ...]:
    c = 2 * d.int(1, 2)
    x = d.array((d.int(1, 2), c, *d.shape(1, 2, smallest=2)))
    return x, 2, d.array((c,)), d.array((c,)), 1e-3


def _batch(d: Draw) -> tuple[Any, ...]:
    c = d.int(1, 3)
    x = d.array((d.int(2, 3), c, *d.shape(0, 2, smallest=2)))
    return x, d.array((c,)), d.array((c,), low=1, high=2), d.array((c,)), d.one_of((None, d.array((c,))))


def _pool(d: Draw) -> tuple[Any, ...]:
    n = d.int(1, 2)
    x = d.array((*d.shape(1, 2, smallest=1), *(d.int(5, 8) for _ in range(n))))
    pads = tuple((p, p) for p in (d.int(0, 1) for _ in range(n)))
    return x, tuple(d.int(2, 3) for _ in range(n)), tuple(d.int(1, 3) for _ in range(n)), pads


def _losses(d: Draw) -> tuple[Any, ...]:
    n, c, rest = d.int(2, 4), d.int(2, 4), d.shape(0, 1, smallest=1)
    labels = d.indices(c, (n, *rest))
    labels[0] = -100
    weight = d.one_of((None, d.array((c,), low=1, high=2)))
    reduction = d.one_of(("mean", "sum", "none"))
    return d.array((n, c, *rest)), labels, weight, reduction, -100, d.one_of((0.0, 0.1))


def _recurrent(gates: int, states: int) -> Operands:
    def draw(d: Draw) -> tuple[Any, ...]:
        t, n, i, h = d.int(1, 3), d.int(1, 2), d.int(1, 3), d.int(1, 3)
        biases = d.one_of(((None, None), (d.array((gates * h,)), d.array((gates * h,)))))
        projected = d.one_of((None, d.array((h - 1, h)))) if gates == 4 and h > 1 else None
        out = h if projected is None else h - 1  # what the layer gives
        last = {4: (projected,), 3: (), 1: (d.one_of(("tanh", "relu")),)}[gates]
        arrays = [d.array((n, size)) for size in (out, h)[:states]]
        weights = d.array((gates * h, i)), d.array((gates * h, out))
        return d.array((t, n, i)), *arrays, *weights, *biases, *last, d.flag()

    return draw


def _attend(d: Draw) -> tuple[Any, ...]:
    groups, shared, rows, keys, width = d.int(1, 2), d.int(1, 2), d.int(1, 4), d.int(1, 5), d.int(1, 4)
    q, k = d.array((2, groups * shared, rows, width)), d.array((2, groups, keys, width))
    masks = (None, d.array((rows, keys), dtypes.bool_), d.array((2, 1, 1, keys)))
    return q, k, d.array((2, groups, keys, width)), d.one_of(masks), d.flag(), d.one_of((None, 0.3))


def _weighed(d: Draw) -> tuple[Any, ...]:
    q, k, _, mask, causal, scale = _attend(d)
    k = np.repeat(k, q.shape[1] // k.shape[1], 1)
    return q, k, mask, causal and mask is None, scale


def _pool_channels_last(d: Draw) -> tuple[Any, ...]:
    x, *rest = _pool(d)
    return d.array((d.int(1, 2), *x.shape[-len(rest[0]) :], 2)), *rest


def _resized(d: Draw) -> tuple[Any, ...]:
    n = d.int(1, 2)
    method = d.one_of(("nearest", "linear", *(["cubic"] if n == 2 else [])))
    x = d.array((d.int(1, 2), 2, *(d.int(2, 5) for _ in range(n))))
    return x, tuple(d.int(2, 9) for _ in range(n)), method, method != "nearest" and d.flag()


# ---- PyTorch's -------------------------------------------------------------------------------------------------------


def _around(x: torch.Tensor, padding: Any, value: float = 0.0) -> torch.Tensor:
    return F.pad(x, [p for pair in reversed(padding) for p in pair], value=value)


def _convolved(x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    conv = (F.conv1d, F.conv2d)[len(stride) - 1]
    return conv(_around(x, padding), w, bias, stride, 0, dilation, groups)


def _convolved_channels_last(x: Any, w: Any, *rest: Any) -> Any:
    y = _convolved(x.movedim(-1, 1), w.movedim((-1, -2), (0, 1)), *rest)
    return y.movedim(1, -1)


def _transposed(x: Any, w: Any, bias: Any, stride: Any, padding: Any, extra: Any, dilation: Any, groups: int) -> Any:
    conv = (F.conv_transpose1d, F.conv_transpose2d)[len(stride) - 1]
    return conv(x, w, bias, stride, padding, extra, groups, dilation)


def _standardized(x: Any, axes: Any, eps: float) -> Any:
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    return (x - mean) / (variance + eps).sqrt(), mean, 1 / (variance + eps).sqrt()


def _trained(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, momentum: float, eps: float) -> Any:
    return F.batch_norm(x, mean, variance, weight, bias, True, momentum, eps), mean, variance


def _pooled(kind: str) -> Callable[..., Any]:
    def run(x: Any, window: Any, stride: Any, padding: Any, count_padding: bool = True) -> Any:
        rows = x.reshape(-1, 1, *x.shape[-len(window) :])
        if kind == "max":
            pool = (F.max_pool1d, F.max_pool2d)[len(window) - 1]
            y = pool(_around(rows, padding, -torch.inf), window, stride)
        else:
            pool = (F.avg_pool1d, F.avg_pool2d)[len(window) - 1]
            y = pool(rows, window, stride, [low for low, _ in padding], count_include_pad=count_padding)
        return y.reshape(*x.shape[: -len(window)], *y.shape[2:])

    return run


def _pooled_channels_last(kind: str) -> Callable[..., Any]:
    return lambda x, *rest: _pooled(kind)(x.movedim(-1, 1), *rest).movedim(1, -1)


def _interpolated(x: Any, size: Any, method: str, corners: bool) -> Any:
    if method == "nearest":
        return F.interpolate(x, size)
    mode = {"linear": ("linear", "bilinear"), "cubic": ("", "bicubic")}[method][len(size) - 1]
    return F.interpolate(x, size, mode=mode, align_corners=corners)


def _cell(kind: str) -> Callable[..., Any]:
    """A layer of PyTorch with these weights."""
    states, gates = {"LSTM": (2, 4), "GRU": (1, 3), "RNN": (1, 1)}[kind]

    def run(x: Any, *rest: Any) -> Any:
        start, (w_ih, w_hh, b_ih, b_hh, *options, reverse) = rest[:states], rest[states:]
        projection = options[0] if kind == "LSTM" else None
        weights = [w for w in (w_ih, w_hh, b_ih, b_hh, projection) if w is not None]
        layer = getattr(torch.nn, kind)(
            x.shape[2], w_ih.shape[0] // gates, bias=b_ih is not None, dtype=x.dtype,
            **({"nonlinearity": options[0]} if kind == "RNN" else {}),
            **({"proj_size": projection.shape[0]} if projection is not None else {}),
        )  # fmt: skip
        layer.load_state_dict(dict(zip(layer.state_dict(), weights, strict=True)))
        ys, ends = layer(x.flip(0) if reverse else x, tuple(s[None] for s in start) if states > 1 else start[0][None])
        return (ys.flip(0) if reverse else ys, *(e[0] for e in (ends if states > 1 else (ends,))))

    return run


def _attended(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(0 if causal else k.shape[2])
    hidden = torch.zeros(q.shape[2], k.shape[2], dtype=q.dtype).masked_fill(~seen, -torch.inf)
    if mask is not None:
        hidden = hidden.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else hidden + mask
    return F.scaled_dot_product_attention(q, k, v, hidden, scale=scale, enable_gqa=True)


def _weights(q: Any, k: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    return _attended(q, k, torch.eye(k.shape[2], dtype=q.dtype).expand(*k.shape[:2], -1, -1), mask, causal, scale)


def _row(operands: Operands, reference: Callable[..., Any], units: float = 64) -> Case:
    return Case(FLOATS, operands, _torch(reference), units)


NEURAL = {
    "linear": _row(_linear, F.linear),
    "conv": _row(_conv, _convolved, 128),
    "conv_channels_last": _row(_conv_channels_last, _convolved_channels_last, 128),
    "conv_transpose": _row(_conv_transpose, _transposed, 128),
    "standardize": _row(lambda d: (x := d.array(d.shape(2, 3, smallest=2)), (0, x.ndim - 1), 1e-3), _standardized, 512),
    "layer_norm": _row(_norm, lambda x, w, b, axes, eps: F.layer_norm(x, x.shape[-axes:], w, b, eps), 512),
    "rms_norm": _row(
        lambda d: (lambda x, w, b, axes, eps: (x, w, axes, eps))(*_norm(d)),
        lambda x, w, axes, eps: F.rms_norm(x, x.shape[-axes:], w, eps),
    ),
    "group_norm": _row(_groups, F.group_norm, 512),
    "batch_norm": _row(_batch, F.batch_norm),
    "batch_norm_training": _row(lambda d: (*_batch(d), 0.1, 1e-3), _trained, 512),
    **{name: _row(lambda d: (d.array(),), fn) for name, fn in {
        "relu": F.relu, "silu": F.silu, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu, "mish": F.mish,
        "log_sigmoid": F.logsigmoid, "relu6": F.relu6, "hard_sigmoid": F.hardsigmoid, "hard_silu": F.hardswish,
    }.items()},
    "gelu": _row(
        lambda d: (d.array(), d.flag()), lambda x, tanh: F.gelu(x, approximate="tanh" if tanh else "none")
    ),
    "max_pool": _row(_pool, _pooled("max")),
    "avg_pool": _row(lambda d: (*_pool(d), d.flag()), _pooled("avg")),
    "max_pool_channels_last": _row(_pool_channels_last, _pooled_channels_last("max")),
    "avg_pool_channels_last": _row(_pool_channels_last, _pooled_channels_last("avg")),
    "resize": _row(_resized, _interpolated, 128),
    "cross_entropy": _row(_losses, lambda x, t, w, r, i, s: F.cross_entropy(
        x, t, w, ignore_index=i, reduction=r, label_smoothing=s), 128),
    "lstm": _row(_recurrent(4, 2), _cell("LSTM")),
    "gru": _row(_recurrent(3, 1), _cell("GRU")),
    "rnn": _row(_recurrent(1, 1), _cell("RNN")),
    "attention_weights": _row(_weighed, _weights),
    "dot_product_attention": _row(_attend, _attended),
}  # fmt: skip
