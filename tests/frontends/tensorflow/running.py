"""Runs a sample of a raw operation by TensorFlow, and by its rule on a backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tensorgraft.frontends.tensorflow.program import GraphProgram
from tensorgraft.frontends.tensorflow.reading import read_function
from tensorgraft.hub import registry

# relative and absolute, the latter of the greatest number of a result
CLOSE = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 3e-5, "complex64": 3e-5, "float64": 1e-10, "complex128": 1e-10}


def both(sample: Any, backend: str, compiled: bool = False) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(TensorFlow's results, those of the rule)."""
    flat = sample.flat()

    def program(*given: Any) -> Any:
        arguments = iter(given)
        return sample.call([next(arguments) if argument else tf.constant(x) for x, argument in flat])

    arguments = [x for x, argument in flat if argument]
    specs = [tf.TensorSpec(x.shape, tf.as_dtype(x.dtype)) for x in arguments]
    concrete = tf.function(program, autograph=False).get_concrete_function(*specs)
    wanted = [x.numpy() for x in concrete(*map(tf.constant, arguments))]
    xp = registry.get(backend)
    with xp.native_scope():
        graph = GraphProgram(read_function(concrete.graph), [c.numpy() for c in concrete.captured_inputs], compiled)
        results, _ = graph(xp, [], [xp.asarray(x) for x in arguments])
        found = [xp.to_numpy(x) for x in results]
    return wanted, found


def agree(wanted: list[np.ndarray], found: list[np.ndarray], close: float | None = None) -> None:
    assert len(wanted) == len(found)
    for a, b in zip(wanted, found, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        tolerance = close or CLOSE.get(a.dtype.name, 0)
        if not tolerance:
            np.testing.assert_array_equal(b, a)
            continue
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        size = np.abs(a[np.isfinite(a)]).max(initial=0)
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * size * 0.3)
