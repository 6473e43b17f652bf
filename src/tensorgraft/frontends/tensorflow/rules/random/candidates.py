"""Candidates: classes that are drawn for a loss of few of them (`tf.nn.sampled_softmax_loss`, `tf.nn.nce_loss`), one
after the other, on the host, with TensorFlow's bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.graph import GraphNode
from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.flow.hosted import by_host
from tensorgraft.frontends.tensorflow.rules.random.seeded import reserve_numbers
from tensorgraft.frontends.tensorflow.rules.random.stream import WordStream
from tensorgraft.frontends.tensorflow.values import VariableCell
from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# (draws one, how probable classes are)
Sampler = tuple[Callable[[WordStream], int], Callable[[np.ndarray], np.ndarray]]


def _uniform(n: int) -> Sampler:
    share = np.float32(1.0 / n)
    return lambda stream: stream.below(n, 64), lambda classes: np.full(classes.shape, share)


def _log_uniform(n: int) -> Sampler:
    span = math.log1p(n)

    def probable(classes: np.ndarray) -> np.ndarray:
        return (np.log((classes + 2.0) / (classes + 1.0)) / span).astype(np.float32)

    return lambda stream: (int(math.exp(stream.double() * span)) - 1) % n, probable


def _by_weights(weights: np.ndarray) -> Sampler:
    """Sample by Walker's alias method: a share of each class's place is its own, and the rest another one's."""
    n, total = len(weights), float(np.sum(weights, dtype=np.float64))
    parts = [float(w) * n / total for w in weights]
    other = [-1] * n
    low = [i for i, p in enumerate(parts) if p < 1.0]
    high = [i for i, p in enumerate(parts) if p >= 1.0]
    while high and low:
        under, over = low.pop(), high.pop()
        other[under] = over
        parts[over] -= 1.0 - parts[under]
        (low if parts[over] < 1.0 else high).append(over)
    for i in (*high, *low):
        parts[i], other[i] = 1.0, i
    aliases_share = np.asarray(parts, np.float32)

    def draw(stream: WordStream) -> int:
        share, at = stream.number(), stream.below(n)
        return at if share < aliases_share[at] else other[at]

    sums = np.float32(0)
    for w in weights:
        sums += w
    return draw, lambda classes: (weights[classes] / sums).astype(np.float32)


def _expected(share: np.ndarray, count: int, tries: int) -> np.ndarray:
    """Return the expected number of times that classes are among `count` that took `tries` draws to find."""
    if tries == count:
        return share * np.float32(count)
    return -np.expm1(np.float32(tries) * np.log1p(-share))


def _candidates(
    xp: Backend, node: GraphNode, sampler: Sampler, classes: Any, cell: VariableCell, count: int, unique: bool, n: int
) -> list[Array]:
    """Return (candidates, how often the true classes are expected among them, how often they themselves)."""
    if unique and count > n:
        raise ValueError(f"{node.op}: {count} unique classes cannot be sampled from {n}")
    draw, probable = sampler

    def on_arrays(true_classes: np.ndarray, key: np.ndarray, counter: np.ndarray) -> list[np.ndarray]:
        if true_classes.size and not 0 <= true_classes.min() <= true_classes.max() < n:
            raise ValueError(f"{node.op}: true classes are out of range [0, {n})")
        stream, tries = WordStream(key, counter), 0
        distinct: dict[int, None] = {}
        draws: list[int] = []
        while len(distinct if unique else draws) < count:
            tries += 1
            value = draw(stream)
            distinct[value] = None
            draws.append(value)
        candidates = np.asarray(list(distinct) if unique else draws, np.int64)
        shares = [_expected(probable(x), count, tries).astype(np.float32) for x in (true_classes, candidates)]
        return [candidates, *shares]

    key, counter = reserve_numbers(xp, cell, (2048 * count + 3) // 4)
    shape = tuple(classes.shape)
    specs = [
        ShapeDtype((count,), dtypes.int64),
        ShapeDtype(shape, dtypes.float32),
        ShapeDtype((count,), dtypes.float32),
    ]
    return by_host(xp, node, on_arrays, (classes, key, counter), specs)


def _declare(name: str, make: Callable[[int], Sampler]) -> None:
    @rule(name, either=(0,), writes=True)
    def draw(
        xp: Backend,
        classes: Any,
        cell: VariableCell,
        *,
        num_sampled: int,
        unique: bool,
        range_max: int,
        node: GraphNode,
    ) -> list[Array]:
        return _candidates(xp, node, make(range_max), classes, cell, num_sampled, unique, range_max)


_declare("UniformCandidateSampler", _uniform)
_declare("LogUniformCandidateSampler", _log_uniform)


@rule("FixedUnigramCandidateSampler", either=(0,), writes=True)
def fixed_unigram(
    xp: Backend, classes: Any, cell: VariableCell, *, num_sampled: int, unique: bool, range_max: int,
    vocab_file: str = "", distortion: float = 1.0, num_reserved_ids: int = 0, num_shards: int = 1, shard: int = 0,
    unigrams: tuple[float, ...] = (), node: GraphNode,
) -> list[Array]:  # fmt: skip
    if vocab_file:
        with open(vocab_file) as file:
            unigrams = tuple(float(line.rstrip("\n").split(",")[-1]) for line in file if line.strip())
    reserved = [np.float32(0)] * sum(i % num_shards == shard for i in range(num_reserved_ids))
    first = len(reserved)
    own_weights = [w for i, w in enumerate(unigrams, first) if i % num_shards == shard]
    distorted = np.power(np.asarray(own_weights, np.float32), np.float32(distortion))
    weights = np.asarray([*reserved, *distorted], np.float32)
    if len(weights) != range_max:
        raise ValueError(f"{node.op}: range is {range_max} must be equal to weights size {len(weights)}")
    return _candidates(xp, node, _by_weights(weights), classes, cell, num_sampled, unique, range_max)


@rule("AllCandidateSampler", either=(0,), writes=True)
def all_of_them(xp: Backend, classes: Any, cell: VariableCell, *, num_sampled: int) -> list[Array]:
    reserve_numbers(xp, cell, (2048 * num_sampled + 3) // 4)
    shapes = tuple(classes.shape), (num_sampled,)
    return [xp.iota(num_sampled, dtypes.int64), *(xp.ones(shape, dtypes.float32) for shape in shapes)]
