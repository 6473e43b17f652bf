"""Functions that TensorFlow has traced: once by TensorFlow itself, and then on backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tests.frontends.tensorflow.common import difference, native, on_host

import tensorgraft as tg

ROUNDING = 4e-6  # what sums of terms of its size leave behind


def differs(got: np.ndarray, want: np.ndarray, rounding: float) -> str:
    said = difference(got, want)
    if not said or (got.dtype, got.shape) != (want.dtype, want.shape) or want.dtype != np.float32:
        return said
    off = np.abs(got - want).max()
    return said if not off <= rounding * np.abs(want).max() else ""


def check(
    concrete: Any, arguments: Sequence[np.ndarray], backends: Sequence[str], calls: int = 2, rounding: float = ROUNDING
) -> dict[str, str]:
    """What is wrong, by backend, of a function that TensorFlow has traced, and of its variables. `rounding`: by how
    much of an array's largest element any of them may be off."""
    variables = list(concrete.graph.variables)
    before = [v.numpy() for v in variables]
    want = []
    for _ in range(calls):
        results = [x.numpy() for x in tf.nest.flatten(concrete(*map(tf.constant, arguments)))]
        want.append((results, [v.numpy() for v in variables]))
    wrong = {}
    for backend in backends:
        for v, x in zip(variables, before, strict=True):
            v.assign(x)
        grafted = tg.graft(concrete, onto=backend)
        for k, (results, held) in enumerate(want):
            with np.errstate(all="ignore"):
                got = tf.nest.flatten(grafted(*(native(backend, x) for x in arguments)))
            pairs = [(f"result {i}", on_host(backend, g), w) for i, (g, w) in enumerate(zip(got, results, strict=True))]
            pairs += [(v.name, v.numpy(), w) for v, w in zip(variables, held, strict=True)]
            wrong |= {f"{backend}, call {k}, {name}": said for name, g, w in pairs if (said := differs(g, w, rounding))}
    return wrong
