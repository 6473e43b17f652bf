"""Operands of every word; what it means is its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.hub.draw import Draw

from tensorgraft.hub import dtypes

Operands = Callable[[Draw], tuple[Any, ...]]
# Words of random numbers, of which targets draw their own; of identities
ELSEWHERE = {"dropout", "split_key", "jax_bits", "jax_uniform", "jax_normal", "jax_split", "jax_fold_in"}


def _one(d: Draw) -> tuple[Any, ...]:
    return (d.array(),)


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


def _pads(d: Draw, most: int) -> tuple[Any, ...]:
    n = d.int(1, 3)
    x = d.array((*d.shape(1, 2, smallest=1), *(d.int(4, 6) for _ in range(n))))
    return x, tuple((d.int(0, most), d.int(1, most)) for _ in range(n))


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
        last = {4: (None,), 3: (), 1: (d.one_of(("tanh", "relu")),)}[gates]
        arrays = [d.array((n, h)) for _ in range(states)]
        return d.array((t, n, i)), *arrays, d.array((gates * h, i)), d.array((gates * h, h)), *biases, *last, d.flag()

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


def _getitem(d: Draw) -> tuple[Any, ...]:
    x = d.array((d.int(3, 4), d.int(3, 4), d.int(3, 4)))
    return x, d.one_of(
        ((0,), (slice(None), 1), (Ellipsis, slice(1, None, 2)), (None, 2, slice(0, 2)), (-1, Ellipsis, None))
    )


def _indexed(d: Draw) -> tuple[Any, ...]:
    x = d.array((d.int(2, 4), d.int(2, 4), d.int(2, 4)))
    i, j = (np.array([d.int(-2, 1) for _ in range(3)]) for _ in range(2))
    return x, d.one_of(((i,), (None, i), (i, j), (None, i, j), (i, None, j)))


def _index_updated(mode: str) -> Operands:
    def draw(d: Draw) -> tuple[Any, ...]:
        x = d.array((3, 4, 2))
        i = np.array([0, -1] if mode == "set" else [0, 0, -1])
        indices = d.one_of(((i,), (None, i), (i, i)))
        shape = np.empty(x.shape)[tuple(slice(None) if k is None else k for k in indices)].shape
        return x, indices, d.array(shape), mode

    return draw


def _einsum(d: Draw) -> tuple[Any, ...]:
    b, i, j, k = (d.int(1, 3) for _ in range(4))
    return d.one_of(
        (
            ("bhqd,bhkd->bhqk", (d.array((b, i, j, 2)), d.array((b, i, k, 2)))),
            ("...i,ij->...j", (d.array((b, k, i)), d.array((i, j)))),
            ("ij->ji", (d.array((i, j)),)),
            ("i,j,k->ijk", (d.array((i,)), d.array((j,)), d.array((k,)))),
        )
    )


def _resized(d: Draw) -> tuple[Any, ...]:
    n = d.int(1, 2)
    method = d.one_of(("nearest", "linear", *(["cubic"] if n == 2 else [])))
    x = d.array((d.int(1, 2), 2, *(d.int(2, 5) for _ in range(n))))
    return x, tuple(d.int(2, 9) for _ in range(n)), method, method != "nearest" and d.flag()


CASES: dict[str, Operands] = {
    "getitem": _getitem,
    "flatten": lambda d: (x := d.array(d.shape(2, smallest=1)), d.int(0, x.ndim - 2), -1),
    "pad_reflect": lambda d: _pads(d, 3),
    "pad_edge": lambda d: _pads(d, 6),
    "repeat": lambda d: (x := d.array(d.shape(2, smallest=1)), d.int(2, 3), d.int(0, x.ndim - 1)),
    "index": _indexed,
    "index_update": _index_updated("set"),
    "index_update add": _index_updated("add"),
    "arange": lambda d: d.one_of(
        ((0, 5, 1, dtypes.int64), (2, 9, 3, dtypes.int32), (0.5, 3.0, 0.5, d.dtype), (1, 4, 1, d.dtype))
    ),
    "linear": _linear,
    "conv": _conv,
    "conv_channels_last": _conv_channels_last,
    "max_pool_channels_last": _pool_channels_last,
    "avg_pool_channels_last": _pool_channels_last,
    "attention_weights": _weighed,
    "conv_transpose": _conv_transpose,
    "einsum": _einsum,
    "embedding": lambda d: (x := d.array((d.int(1, 4), 3)), d.indices(x.shape[0], d.shape(1, 2)), d.one_of((None, 0))),
    "layer_norm": _norm,
    "rms_norm": lambda d: (lambda x, w, b, axes, eps: (x, w, axes, eps))(*_norm(d)),
    "group_norm": _groups,
    "batch_norm": _batch,
    "batch_norm_training": lambda d: (*_batch(d), 0.1, 1e-3),
    **dict.fromkeys(("relu", "silu", "leaky_relu", "elu", "selu", "mish", "log_sigmoid", "relu6"), _one),
    **dict.fromkeys(("hard_sigmoid", "hard_silu", "stop_gradient"), _one),
    "gelu": lambda d: (d.array(), d.flag()),
    "resize": _resized,
    "max_pool": _pool,
    "avg_pool": lambda d: (*_pool(d), d.flag()),
    "cross_entropy": _losses,
    "lstm": _recurrent(4, 2),
    "gru": _recurrent(3, 1),
    "rnn": _recurrent(1, 1),
    "attend": _attend,
}
