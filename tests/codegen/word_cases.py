"""Operands of the words that are no operations of the hub; what each means is its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.hub.draw import Draw

from tensorgraft.hub import dtypes

Operands = Callable[[Draw], tuple[Any, ...]]
# Words of random numbers, of which targets draw their own; of identities
ELSEWHERE = {"dropout", "split_key", "jax_bits", "jax_uniform", "jax_normal", "jax_split", "jax_fold_in"}


def _pads(d: Draw, most: int) -> tuple[Any, ...]:
    n = d.int(1, 3)
    x = d.array((*d.shape(1, 2, smallest=1), *(d.int(4, 6) for _ in range(n))))
    return x, tuple((d.int(0, most), d.int(1, most)) for _ in range(n))


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


CASES: dict[str, Operands] = {
    "getitem": _getitem,
    "flatten": lambda d: (x := d.array(d.shape(2, smallest=1)), d.int(0, x.ndim - 2), -1),
    "pad_reflect": lambda d: _pads(d, 3),
    "pad_edge": lambda d: _pads(d, 6),
    "index": _indexed,
    "index_update": _index_updated("set"),
    "index_update add": _index_updated("add"),
    "arange": lambda d: d.one_of(
        ((0, 5, 1, dtypes.int64), (2, 9, 3, dtypes.int32), (0.5, 3.0, 0.5, d.dtype), (1, 4, 1, d.dtype))
    ),
    "einsum": _einsum,
    "embedding": lambda d: (x := d.array((d.int(1, 4), 3)), d.indices(x.shape[0], d.shape(1, 2)), d.one_of((None, 0))),
    "stop_gradient": lambda d: (d.array(),),
}
