"""What statements are drawn from: the live tensors, variables, layers, optimizers and generators of a program."""

from __future__ import annotations

import random
from typing import Any

import jax
import keras
import numpy as np
from tests.fuzz.kinds.array_api import Retry
from tests.fuzz.kinds.jax import Drawing as JaxDrawing

import tensorflow as tf

SHAPES = [(), (2,), (3,), (3,), (2, 3), (2, 3), (3, 3), (3, 2), (1, 3), (2, 2, 3), (4,), (0,), (2, 0)]
DTYPES = ["float32"] * 8 + ["float64"] * 2 + ["int32"] * 3 + ["int64", "bool", "uint8", "int8", "complex64"]
SELDOM = ["float16", "bfloat16", "int16", "uint16", "uint32", "uint64", "complex128"]


class Drawing(JaxDrawing):
    def __init__(self, rng: random.Random, names: dict[str, Any]) -> None:
        super().__init__(rng, {})
        self.names = names
        for n, x in names.items():
            if n[0] in "vs" and n[1:].isdigit() and isinstance(x, tf.Tensor | tf.Variable):
                self.arrays[n] = jax.ShapeDtypeStruct(tuple(x.shape), x.dtype.as_numpy_dtype)
        taken = [int(n[1:]) for n in names if n[0] in "vs" and n[1:].isdigit()]
        self.next = max(taken, default=-1) + 1
        self.layers = {n: x for n, x in names.items() if isinstance(x, keras.Layer)}
        self.optimizers = {n: x for n, x in names.items() if isinstance(x, keras.optimizers.Optimizer)}
        self.generators = [n for n, x in names.items() if isinstance(x, tf.random.Generator)]

    def some(self, items: Any) -> Any:
        if not items:
            raise Retry
        return self.rng.choice([*items])

    def index(self, x: Any) -> str:
        """Some of its axes: integers, slices beyond its ends and backwards, new axes, an ellipsis."""
        said = []
        for n in x.shape[: self.rng.randint(0, len(x.shape))]:
            if n and self.maybe(0.3):
                i = self.rng.randrange(-n, n)
                said.append(self.one(f"{i}", f"{i}", f"tf.constant({i})"))
                continue
            a, b = self.one("", self.rng.randint(-n - 1, n + 1)), self.one("", self.rng.randint(-n - 1, n + 1))
            said.append(f"{a}:{b}{self.one('', '', ':2', ':-1', ':-2', ':3')}")
        places = len(said)
        if self.maybe(0.3):
            said.insert(self.rng.randint(0, places), "tf.newaxis")
        if self.maybe(0.3) and places < len(x.shape):
            said.append("...")
        return ", ".join(said) or "..."

    def new(self, dtype: str | None = None, shape: tuple[int, ...] | None = None) -> str:
        dtype = dtype or self.rng.choice(SELDOM if self.maybe(0.06) else DTYPES)
        return f'data("{dtype}", {self.rng.choice(SHAPES) if shape is None else shape}, {self.rng.randrange(10**5)})'


def fits(x: Any, y: Any) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(x.shape, y.shape))) <= 100
    except ValueError:
        return False
