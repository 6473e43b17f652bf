"""Normalisation over the last axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorgraft.array_api as xp
from tensorgraft.array_api import Array
from tensorgraft.frontends.array_api.extensions import neural
from tensorgraft.hub import dtypes
from tensorgraft.nn import initial
from tensorgraft.transforms.module import Module, field


class _Norm(Module):
    shape: tuple[int, ...] = field(static=True)
    eps: float = field(static=True)
    use_weight: bool = field(static=True)
    use_bias: bool = field(static=True)
    weight: Array | None  # of shape `shape`
    bias: Array | None

    def __init__(
        self,
        shape: int | Sequence[int],
        eps: float = 1e-5,
        use_weight: bool = True,
        use_bias: bool = True,
        dtype: Any = None,
        *,
        device: Any = None,
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps, self.use_weight, self.use_bias = eps, use_weight, use_bias
        dtype = initial.dtype_or_default(dtype)
        self.weight = xp.ones(self.shape, dtype=dtype, device=device) if use_weight else None
        self.bias = xp.zeros(self.shape, dtype=dtype, device=device) if use_bias else None

    def _normalised(self, x: Array) -> Array:
        raise NotImplementedError

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        if x.shape[x.ndim - len(self.shape) :] != self.shape:
            raise ValueError(
                f"{type(self).__name__}({self.shape}) expects arrays whose shape ends with it, got"
                f" {x.dtype}{list(x.shape)}"
            )
        wide = dtypes.accumulator(x.dtype)
        out = self._normalised(xp.astype(x, wide, copy=False))
        if self.weight is not None:
            out = xp.astype(self.weight, wide, copy=False) * out
        if self.bias is not None:
            out = out + xp.astype(self.bias, wide, copy=False)
        return xp.astype(out, x.dtype, copy=False)


class LayerNorm(_Norm):
    """(x - mean) / sqrt(var + eps) * weight + bias over the axes of `shape`, the last ones (Ba et al. 2016, arXiv
    1607.06450); computed in at least float32. `device`: of its weights."""

    def _normalised(self, x: Array) -> Array:
        return neural.layer_norm(x, len(self.shape), self.eps)


class RMSNorm(_Norm):
    """x / sqrt(mean(x^2) + eps) * weight + bias over the axes of `shape`, the last ones (Zhang and Sennrich 2019, arXiv
    1910.07467); computed in at least float32. `device`: of its weights."""

    def _normalised(self, x: Array) -> Array:
        return neural.rms_norm(x, len(self.shape), self.eps)
