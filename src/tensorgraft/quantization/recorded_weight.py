"""Weights that record the inputs of their products: quantised arrays that hold the original numbers.

Calibration is thus independent of the kind of model: all code that computes with quantised arrays works with these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.encodings import Encoding
from tensorgraft.quantization.quantized import Quantized, axes_of, dense
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import contiguous_geometry

DENSE = Encoding("dense", 32, "dense")  # codes that are the numbers themselves


@dataclass(frozen=True)
class Product:
    """The input of a product with a weight.

    Arguments:
        inputs: (rows, K), a float array of the host, with the contracted axis last.
        axis: the contracted axis of the weight; None if there are several, or parts of one.
        columns: the indices along that axis, (K,).
    """

    inputs: np.ndarray
    axis: int | None
    columns: np.ndarray | None


class Watch(Protocol):
    def reached(self) -> None:
        """Called when the model reaches a product, which may belong to a program being compiled."""

    def note(self, product: Product) -> None:
        """Note a product that is computed; compiled programs call this in any order and from any thread."""

    def unseen(self, reason: str) -> None:
        """Products that are computed cannot be told of."""


@dataclass(frozen=True)
class Watching(Scheme):
    """The scheme of a weight that stays as it is, and whose products are told to `watch`."""

    encoding: str = "dense"
    granularity: str = "tensor"
    watch: Any = None  # a Watch

    def __post_init__(self) -> None:
        pass

    @property
    def codes(self) -> Encoding:
        return DENSE

    def __str__(self) -> str:
        return "watched"


def watched_weight(xp: Backend, x: Array, watch: Watch) -> Quantized:
    shape = xp.shape(x)
    scale = xp.ones((1,) * len(shape), dtypes.float32)
    return Quantized(x, scale, None, shape, contiguous_geometry(shape, xp.dtype_of(x)), Watching(watch=watch))


def notice(xp: Backend, q: Any, other: Array, contracted: Sequence[int], dims: Sequence[int]) -> None:
    """Note a product of the axes `contracted` of `q` and `dims` of `other`; nothing if `q` is not watched."""
    if not isinstance(q, Quantized) or not isinstance(q.scheme, Watching):
        return
    other = dense(xp, other) if isinstance(other, Quantized) else other
    axes, watch = axes_of(q), q.scheme.watch
    at = None if axes is None or len(contracted) != 1 else axes[0][contracted[0]]
    axis, columns = None, None
    if at is not None and at.base is not None:
        axis, columns = at.base, at.start + at.step * np.arange(at.extent)
    ndim = xp.ndim(other)
    rest = [i for i in range(ndim) if i not in dims]

    def note(x: np.ndarray) -> None:
        x = np.asarray(x, np.float64 if x.dtype == np.float64 else np.float32)
        width = int(np.prod(x.shape[x.ndim - len(dims) :], dtype=int))
        watch.note(Product(x.reshape(-1, width) if x.size else x.reshape(0, width), axis, columns))

    watch.reached()
    try:
        xp.observe(note, xp.permute_dims(other, (*rest, *dims)) if [*rest, *dims] != list(range(ndim)) else other)
    except TypeError as error:
        watch.unseen(str(error))
