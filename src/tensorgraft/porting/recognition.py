"""Recognition: from the origin of each element of an array to an expression that people read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensorgraft.porting.expressions import (
    Concatenation,
    Constant,
    Expression,
    Negative,
    Sum,
    recognized,
)
from tensorgraft.porting.labels import RANGE

MOST_PARTS = 512


@dataclass
class Origin:
    """The origin of each element of a target's parameter."""

    labels: np.ndarray  # of source elements; -1 for a number, UNKNOWN where the example does not show it
    offset: np.ndarray | None = None
    added: Sequence[tuple[np.ndarray, np.ndarray]] = ()  # (flat positions, labels) of further terms
    negative: np.ndarray | None = None  # bool: elements that have the other sign


class Recognizer:
    """Finds expressions in the source's arrays, whose names and shapes it knows."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        names = list(shapes)
        self._names, self._shapes = names * 2, shapes  # arrays, and the same of the other sign
        self._other_sign = len(names) * RANGE

    def __call__(self, origin: Origin) -> tuple[Expression | None, int]:
        """(the expression, how many elements it gives that the example does not show); None if there is none."""
        labels, extended = self._extended(origin.labels)
        if labels is None:
            return None, 0
        negative = False if origin.negative is None else origin.negative.reshape(labels.shape)
        labels = labels + self._other_sign * (negative & (labels >= 0))
        terms = []
        if (labels >= 0).any():
            first = self._moved(labels)
            if first is None:
                return None, 0
            terms.append(first)
        for more in self._layers(origin, labels.shape):
            term = self._moved(more + self._other_sign * (negative & (more >= 0)))
            if term is None:
                return None, 0
            terms.append(term)
        offset = np.zeros(labels.shape) if origin.offset is None else origin.offset.reshape(labels.shape)
        if offset.any() or not terms:
            number = _numbers(offset)
            if number is None:
                return None, 0
            terms.append(number)
        return (terms[0] if len(terms) == 1 else Sum(tuple(terms))), extended

    def _layers(self, origin: Origin, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        """The further terms, each as an array of labels with -1 where there is none."""
        size = int(np.prod(shape, dtype=int))
        layers: list[np.ndarray] = []
        for positions, labels in origin.added:
            for k in range(len(layers) + 1):
                if k == len(layers):
                    layers.append(np.full(size, -1))
                if (layers[k][positions] < 0).all():
                    layers[k][positions] = labels
                    break
        return (layer.reshape(shape) for layer in layers)

    def _extended(self, labels: np.ndarray) -> tuple[np.ndarray | None, int]:
        """The labels with rows that the example does not show, where the source has a row for each of them."""
        missing = labels < -1
        if not missing.any():
            return labels, 0
        whole = self._reordered(labels, missing)
        if whole is not None:
            return whole, int(missing.sum())
        if labels.ndim == 0:
            return None, 0
        rows = np.flatnonzero(~missing.reshape(len(labels), -1).any(axis=1))
        if len(rows) < 2 or missing.reshape(len(labels), -1).all(axis=1).sum() + len(rows) != len(labels):
            return None, 0
        known = labels[rows].astype(np.int64)
        step = known[1] - known[0]
        if np.ptp(np.diff(rows)) or rows[1] - rows[0] != 1 or len(np.unique(step)) > 1:
            return None, 0
        every = known[0] + (np.arange(len(labels)) - rows[0]).reshape(-1, *(1,) * (labels.ndim - 1)) * step
        name = self._names[int(known.flat[0] // RANGE)]
        within = every % RANGE
        if every.min() < 0 or (every // RANGE != known.flat[0] // RANGE).any():
            return None, 0
        if within.max() >= int(np.prod(self._shapes[name])) or not np.array_equal(every[rows], known):
            return None, 0
        return every, int(missing.sum())

    def _reordered(self, labels: np.ndarray, missing: np.ndarray) -> np.ndarray | None:
        """All elements of one source array with its axes in another order, if those that are known are."""
        names = np.unique(labels[~missing] // RANGE)
        if len(names) != 1 or names[0] < 0 or labels.ndim > 6:
            return None
        shape = self._shapes[self._names[int(names[0])]]
        if len(shape) != labels.ndim or sorted(shape) != sorted(labels.shape):
            return None
        every = int(names[0]) * RANGE + np.arange(labels.size).reshape(shape)
        for order in itertools.permutations(range(labels.ndim)):
            moved = every.transpose(order)
            if moved.shape == labels.shape and np.array_equal(moved[~missing], labels[~missing]):
                return moved
        return None

    def _moved(self, labels: np.ndarray, parts: int = 0) -> Expression | None:
        """An expression of moved elements; -1 are zeros."""
        which = np.where(labels < 0, -1, labels // RANGE)
        if which.size and (which == which.flat[0]).all():
            k = int(which.flat[0])
            if k < 0:
                return Constant(0.0, labels.shape)
            view = recognized(labels % RANGE, self._names[k], tuple(self._shapes[self._names[k]]))
            if view is not None:
                return view if k * RANGE < self._other_sign else Negative(view)
        for axis in range(labels.ndim):
            found = self._along(labels, which, axis, parts)
            if found is not None:
                return found
        return None

    def _along(self, labels: np.ndarray, which: np.ndarray, axis: int, parts: int) -> Expression | None:
        """Pieces along an axis, which may repeat: q, k, v of each head."""
        n = labels.shape[axis]
        cuts = _cuts(labels, which, axis)
        if not 0 < len(cuts) <= MOST_PARTS or parts > 2:
            return None
        edges = [0, *cuts, n]
        lengths = np.diff(edges)
        period = _period(which, axis, edges)
        if period is not None and period < n:
            shape = (*labels.shape[:axis], n // period, period, *labels.shape[axis + 1 :])
            inner = self._along(labels.reshape(shape), which.reshape(shape), axis + 1, parts + 1)
            return None if inner is None else Concatenation((inner,), axis, labels.shape)
        pieces = []
        for start, length in zip(edges, lengths, strict=False):
            piece = self._moved(np.take(labels, range(start, start + length), axis), parts + 1)
            if piece is None:
                return None
            pieces.append(piece)
        return Concatenation(tuple(pieces), axis, labels.shape)


def _cuts(labels: np.ndarray, which: np.ndarray, axis: int) -> list[int]:
    """The places along an axis at which another array begins, or else the first line of positions breaks."""
    moved = np.moveaxis(which, axis, 0).reshape(which.shape[axis], -1)
    cuts = np.flatnonzero((moved[1:] != moved[:-1]).any(axis=1)) + 1
    if cuts.size:
        return [int(c) for c in cuts]
    line = np.moveaxis(labels, axis, 0).reshape(labels.shape[axis], -1)[:, 0]
    steps = np.diff(line)
    if not steps.size:
        return []
    usual = np.bincount(np.unique(steps, return_inverse=True)[1])
    common = np.unique(steps)[np.argmax(usual)]
    return [int(c) + 1 for c in np.flatnonzero(steps != common)]


def _period(which: np.ndarray, axis: int, edges: Sequence[int]) -> int | None:
    """The length after which the arrays repeat along an axis, if it is more than one piece."""
    n = which.shape[axis]
    moved = np.moveaxis(which, axis, 0)
    for k in edges[2:-1]:
        if n % k == 0 and all(np.array_equal(moved[:k], moved[i : i + k]) for i in range(k, n, k)):
            return int(k)
    return None


def _numbers(offset: np.ndarray) -> Expression | None:
    """An array of few numbers, in pieces along one axis."""
    if offset.size and np.ptp(offset) == 0:
        return Constant(float(offset.flat[0]), offset.shape)
    for axis in range(offset.ndim):
        moved = np.moveaxis(offset, axis, 0).reshape(offset.shape[axis], -1)
        cuts = [0, *(np.flatnonzero((moved[1:] != moved[:-1]).any(axis=1)) + 1).tolist(), offset.shape[axis]]
        ranges = list(itertools.pairwise(cuts))
        if len(cuts) > 16 or any(np.ptp(moved[a:b]) for a, b in ranges):
            continue
        shape = offset.shape
        parts = [Constant(float(moved[a, 0]), (*shape[:axis], b - a, *shape[axis + 1 :])) for a, b in ranges]
        return Concatenation(tuple(parts), axis, offset.shape)
    return None
