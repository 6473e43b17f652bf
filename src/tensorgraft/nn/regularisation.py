"""Layers that behave otherwise in training."""

from __future__ import annotations

import tensorgraft.array_api as xp
from tensorgraft import random
from tensorgraft.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.transforms.module import Module


class Dropout(Module):
    """Zero with probability p, else x / (1 - p) (Srivastava et al. 2014); x itself where `inference` holds.

    `tree_inference` switches it in a whole model. Raises RuntimeError in training without a key.
    """

    p: float = 0.5
    inference: bool = False

    def __call__(self, x: Array, *, key: Array | None = None, inference: bool | None = None) -> Array:
        if (self.inference if inference is None else inference) or self.p == 0:
            return x
        if key is None:
            raise RuntimeError(
                "Dropout requires a key in training: call dropout(x, key=key), or switch it off with"
                " tree_inference(model, True)"
            )
        keep_rate = 1 - self.p
        uniform = random.uniform(key, x.shape, dtypes.accumulator(dtypes.real_dtype(x.dtype)))
        return xp.where(uniform < keep_rate, x / keep_rate, xp.zeros_like(x))
