"""Connectionist temporal classification (Graves et al., ICML 2006): the loss, whose derivative TensorFlow computes with
it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import FailedCheckError
from tensorgraft.frontends.tensorflow.values import lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import Value, ValueBackend, with_operators


@rule("CTCLoss", either=(1, 2, 3))
def ctc_loss(
    xp: Backend, logits: Array, indices: Any, labels: Any, lengths: Any, *, preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True, ignore_longer_outputs_than_inputs: bool = False,
) -> list[Array]:  # fmt: skip
    """Return (loss of each of a batch, derivative in the logits). The last class is the blank. Labels and lengths that
    are being traced are not checked."""
    steps, batch, classes = xp.shape(logits)
    values = [lifted(xp, x) for x in (indices, labels, lengths)]
    rows, label_counts = _rows(xp, values[0], values[1], batch, classes, preprocess_collapse_repeated)
    ends = xp.astype(values[2], dtypes.int64)
    if not any(map(xp.is_traced, values)):
        _check(xp, label_counts, ends, steps, ignore_longer_outputs_than_inputs)
    skipped = xp.equal(ends, 0)
    if ignore_longer_outputs_than_inputs:
        skipped = xp.logical_or(skipped, xp.greater(label_counts, ends))
    most = xp.max(logits, axis=2, keepdims=True)
    y = xp.exp(xp.subtract(logits, most))
    y = xp.divide(y, xp.sum(y, axis=2, keepdims=True))
    lattice = _Lattice(xp, y, rows, classes - 1, ctc_merge_repeated)
    alpha, beta = lattice.forward(), lattice.backward(ends)
    paths = xp.add(alpha, beta)
    total = _log_sum(xp, xp.unstack(xp.squeeze(xp.take_slice(paths, 0, 0, 1), 0), 1))
    is_impossible = xp.equal(total, -math.inf)  # no path has a probability above 0
    share = xp.exp(xp.subtract(paths, xp.reshape(xp.where(is_impossible, xp.zeros_like(total), total), (1, batch, 1))))
    expected = xp.matmul(xp.permute_dims(share, (1, 0, 2)), xp.one_hot(lattice.labels, classes, xp.dtype_of(logits)))
    gradient = xp.subtract(y, xp.permute_dims(expected, (1, 0, 2)))
    is_within = xp.less(xp.reshape(xp.iota(steps, dtypes.int64), (steps, 1)), xp.reshape(ends, (1, batch)))
    is_within = xp.logical_and(is_within, xp.logical_not(xp.reshape(skipped, (1, batch))))
    gradient = xp.where(xp.expand_dims(is_within, 2), gradient, xp.zeros_like(gradient))
    return [xp.where(skipped, xp.zeros_like(total), xp.negative(total)), gradient]


def _check(xp: Backend, label_counts: Array, ends: Array, steps: int, ignores: bool) -> None:
    for b, (n, end) in enumerate(zip(xp.to_numpy(label_counts).tolist(), xp.to_numpy(ends).tolist(), strict=True)):
        if not 0 <= end <= steps:
            raise FailedCheckError(f"seq_len({b}) {'< 0' if end < 0 else '> num_time_steps'}")
        if not n:
            raise FailedCheckError(f"Labels length is zero in batch {b}")
        if n > end and not ignores:
            raise FailedCheckError(
                f"Not enough time for target transition sequence (required: {n}, available: {end}){b}You can turn this"
                " error into a warning by using the flag ignore_longer_outputs_than_inputs"
            )


@with_operators
def _rows(
    xp: ValueBackend, positions: Value, labels: Value, batch: int, classes: int, collapses: bool
) -> tuple[Value, Value]:
    """Return (labels in rows of equal length, padded with -1; the number of labels in each). Labels that are no class
    are left out, and repeated ones if they collapse."""
    row, column = (xp.astype(x, dtypes.int64) for x in xp.unstack(positions, 1))
    count = xp.size(labels)
    width = count if xp.is_traced(positions) or not count else int(xp.to_numpy(xp.max(column))) + 1
    targets = xp.scatter(xp.full((batch, width), -1, dtypes.int64), (row, column), xp.astype(labels, dtypes.int64))
    label_counts = xp.sum(xp.astype(targets >= 0, dtypes.int64), axis=1)
    is_class = (targets >= 0) & (targets < classes - 1)
    if collapses and width > 1:
        before = xp.concat([xp.full((batch, 1), -1, dtypes.int64), xp.take_slice(targets, 1, 0, width - 1)], axis=1)
        is_class = is_class & (targets != before)
    at = xp.cumsum(xp.astype(is_class, dtypes.int64), axis=1) - 1
    at = xp.where(is_class, at, xp.full_like(at, width))  # write those that are left out after the end
    row_index = xp.broadcast_to(xp.expand_dims(xp.iota(batch, dtypes.int64), 1), (batch, width))
    packed = xp.scatter(xp.full((batch, width + 1), -1, dtypes.int64), (row_index, at), xp.where(is_class, targets, -1))
    return xp.take_slice(packed, 1, 0, width), label_counts


class _Lattice:
    """Labels with a blank before each and after the last, and their log probabilities at each step."""

    def __init__(self, xp: Backend, y: Array, rows: Array, blank: int, merges: bool) -> None:
        self.xp = xp
        batch, row_width = xp.shape(rows)
        self.width = 2 * row_width + 1
        blanks = xp.full_like(rows, blank)
        pairs = xp.stack([blanks, xp.where(xp.less(rows, 0), blanks, rows)], axis=2)
        labels = xp.reshape(pairs, (batch, 2 * row_width))
        self.labels = xp.concat([labels, xp.full((batch, 1), blank, dtypes.int64)], axis=1)
        self.last = xp.multiply(xp.sum(xp.astype(xp.greater_equal(rows, 0), dtypes.int64), axis=1), 2)
        steps = xp.shape(y)[0]
        label_index = xp.broadcast_to(xp.expand_dims(self.labels, 0), (steps, batch, self.width))
        self.logs = xp.log(xp.take_along_axis(y, label_index, 2))
        is_blank = xp.equal(self.labels, blank)
        self.stays = xp.logical_or(is_blank, xp.full(xp.shape(is_blank), merges, dtypes.bool_))
        skips = xp.logical_not(is_blank)
        if merges:
            skips = xp.logical_and(skips, xp.not_equal(self.labels, self._moved(self.labels, 2, blank)))
        self.skips = xp.logical_and(skips, xp.asarray(np.arange(self.width) > 1))

    def _moved(self, x: Array, by: int, fill: float) -> Array:
        """Along the labels, to the right or (negative) to the left."""
        xp, n = self.xp, self.width
        part = xp.take_slice(x, 1, 0, n - by) if by > 0 else xp.take_slice(x, 1, -by, n)
        filler = xp.full((xp.shape(x)[0], min(abs(by), n)), fill, xp.dtype_of(x))
        return xp.concat([filler, part] if by > 0 else [part, filler], axis=1)

    def _where(self, condition: Array, x: Array) -> Array:
        return self.xp.where(condition, x, self.xp.full_like(x, -math.inf))

    def forward(self) -> Array:
        xp = self.xp
        first, rest = xp.split(self.logs, [1, xp.shape(self.logs)[0] - 1], 0)
        first = self._where(xp.asarray(np.arange(self.width)[None] < 2), xp.squeeze(first, 0))

        def step(alpha: Array, log: Array) -> tuple[Array, Array]:
            by_one, two = (self._moved(alpha, n, -math.inf) for n in (1, 2))
            terms = [self._where(self.stays, alpha), by_one, self._where(self.skips, two)]
            alpha = xp.add(log, _log_sum(xp, terms))
            return alpha, alpha

        _, rows = xp.scan(step, first, rest, length=xp.shape(rest)[0])
        return xp.concat([xp.expand_dims(first, 0), rows], axis=0)

    def backward(self, ends: Array) -> Array:
        xp = self.xp
        steps, batch, width = xp.shape(self.logs)
        at, last = xp.asarray(np.arange(width)[None]), xp.expand_dims(self.last, 1)
        final = xp.logical_and(xp.less_equal(at, last), xp.greater_equal(at, xp.subtract(last, 1)))
        ending = self._where(final, xp.zeros((batch, width), xp.dtype_of(self.logs)))
        impossible = xp.full_like(ending, -math.inf)
        skips_ahead = xp.logical_and(self._moved(self.skips, -2, False), xp.asarray(np.arange(width) + 2 < width))
        next_logs = xp.concat([xp.take_slice(self.logs, 0, 1, steps), xp.take_slice(self.logs, 0, 0, 1)], axis=0)

        def step(beta: Array, row: Any) -> tuple[Array, Array]:
            t, log = row
            scores = xp.add(beta, log)
            by_one, two = (self._moved(scores, -n, -math.inf) for n in (1, 2))
            before = _log_sum(xp, [self._where(self.stays, scores), by_one, self._where(skips_ahead, two)])
            left = xp.expand_dims(xp.subtract(xp.subtract(ends, 1), t), 1)
            beta = xp.where(xp.equal(left, 0), ending, xp.where(xp.greater(left, 0), before, impossible))
            return beta, beta

        numbers = xp.iota(steps, dtypes.int64)
        return xp.scan(step, impossible, (numbers, next_logs), length=steps, reverse=True)[1]


def _log_sum(xp: Backend, terms: list[Array]) -> Array:
    """Compute log(sum(exp)) of arrays, which may be of -inf."""
    most = terms[0]
    for x in terms[1:]:
        most = xp.maximum(most, x)
    base = xp.where(xp.equal(most, -math.inf), xp.zeros_like(most), most)
    total = xp.exp(xp.subtract(terms[0], base))
    for x in terms[1:]:
        total = xp.add(total, xp.exp(xp.subtract(x, base)))
    return xp.add(xp.log(total), base)
