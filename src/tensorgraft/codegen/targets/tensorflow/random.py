"""Random numbers in TensorFlow."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tensorgraft.codegen.targets import Rule
from tensorgraft.codegen.targets.tensorflow.common import unless_float32


def _uniform(name: str) -> Callable[..., ast.expr]:
    return lambda w, key, shape, dtype: w.fill(
        f"tf.random.stateless_{name}(shape, seed=key, dtype=dtype)", key=key, shape=tuple(shape),
        dtype=unless_float32(dtype))  # fmt: skip


RULES: dict[str, Rule] = {
    "fold_in": "tf.random.fold_in(key, tf.cast(low, key.dtype))",
    "uniform": _uniform("uniform"),
    "normal": _uniform("normal"),
    "randint": "tf.random.stateless_uniform(shape, seed=key, minval=low, maxval=high, dtype=dtype)",
    "permutation": "tf.random.experimental.stateless_shuffle(tf.range(n, dtype=tf.int64), seed=key)",
    "exponential": lambda w, key, shape, dtype: w.fill("-tf.math.log1p(-u)", u=_uniform("uniform")(
        w, key=key, shape=shape, dtype=dtype)),
    "split_key": "tuple(tf.unstack(tf.random.split(key)))",
}  # fmt: skip
