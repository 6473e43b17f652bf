"""The problem of an estimator: products with the operator, which are counted, and random columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft import array_api as xp
from tensorgraft import random
from tensorgraft.frontends.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.estimators import samplers


class Problem:
    """A square operator (n, n), and where random columns come from: a sampler and a key, or a given test matrix."""

    def __init__(
        self,
        operator: LinearOperator,
        seed: Any = 0,
        sampler: str = "rademacher",
        test_matrix: Array | None = None,
        flip: bool = False,
    ) -> None:
        self.operator = operator
        self.n = operator.in_size
        self.dtype: np.dtype = operator.dtype
        self.hermitian = "hermitian" in operator.tags
        self.sampler = sampler
        self.products = 0
        self.given = test_matrix
        self.flip = flip  # it is the operator times -1
        self._seed = seed
        self._used = 0  # columns of the test matrix
        self._blocks = 0

    def times(self, x: Array) -> Array:
        """Return the operator times a matrix (n, j)."""
        self.products += x.shape[1]
        y = self.operator.mm_flat(x)
        return -y if self.flip else y

    def adjoint_times(self, x: Array) -> Array:
        """Return the operator's adjoint times a matrix (n, j)."""
        self.products += x.shape[1]
        return self.operator.H.mm_flat(x)

    def draw(self, *counts: int) -> tuple[Array, ...]:
        """Return the next columns, matrices (n, count)."""
        if self.given is not None:
            draws = []
            for count in counts:
                start, self._used = self._used, self._used + count
                draws.append(self.given if count == self.given.shape[1] else self.given[:, start : self._used])
            return tuple(draws)
        key = key_of(self._seed, self.operator.device)
        if self._blocks:
            key = random.fold_in(key, self._blocks)
        self._blocks += 1
        return samplers.draw(key, sampler=self.sampler, n=self.n, counts=counts, dtype=self.dtype)

    @property
    def real_dtype(self) -> np.dtype:
        return dtypes.real_dtype(self.dtype)

    def nothing(self, columns: int = 0) -> Array:
        return xp.zeros((self.n, columns), dtype=self.dtype, device=self.operator.device)


def key_of(seed: Any, device: Any) -> Array:
    """Return the key of a seed: an int, a 0-d integer array, or a key itself."""
    if isinstance(seed, Array) and seed.shape == (2,):
        return seed.to_device(device)
    return random.key(seed, device)
