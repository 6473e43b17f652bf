"""Random operations whose state is theirs to say: TensorFlow's own bits, for the same seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule, without_rule
from tensorgraft.frontends.tensorflow.rules import philox
from tensorgraft.frontends.tensorflow.rules.shape import ints
from tensorgraft.frontends.tensorflow.values import VariableCell
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Array = Any
Draw = Callable[[Backend, Array, Array, tuple[int, ...], np.dtype], Array]
_ALGORITHMS = (1, 3)  # Philox, and what is Philox on the CPU


def _check(algorithm: np.ndarray) -> None:
    if int(algorithm) not in _ALGORITHMS:
        raise NotImplementedError(f"random numbers of TensorFlow's algorithm {int(algorithm)}: use Philox")


@rule("StatelessRandomGetKeyCounter", folds=False)
def get_key_counter(xp: Backend, seed: Array) -> list[Array]:
    return list(philox.key_and_counter(xp, seed))


@rule("StatelessRandomGetKeyCounterAlg", folds=False)
def get_key_counter_algorithm(xp: Backend, seed: Array) -> list[Any]:
    return [*philox.key_and_counter(xp, seed), np.asarray(1, np.int32)]


@rule("StatelessRandomGetAlg", folds=False)
def get_algorithm(xp: Backend) -> np.ndarray:
    return np.asarray(1, np.int32)


def _drawn(draw: Draw) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def from_key(
        xp: Backend, shape: np.ndarray, key: Array, counter: Array, algorithm: np.ndarray, *, dtype: np.dtype
    ) -> Array:
        _check(algorithm)
        return draw(xp, key, counter, ints(shape), dtype)

    def from_seed(xp: Backend, shape: np.ndarray, seed: Array, *, dtype: np.dtype) -> Array:
        return draw(xp, *philox.key_and_counter(xp, seed), ints(shape), dtype)

    return from_key, from_seed


_DRAWS: dict[str, Draw] = {
    "StatelessRandomUniform": philox.uniform,
    "StatelessRandomNormal": philox.normal,
    "StatelessTruncatedNormal": philox.truncated_normal,
    "StatelessRandomUniformFullInt": philox.integers,
}
for _name, _draw in _DRAWS.items():
    _from_key, _from_seed = _drawn(_draw)
    rule(f"{_name}V2", known=("shape", "algorithm"), folds=False)(_from_key)
    rule(_name, known=("shape",), folds=False)(_from_seed)


def _between(xp: Backend, key: Array, counter: Array, shape: tuple[int, ...], low: Array, high: Array) -> Array:
    """By the remainder of as many random bits as the dtype has."""
    dtype = xp.dtype_of(low)
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    span = xp.astype(xp.subtract(high, low), unsigned)
    rest = xp.fmod(philox.integers(xp, key, counter, shape, unsigned), span)
    return xp.add(low, xp.astype(rest, dtype))


@rule("StatelessRandomUniformIntV2", known=("shape", "algorithm"), folds=False)
def uniform_int_v2(
    xp: Backend, shape: np.ndarray, key: Array, counter: Array, algorithm: np.ndarray, low: Array, high: Array
) -> Array:
    _check(algorithm)
    return _between(xp, key, counter, ints(shape), low, high)


@rule("StatelessRandomUniformInt", known=("shape",), folds=False)
def uniform_int(xp: Backend, shape: np.ndarray, seed: Array, low: Array, high: Array) -> Array:
    return _between(xp, *philox.key_and_counter(xp, seed), ints(shape), low, high)


@rule("RngReadAndSkip", known=("algorithm",), writes=True)
def read_and_skip(xp: Backend, cell: VariableCell, algorithm: np.ndarray, delta: Array) -> Array:
    """The state (two numbers of the counter, and the key) as it was; 256 numbers further for each of `delta`."""
    _check(algorithm)
    state = cell.value
    bits = xp.astype(state, dtypes.uint64)
    by = xp.multiply(xp.reshape(xp.astype(delta, dtypes.uint64), ()), xp.full((), 256, dtypes.uint64))
    low, high = philox.skipped(xp, xp.take_slice(bits, 0, 0, 2), by)
    counter = xp.stack([xp.reshape(low, ()), xp.reshape(high, ())], axis=0)
    cell.value = xp.astype(xp.concat([counter, xp.take_slice(bits, 0, 2, xp.shape(bits)[0])], axis=0), dtypes.int64)
    return state


without_rule(
    "its state is hidden in TensorFlow's kernel: draw with tf.random.Generator or tf.random.stateless_uniform, whose"
    " state the program has",
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal", "RandomShuffle"),
    *("RandomGamma", "RandomPoissonV2", "Multinomial", "ParameterizedTruncatedNormal"),
)
