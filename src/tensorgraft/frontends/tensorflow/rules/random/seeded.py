"""Random operations whose state is theirs to say: TensorFlow's own bits, for the same seeds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.arrays.shape import ints
from tensorgraft.frontends.tensorflow.rules.random import philox
from tensorgraft.frontends.tensorflow.values import VariableCell
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

Draw = Callable[[Backend, Array, Array, tuple[int, ...], np.dtype], Array]
_ALGORITHMS = (1, 3)  # Philox, and "auto", which is Philox on the CPU


def check_algorithm(algorithm: np.ndarray) -> None:
    if int(algorithm) not in _ALGORITHMS:
        raise NotImplementedError(f"TensorFlow's random number algorithm {int(algorithm)} is not supported: use Philox")


@rule("StatelessRandomGetKeyCounter", folds=False)
def get_key_counter(xp: Backend, seed: Array) -> list[Array]:
    return list(philox.key_and_counter(xp, seed))


@rule("StatelessRandomGetKeyCounterAlg", folds=False)
def get_key_counter_algorithm(xp: Backend, seed: Array) -> list[Any]:
    return [*philox.key_and_counter(xp, seed), np.asarray(1, np.int32)]


@rule("StatelessRandomGetAlg", folds=False)
def get_algorithm(xp: Backend) -> np.ndarray:
    return np.asarray(1, np.int32)


def _random_rule(draw: Draw) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def from_key(
        xp: Backend, shape: np.ndarray, key: Array, counter: Array, algorithm: np.ndarray, *, dtype: np.dtype
    ) -> Array:
        check_algorithm(algorithm)
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
    _from_key, _from_seed = _random_rule(_draw)
    rule(f"{_name}V2", known=("shape", "algorithm"), folds=False)(_from_key)
    rule(_name, known=("shape",), folds=False)(_from_seed)


def _integers_in(xp: Backend, key: Array, counter: Array, shape: tuple[int, ...], low: Array, high: Array) -> Array:
    """Draw integers in [low, high) as remainders of as many random bits as the dtype has."""
    dtype = xp.dtype_of(low)
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    span = xp.astype(xp.subtract(high, low), unsigned)
    rest = xp.fmod(philox.integers(xp, key, counter, shape, unsigned), span)
    return xp.add(low, xp.astype(rest, dtype))


@rule("StatelessRandomUniformIntV2", known=("shape", "algorithm"), folds=False)
def uniform_int_v2(
    xp: Backend, shape: np.ndarray, key: Array, counter: Array, algorithm: np.ndarray, low: Array, high: Array
) -> Array:
    check_algorithm(algorithm)
    return _integers_in(xp, key, counter, ints(shape), low, high)


@rule("StatelessRandomUniformInt", known=("shape",), folds=False)
def uniform_int(xp: Backend, shape: np.ndarray, seed: Array, low: Array, high: Array) -> Array:
    return _integers_in(xp, *philox.key_and_counter(xp, seed), ints(shape), low, high)


# ---- of states that are variables ------------------------------------------------------------------------------------


def _skip(xp: Backend, cell: VariableCell, by: Array) -> Array:
    """Return (the state before: two numbers of the counter, and the key; the state whose counter is `by` greater)."""
    state = cell.value
    bits = xp.astype(state, dtypes.uint64)
    low, high = philox.skipped(xp, xp.take_slice(bits, 0, 0, 2), by)
    counter = xp.stack([xp.reshape(low, ()), xp.reshape(high, ())], axis=0)
    cell.value = xp.astype(xp.concat([counter, xp.take_slice(bits, 0, 2, xp.shape(bits)[0])], axis=0), dtypes.int64)
    return state


@rule("RngReadAndSkip", known=("algorithm",), writes=True)
def read_and_skip(xp: Backend, cell: VariableCell, algorithm: np.ndarray, delta: Array) -> Array:
    """256 numbers further for each of `delta`."""
    check_algorithm(algorithm)
    skip = xp.full((), 256, dtypes.uint64)
    return _skip(xp, cell, xp.multiply(xp.reshape(xp.astype(delta, dtypes.uint64), ()), skip))


@rule("RngSkip", known=("algorithm",), writes=True)
def skip(xp: Backend, cell: VariableCell, algorithm: np.ndarray, delta: Array) -> list[Array]:
    read_and_skip(xp, cell, algorithm, delta)
    return []


def reserve_numbers(xp: Backend, cell: VariableCell, count: int) -> tuple[Array, Array]:
    """Return (key, counter) of a state, from which so many numbers of the counter are taken."""
    bits = xp.astype(_skip(xp, cell, xp.full((), count, dtypes.uint64)), dtypes.uint64)
    return xp.take_slice(bits, 0, 2, 3), xp.take_slice(bits, 0, 0, 2)


RESERVED = 256  # numbers of the counter for each number that is drawn


def _drawn_of_state(draw: Draw) -> tuple[Callable[..., Array], Callable[..., Array]]:
    def unshared(xp: Backend, shape: np.ndarray, cell: VariableCell, *, dtype: np.dtype) -> Array:
        extents = ints(shape)
        return draw(xp, *reserve_numbers(xp, cell, math.prod(extents) * RESERVED), extents, dtype)

    def shared(
        xp: Backend, cell: VariableCell, algorithm: np.ndarray, shape: np.ndarray, *, dtype: np.dtype = dtypes.float32
    ) -> Array:
        check_algorithm(algorithm)
        return unshared(xp, shape, cell, dtype=dtype)

    return unshared, shared


for _names, _draw in [
    (("RandomUniform", "StatefulUniform"), philox.uniform),
    (("RandomStandardNormal", "StatefulStandardNormalV2"), philox.normal),
    (("TruncatedNormal", "StatefulTruncatedNormal"), philox.truncated_normal),
    (("NonDeterministicInts", "StatefulUniformFullInt"), philox.integers),
]:
    _own, _shared = _drawn_of_state(_draw)
    rule(_names[0], known=("shape",), writes=True)(_own)
    rule(_names[1], known=("shape", "algorithm"), writes=True)(_shared)


@rule("RandomUniformInt", known=("shape",), writes=True)
def random_uniform_int(xp: Backend, shape: np.ndarray, low: Array, high: Array, cell: VariableCell) -> Array:
    extents = ints(shape)
    return _integers_in(xp, *reserve_numbers(xp, cell, math.prod(extents) * RESERVED), extents, low, high)


@rule("StatefulUniformInt", known=("shape", "algorithm"), writes=True)
def stateful_uniform_int(
    xp: Backend, cell: VariableCell, algorithm: np.ndarray, shape: np.ndarray, low: Array, high: Array
) -> Array:
    check_algorithm(algorithm)
    return random_uniform_int(xp, shape, low, high, cell)


# ---- permutations ----------------------------------------------------------------------------------------------------


def _permuted(xp: Backend, x: Array, key: Array, counter: Array) -> Array:
    """Return the rows of `x` in a random order: each place is exchanged with itself or a later one (Fisher and
    Yates)."""
    n = xp.shape(x)[0]
    groups = -(-(n - 1) // 4)
    w = xp.reshape(philox.words(xp, key, counter, groups), (4 * groups,))
    left = xp.subtract(xp.full((), n, dtypes.int64), xp.iota(n - 1, dtypes.int64))
    other = xp.add(xp.fmod(xp.astype(xp.take_slice(w, 0, 0, n - 1), dtypes.int64), left), xp.iota(n - 1, dtypes.int64))
    if not xp.is_traced(other):
        order = np.arange(n)
        for i, k in enumerate(xp.to_numpy(other).tolist()):
            order[i], order[k] = order[k], order[i]
        return xp.take(x, xp.asarray(order), 0)

    def exchange(carry: Any, step: Any) -> Any:
        (order,), (i, k) = carry, step
        at = xp.stack([i, k], axis=0)
        return (xp.scatter(order, (at,), xp.take(order, xp.flip(at, (0,)), 0)),), ()

    start = (xp.iota(n, dtypes.int64),)
    (order,), _ = xp.scan(exchange, start, (xp.iota(n - 1, dtypes.int64), other), length=n - 1)
    return xp.take(x, order, 0)


@rule("RandomShuffle", writes=True)
def random_shuffle(xp: Backend, x: Array, cell: VariableCell) -> Array:
    n = xp.shape(x)[0] if xp.ndim(x) else 0
    if n <= 1 or xp.size(x) <= 1:
        return x
    return _permuted(xp, x, *reserve_numbers(xp, cell, (n + 2) // 4))


@rule("StatelessShuffle", known=("algorithm",), folds=False)
def stateless_shuffle(xp: Backend, x: Array, key: Array, counter: Array, algorithm: np.ndarray) -> Array:
    check_algorithm(algorithm)
    if not xp.ndim(x) or xp.shape(x)[0] <= 1 or xp.size(x) <= 1:
        return x
    return _permuted(xp, x, key, counter)
