"""A weight that is watched: the numbers that it has, in a quantised array that tells what it is multiplied by.

So calibration needs to know nothing of models: whatever computes with quantised arrays computes with these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.encodings import Encoding
from tensorgraft.quantization.quantized import Quantized, axes_of, dense
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import whole

Array = Any
DENSE = Encoding("dense", 32, "dense")  # codes that are the numbers themselves


@dataclass(frozen=True)
class Product:
    """What a weight was multiplied by.

    Arguments:
        inputs: (rows, K), a float array of the host, with the contracted axis last.
        axis: of the weight, along which products are added up; None where there are several, or parts of one.
        columns: the indices along that axis, (K,).
    """

    inputs: np.ndarray
    axis: int | None
    columns: np.ndarray | None


@dataclass(frozen=True)
class Watching(Scheme):
    """The scheme of a weight that stays as it is, and calls `note` with each `Product`, or with the reason why there
    is none to see."""

    encoding: str = "dense"
    granularity: str = "tensor"
    note: Callable[[Product | str], None] = print

    def __post_init__(self) -> None:
        pass

    @property
    def codes(self) -> Encoding:
        return DENSE

    def __str__(self) -> str:
        return "watched"


def watched(xp: Backend, x: Array, note: Callable[[Product | str], None]) -> Quantized:
    shape = xp.shape(x)
    scale = xp.ones((1,) * len(shape), dtypes.float32)
    return Quantized(x, scale, None, shape, whole(shape, xp.dtype_of(x)), Watching(note=note))


def notice(xp: Backend, q: Any, other: Array, own: Sequence[int], theirs: Sequence[int]) -> None:
    """A product contracts the axes `own` of `q` with the axes `theirs` of `other`; nothing if `q` is not watched."""
    if not isinstance(q, Quantized) or not isinstance(q.scheme, Watching):
        return
    other = dense(xp, other) if isinstance(other, Quantized) else other
    if xp.is_traced(other):
        q.scheme.note("is compiled: give the model as it is before tg.jit, tg.lazy or a transform")
        return
    ndim = xp.ndim(other)
    rest = [i for i in range(ndim) if i not in theirs]
    x = xp.to_numpy(xp.permute_dims(other, (*rest, *theirs)) if [*rest, *theirs] != list(range(ndim)) else other)
    x = np.asarray(x, np.float64 if x.dtype == np.float64 else np.float32)
    x = x.reshape(-1, int(np.prod(x.shape[len(rest) :], dtype=int)))
    found = axes_of(q)
    at = None if found is None or len(own) != 1 else found[0][own[0]]
    if at is None or at.base is None:
        q.scheme.note(Product(x, None, None))
    else:
        q.scheme.note(Product(x, at.base, at.start + at.step * np.arange(at.extent)))
