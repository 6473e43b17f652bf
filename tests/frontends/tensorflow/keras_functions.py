"""The functions of `keras.ops`: found by introspection, each with the first arguments of a list that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tests.frontends.tensorflow.keras_cases import differentiated, normal, uniform, whole

_SQUARE = normal(4, 4) @ normal(4, 4).T + 4 * np.eye(4, dtype=np.float32)
_IMAGE, _ROW = normal(2, 8, 8, 3), normal(3)
ARGUMENTS: list[tuple[Any, ...]] = [
    (uniform(3, 4),),
    (uniform(3, 4), uniform(3, 4, seed=1)),
    (_SQUARE,),
    (_SQUARE, normal(4, 2)),
    (whole(5, 3, 4),),
    (whole(5, 3, 4) + 1, whole(5, 3, 4, seed=1) + 1),
    ([uniform(3, 4), uniform(3, 4, seed=2)],),
    (_ROW, normal(3, seed=1)),
    (normal(2, 8, 3), normal(2, 3, 4)),
    (uniform(3, 4), 1),
    (uniform(3, 4), 2, 0),
    (uniform(3, 4), (4, 3)),
    (uniform(3, 4), 0, 1),
    (_IMAGE, (5, 5)),
    (_IMAGE, 2),
    ((3, 4),),
    ((normal(3, 4), normal(3, 4, seed=1)),),
    (3,),
    ("ij,jk->ik", normal(2, 3), normal(3, 4)),
    (normal(3, 4), "float16"),
    (normal(2, 5, 2, 3), normal(2, 5, 2, 3, seed=1), normal(2, 5, 2, 3, seed=2)),
    (normal(2, 40), 16, 8, 16),
    (whole(4, 6), np.eye(4, dtype=np.float32)[whole(4, 6)] * 0.8 + 0.05),
    (uniform(6, 4), np.sort(whole(3, 6)), 3),
    (np.asarray([[0], [2]], np.int32), normal(2, 4), (5, 4)),
    (normal(5, 4), np.asarray([[0], [2]], np.int32), normal(2, 4)),
    (normal(4, 5), (1, 2), (2, 3)),
    (normal(4, 5), np.asarray([1, 2], np.int32), normal(2, 2)),
    (normal(5, 4), normal(4), uniform(4), -1),
    (1 + whole(3, 2, 3), normal(2, 7, 5), np.asarray([3, 2], np.int32), np.asarray([7, 6], np.int32)),
    (normal(2, 8, 8, 4), 2),
    (_IMAGE, normal(3, 3, 3, 1), normal(1, 1, 3, 4)),
    ([uniform(3, 4) > 0.5, uniform(3, 4) > 0.3], [uniform(3, 4), uniform(3, 4, seed=1)], 0.0),
    (3, 2.0),
    (normal(2, 3), "a b -> b a"),
    (uniform(3, 4) * 9, (3, 4)),
]
# what takes functions, or computes on shapes and settings
APART = {
    "associative_scan", "cond", "convert_to_numpy", "custom_gradient", "dtype", "fori_loop", "is_tensor", "jvp", "map",
    "ndim", "scan", "shape", "switch", "vectorize", "vectorized_map", "while_loop",
}  # fmt: skip
# of these the backends' libraries choose other signs and phases of vectors
UNDETERMINED = {"eig", "eigh", "svd"}


def functions() -> dict[str, Callable[..., Any]]:
    found = dict(inspect.getmembers(keras.ops, inspect.isfunction))
    return {name: fn for name, fn in found.items() if name not in APART | UNDETERMINED}


def traced(fn: Callable[..., Any]) -> tuple[Any, Sequence[np.ndarray]] | None:
    """The function of arguments that it takes, and its gradients, traced; None where it takes none of the list."""
    for arguments in ARGUMENTS:
        arrays = [x for x in tf.nest.flatten(arguments) if isinstance(x, np.ndarray)]
        try:
            program = tf.function(_program(fn, arguments), autograph=False)
            concrete = program.get_concrete_function(*[tf.TensorSpec(x.shape, x.dtype) for x in arrays])
            concrete(*map(tf.constant, arrays))
        except Exception:  # Keras says in many ways that a function does not take an argument
            continue
        return concrete, arrays
    return None


def _program(fn: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    def program(*given: Any) -> list[Any]:
        def call(flat: Sequence[Any]) -> Any:
            remaining = iter(flat)
            return fn(*tf.nest.map_structure(lambda x: next(remaining) if isinstance(x, np.ndarray) else x, arguments))

        return differentiated(call, given, [])

    return program
