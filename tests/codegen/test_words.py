"""Words against PyTorch: what they mean, by NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tensorgraft.codegen.words import WORDS
from tensorgraft.hub import dtypes, registry


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + 7 * len(shape) + sum(shape)).standard_normal(shape).astype(np.float32)


def ints(high: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(high).integers(-high, high, shape)


Case = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]
X, IMAGE, SEQUENCE = rand(3, 5), rand(2, 4, 7, 6), rand(2, 4, 9)
W, B = rand(6, 5), rand(6)
MASK = rand(2, 1, 3, 5) > -0.5


def recurrent(cell: str, reverse: bool = False, **options: Any) -> Callable[..., Any]:
    """PyTorch's layer of the word's weights."""

    def run(x: torch.Tensor, *rest: torch.Tensor, **_: Any) -> Any:
        n = 2 if cell == "LSTM" else 1
        states, weights = rest[:n], rest[n:]
        layer = getattr(torch.nn, cell)(
            x.shape[2], weights[1].shape[0] // {"LSTM": 4, "GRU": 3, "RNN": 1}[cell], **options
        )
        layer.load_state_dict(dict(zip(layer.state_dict(), weights, strict=True)))
        x = x.flip(0) if reverse else x
        ys, ends = layer(x, tuple(s[None] for s in states) if n > 1 else states[0][None])
        ends = ends if isinstance(ends, tuple) else (ends,)
        return (ys.flip(0) if reverse else ys, *(e[0] for e in ends))

    return run


def cells(gates: int, projected: int | None = None) -> tuple[np.ndarray, ...]:
    width = projected or 4
    return (rand(6, 2, 3), rand(2, width), *((rand(2, 4, seed=1),) if gates == 4 else ()), rand(gates * 4, 3),
            rand(gates * 4, width), rand(gates * 4), rand(gates * 4, seed=1),
            *((rand(projected, 4),) if projected else ()))  # fmt: skip


def training(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, momentum: float, eps: float) -> Any:
    mean, variance = mean.clone(), variance.clone()
    return F.batch_norm(x, mean, variance, weight, bias, True, momentum, eps), mean, variance


CASES: list[Case] = [
    ("getitem", lambda x, i: x[i], (IMAGE, (0, Ellipsis, slice(1, 5, 2), None)), {}),
    ("getitem", lambda x, i: x[i], (IMAGE, (Ellipsis, -1)), {}),
    ("flatten", lambda x, **k: x.flatten(1, 2), (IMAGE,), {"start": 1, "end": 2}),
    ("repeat", lambda x, n, axis: x.repeat_interleave(n, axis), (IMAGE, 3, 1), {}),
    ("index", lambda x, i: x[i[0], :, i[2]], (IMAGE, (ints(2, 3, 1), None, ints(7, 3, 2))), {}),
    ("index", lambda x, i: x[:, i[1]], (IMAGE, (None, ints(4, 3, 2))), {}),
    ("index", lambda x, i: x[i[0], i[1]], (IMAGE, (ints(2, 3), ints(4, 3))), {}),
    ("index_update", lambda x, i, v: torch.index_put(x, i, v),
     (IMAGE, (np.array([1, -2]), np.array([0, 3])), rand(7, 6)), {}),
    ("index_update", lambda x, i, v, mode: torch.index_put(x, i, v, True), (X, (np.array([0, 0, 1]),), rand(3, 5)),
     {"mode": "add"}),
    ("arange", lambda a, b, c, d: torch.arange(a, b, c), (2, 11, 3, dtypes.int64), {}),
    ("arange", lambda a, b, c, d: torch.arange(a, b, c), (0.5, 2.0, 0.25, dtypes.float32), {}),
    ("linear", F.linear, (rand(2, 3, 5), W, B), {}),
    ("linear", F.linear, (X, W), {}),
    ("conv", lambda *a, **k: F.conv2d(*a, stride=(2, 1), padding=(1, 0), groups=2), (IMAGE, rand(6, 2, 3, 2), B),
     {"stride": (2, 1), "padding": ((1, 1), (0, 0)), "dilation": (1, 1), "groups": 2}),
    ("conv", lambda *a, **k: F.conv1d(*a, dilation=2), (SEQUENCE, rand(6, 4, 3)), {"dilation": (2,)}),
    ("conv_transpose", lambda *a, **k: F.conv_transpose2d(*a, stride=2, padding=1, output_padding=1),
     (IMAGE, rand(4, 3, 3, 3), rand(3)),
     {"stride": (2, 2), "padding": (1, 1), "output_padding": (1, 1), "dilation": (1, 1)}),
    ("einsum", lambda e, xs: torch.einsum(e, *xs), ("bij,bjk->bik", (rand(2, 3, 4), rand(2, 4, 5))), {}),
    ("einsum", lambda e, xs: torch.einsum(e, *xs), ("...i,oi,...i->o", (rand(2, 3, 4), rand(5, 4), rand(2, 3, 4))), {}),
    ("einsum", lambda e, xs: torch.einsum(e, *xs), ("i,j->ji", (rand(3), rand(4))), {}),
    ("embedding", lambda w, i: F.embedding(i, w), (W, ints(6, 2, 3) % 6), {}),
    ("layer_norm", lambda x, w, b, **k: F.layer_norm(x, (7, 6), w, b, 1e-3), (IMAGE, rand(7, 6), rand(7, 6, seed=1)),
     {"axes": 2, "eps": 1e-3}),
    ("rms_norm", lambda x, w, eps: F.rms_norm(x, (5,), w, eps), (X, rand(5)), {"eps": 1e-3}),
    ("group_norm", F.group_norm, (IMAGE, 2, rand(4), rand(4, seed=1)), {"eps": 1e-3}),
    ("batch_norm", lambda x, m, v, w, b, eps: F.batch_norm(x, m, v, w, b, False, 0.1, eps),
     (IMAGE, rand(4), rand(4) ** 2, rand(4, seed=1), rand(4, seed=2)), {"eps": 1e-3}),
    ("batch_norm_training", training, (IMAGE, rand(4), rand(4) ** 2, rand(4, seed=1), rand(4, seed=2)),
     {"momentum": 0.3, "eps": 1e-3}),
    *[(name, fn, (3 * X,), {}) for name, fn in {
        "relu": F.relu, "silu": F.silu, "gelu": F.gelu, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu,
        "mish": F.mish, "log_sigmoid": F.logsigmoid, "relu6": F.relu6, "hard_sigmoid": F.hardsigmoid,
        "hard_silu": F.hardswish, "stop_gradient": torch.Tensor.detach,
    }.items()],
    ("gelu", lambda x, approximate: F.gelu(x, approximate="tanh"), (3 * X,), {"approximate": True}),
    ("max_pool", lambda x, *_, **__: F.max_pool2d(x, (3, 2), (2, 1), 1, (1, 2)),
     (IMAGE, (3, 2), (2, 1), ((1, 1), (1, 1))),
     {"dilation": (1, 2)}),
    ("avg_pool", lambda x, *_: F.avg_pool2d(x, 3, 2, 1), (IMAGE, (3, 3), (2, 2), ((1, 1), (1, 1))), {}),
    ("avg_pool", lambda x, *_, **__: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False),
     (SEQUENCE, (3,), (2,), ((1, 1),)),
     {"count_padding": False}),
    ("resize", lambda x, size: F.interpolate(x, size), (IMAGE, (3, 11)), {}),
    ("resize", lambda x, size, method: F.interpolate(x, size, mode="bilinear"), (IMAGE, (3, 11)), {"method": "linear"}),
    ("resize", lambda x, size, method, corners: F.interpolate(x, size, mode="bicubic", align_corners=True),
     (IMAGE, (14, 4)), {"method": "cubic", "corners": True}),
    ("resize", lambda x, size, method: F.interpolate(x, size, mode="bicubic"), (IMAGE, (4, 12)), {"method": "cubic"}),
    *[("cross_entropy", lambda x, t, weight=None, ignored=-100, smoothing=0.0, reduction="mean": F.cross_entropy(
        x, t, weight, ignore_index=ignored, reduction=reduction, label_smoothing=smoothing),
        (IMAGE, ints(4, 2, 7, 6) % 4),
       options)
      for options in ({}, {"ignored": 2, "reduction": "sum"}, {"weight": rand(4) ** 2, "reduction": "none"},
                      {"weight": rand(4) ** 2, "smoothing": 0.2, "ignored": 1})],
    ("lstm", recurrent("LSTM"), cells(4), {}),
    ("lstm", recurrent("LSTM", proj_size=2), cells(4, 2), {}),
    ("gru", recurrent("GRU", reverse=True), cells(3), {"reverse": True}),
    ("rnn", recurrent("RNN", nonlinearity="relu"), cells(1), {"activation": "relu"}),
    *[("attention_weights", lambda q, k, mask=None, causal=False, scale=None: F.scaled_dot_product_attention(
        q, k, torch.eye(5).expand(2, 4, 5, 5), mask, is_causal=causal, scale=scale),
       (rand(2, 4, 5, 8), rand(2, 4, 5, 8, seed=1)), options)
      for options in ({}, {"causal": True, "scale": 0.3}, {"mask": MASK[:, :, :1] & (np.arange(5)[:, None] > 1)},
                      {"mask": rand(1, 1, 5, 5)})],
    ("attend", lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, mask),
     (rand(2, 4, 3, 8), rand(2, 4, 5, 8), rand(2, 4, 5, 6)), {"mask": MASK}),
    ("attend", lambda q, k, v, causal, scale: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale,
                                                                            enable_gqa=True),
     (rand(2, 4, 5, 8), rand(2, 2, 5, 8), rand(2, 2, 5, 8, seed=1)), {"causal": True, "scale": 0.3}),
]  # fmt: skip
RANDOM = {"dropout", "split_key"}


def theirs(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x)
    return tuple(map(theirs, x)) if isinstance(x, tuple) else x


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
@pytest.mark.parametrize(("name", "torchs", "args", "kwargs"), CASES, ids=[f"{c[0]}{i}" for i, c in enumerate(CASES)])
def test_a_word_is_what_pytorch_computes(
    name: str, torchs: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    xp = registry.get("numpy")
    with torch.no_grad():
        wanted = torchs(*map(theirs, args), **{k: theirs(v) for k, v in kwargs.items()})
    with xp.scope():
        got = WORDS[name](xp, *args, **kwargs)
    for w, g in zip(*((x if isinstance(x, tuple) else (x,)) for x in (wanted, got)), strict=True):
        np.testing.assert_allclose(g, w.numpy(), rtol=2e-5, atol=2e-6)
        assert (g.shape, g.dtype) == (tuple(w.shape), w.numpy().dtype)


def test_dropout_keeps_the_mean_and_keys_differ() -> None:
    xp = registry.get("numpy")
    with xp.scope():
        rest, key = WORDS["split_key"](xp, np.array([3, 4], np.uint32))
        assert rest.shape == key.shape == (2,)
        assert rest.dtype == key.dtype == np.uint32
        assert len({tuple(rest), tuple(key), (3, 4)}) == 3
        y = WORDS["dropout"](xp, np.ones((100, 100), np.float32), key, 0.25)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(y.mean() - 1) < 0.05
