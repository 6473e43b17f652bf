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
X, IMAGE, W = rand(3, 5), rand(2, 4, 7, 6), rand(6, 5)


CASES: list[Case] = [
    ("getitem", lambda x, i: x[i], (IMAGE, (0, Ellipsis, slice(1, 5, 2), None)), {}),
    ("getitem", lambda x, i: x[i], (IMAGE, (Ellipsis, -1)), {}),
    ("flatten", lambda x, **k: x.flatten(1, 2), (IMAGE,), {"start": 1, "end": 2}),
    ("index", lambda x, i: x[i[0], :, i[2]], (IMAGE, (ints(2, 3, 1), None, ints(7, 3, 2))), {}),
    ("index", lambda x, i: x[:, i[1]], (IMAGE, (None, ints(4, 3, 2))), {}),
    ("index", lambda x, i: x[i[0], i[1]], (IMAGE, (ints(2, 3), ints(4, 3))), {}),
    ("index_update", lambda x, i, v: torch.index_put(x, i, v),
     (IMAGE, (np.array([1, -2]), np.array([0, 3])), rand(7, 6)), {}),
    ("index_update", lambda x, i, v, mode: torch.index_put(x, i, v, True), (X, (np.array([0, 0, 1]),), rand(3, 5)),
     {"mode": "add"}),
    ("arange", lambda a, b, c, d: torch.arange(a, b, c), (2, 11, 3, dtypes.int64), {}),
    ("arange", lambda a, b, c, d: torch.arange(a, b, c), (0.5, 2.0, 0.25, dtypes.float32), {}),
    ("einsum", lambda e, xs: torch.einsum(e, *xs), ("bij,bjk->bik", (rand(2, 3, 4), rand(2, 4, 5))), {}),
    ("einsum", lambda e, xs: torch.einsum(e, *xs), ("...i,oi,...i->o", (rand(2, 3, 4), rand(5, 4), rand(2, 3, 4))), {}),
    ("einsum", lambda e, xs: torch.einsum(e, *xs), ("i,j->ji", (rand(3), rand(4))), {}),
    ("embedding", lambda w, i: F.embedding(i, w), (W, ints(6, 2, 3) % 6), {}),
    ("stop_gradient", torch.Tensor.detach, (X,), {}),
]  # fmt: skip


def theirs(x: Any) -> Any:
    if isinstance(x, np.ndarray):
        return torch.from_numpy(x)
    return tuple(map(theirs, x)) if isinstance(x, tuple) else x


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
