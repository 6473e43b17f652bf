"""The backend NumPy with other roundings, for the question whether rounding decides what a program gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.backends.numpy.backend import NumpyBackend
from tensorgraft.hub import dtypes
from tensorgraft.hub.operations.elementwise import BINARY, UNARY

MOVING = {"abs", "negative", "conj", "real", "imag", "floor", "ceil", "trunc", "round", "sign", "maximum", "minimum"}
MOVING |= {"copysign", "nextafter", "fmod", "remainder", "floor_divide", "square"} | {n for n in BINARY if "_" in n}
ROUNDING = {*UNARY, *BINARY} - MOVING
ROUNDING |= {
    "sum",
    "prod",
    "cumsum",
    "cumprod",
    "dot_general",
    "convolution",
    "reduce_window",
    "fft",
    "logsumexp",
    "mean",
}
ROUNDING |= {"cholesky", "qr", "svd", "svdvals", "eigh", "lu", "triangular_solve", "solve", "softmax", "sigmoid", "erf"}


class Rounding(NumpyBackend):
    """Every result that is rounded is a few eps off."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)

    def _off(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(self._off, x))
        if not isinstance(x, np.ndarray | np.generic) or not dtypes.is_inexact(x.dtype):
            return x
        factor = 1 + 4 * float(dtypes.finfo(x.dtype).eps) * self._rng.uniform(-1, 1, np.shape(x))
        return np.asarray(x * factor).astype(x.dtype)


def _rounding(name: str) -> Callable[..., Any]:
    exact = getattr(NumpyBackend, name)

    def method(self: Rounding, *args: Any, **kwargs: Any) -> Any:
        return self._off(exact(self, *args, **kwargs))

    return method


for _name in ROUNDING:
    if hasattr(NumpyBackend, _name):
        setattr(Rounding, _name, _rounding(_name))
