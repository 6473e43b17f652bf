"""Connectionist temporal classification (Graves et al. 2006), its two recursions as scans over time.

The lengths are inputs of the program: batches of other lengths do not compile again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

Lengths = Sequence[Any] | Array


class Lattice(NamedTuple):
    """N samples, T steps, L = 2 S + 1 states: blank, label, blank, label, ..., blank."""

    states: Any  # int64 (N, L): the class of each state
    emitted: Any  # (T, N, L): log probabilities of these
    skips: Any  # bool (N, L): a state may follow the one two before it
    steps: Any  # int64 (N, 1): how long each input is
    labels: Any  # int64 (N, 1): how long each target is


def _vector(xp: Any, numbers: Any) -> Any:
    if xp.is_array(numbers):
        return xp.reshape(xp.astype(numbers, dtypes.int64), (xp.size(numbers), 1))
    columns = [xp.full((1, 1), n, dtypes.int64) for n in numbers]
    return xp.concat(columns, axis=0) if columns else xp.zeros((0, 1), dtypes.int64)


@with_operators
def _lattice(
    xp: Any, log_probs: Value, targets: Value, input_lengths: Lengths, target_lengths: Lengths, blank: int
) -> Lattice:
    steps, labels = _vector(xp, input_lengths), _vector(xp, target_lengths)
    targets, n = xp.astype(targets, dtypes.int64), log_probs.shape[1]
    s = targets.shape[-1]
    if targets.ndim == 1:  # one after the other: each row gets the targets from its own first on
        first = xp.cumsum(labels, 0) - labels
        at = xp.clip(first + xp.iota(s, dtypes.int64), 0, max(s - 1, 0))
        targets = xp.gather(targets, (at,)) if s else xp.zeros((n, 0), dtypes.int64)
    is_label = xp.iota(s, dtypes.int64) < labels
    targets = xp.where(is_label, targets, xp.full((n, s), blank, dtypes.int64))
    blanks = xp.full((n, s), blank, dtypes.int64)
    states = xp.reshape(xp.stack([blanks, targets], axis=2), (n, 2 * s))
    states = xp.concat([states, xp.full((n, 1), blank, dtypes.int64)], axis=1)
    emitted = xp.take_along_axis(log_probs, xp.broadcast_to(states, (log_probs.shape[0], *states.shape)), 2)
    skips = (states != blank) & (states != _shifted(xp, states, 2, blank))
    return Lattice(states, emitted, skips, steps, labels)


def _shifted(xp: Any, x: AnyArray, by: int, fill: float) -> AnyArray:
    """Return the last axis moved by `by` states, to the left where negative."""
    config = [(0, 0, 0)] * (xp.ndim(x) - 1) + [(by, -by, 0)]
    return xp.pad(x, xp.full((), fill, xp.dtype_of(x)), config)


def _where_minus(xp: Any, condition: AnyArray, x: AnyArray) -> AnyArray:
    return xp.where(condition, x, xp.full_like(x, -math.inf))


def _times(xp: Any, t: int) -> Any:
    return xp.iota(t, dtypes.int64)


def _alphas(xp: Any, of: Lattice) -> Array:
    """Return (T, N, L): the log probability of all beginnings that are in a state at a time; constant after the end."""
    t, n, length = xp.shape(of.emitted)
    first = xp.less(xp.iota(length, dtypes.int64), 2)
    start = _where_minus(xp, first, xp.zeros((n, length), xp.dtype_of(of.emitted)))

    def step(before: Array, x: tuple[Array, Array]) -> tuple[Array, Array]:
        time, emitted = x
        stays = xp.logaddexp(before, _shifted(xp, before, 1, -math.inf))
        moved = xp.logaddexp(stays, _where_minus(xp, of.skips, _shifted(xp, before, 2, -math.inf)))
        new_alpha = xp.add(xp.where(xp.equal(time, 0), start, moved), emitted)
        new_alpha = xp.where(xp.less(time, of.steps), new_alpha, before)
        return new_alpha, new_alpha

    return xp.scan(step, start, (_times(xp, t), of.emitted), length=t)[1]


def _betas(xp: Any, of: Lattice) -> Value:
    """Return (T, N, L): the same of all endings; minus infinity after the end."""
    t, n, length = of.emitted.shape
    at = xp.iota(length, dtypes.int64)
    end = of.labels * 2
    last = (at == end) | (at == end - 1)
    start = _where_minus(xp, last, xp.zeros((n, length), of.emitted.dtype))
    skips = xp.astype(_shifted(xp, xp.astype(of.skips, dtypes.int32), -2, 0), dtypes.bool_)

    def step(next_beta: Value, x: tuple[Value, Value]) -> tuple[Value, Value]:
        time, emitted = x
        stays = xp.logaddexp(next_beta, _shifted(xp, next_beta, -1, -math.inf))
        moved = xp.logaddexp(stays, _where_minus(xp, skips, _shifted(xp, next_beta, -2, -math.inf)))
        left = of.steps - 1
        before = xp.where(time == left, start, moved) + emitted
        before = _where_minus(xp, time <= left, before)
        return before, before

    none = xp.full((n, length), -math.inf, of.emitted.dtype)
    return xp.scan(step, none, (_times(xp, t), of.emitted), length=t, reverse=True)[1]


def _loss_meta(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any, target_lengths: Any, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    t, n = log_probs.shape[:2]
    if isinstance(input_lengths, torch.Tensor):  # whatever their values: some that fit
        first = targets.shape[0] if targets.ndim == 1 else 0
        input_lengths, target_lengths = [0] * input_lengths.numel(), [first, *[0] * (target_lengths.numel() - 1)]
    torch.ops.aten._ctc_loss.default(log_probs, targets, input_lengths, target_lengths, *rest)  # raises PyTorch's error
    return log_probs.new_empty((n,)), log_probs.new_empty((n, t, 2 * targets.shape[-1] + 1))


LENGTHS = ("input_lengths", "target_lengths")


@kernel("_ctc_loss.Tensor", host=LENGTHS, meta=_loss_meta)  # called under tg.jit, where lengths have no values
@kernel("_ctc_loss", dynamic=LENGTHS, meta=_loss_meta)
def _ctc_loss(
    xp: Any,
    log_probs: Array,
    targets: Array,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:
    """Return (the loss of each sample, log alpha (N, T, L))."""
    of = _lattice(xp, log_probs, targets, input_lengths, target_lengths, blank)
    alphas = _alphas(xp, of)
    t, n, _ = xp.shape(alphas)
    end = xp.multiply(of.labels, 2)
    final = xp.squeeze(xp.take_slice(alphas, 0, t - 1, t), 0)
    at_blank = xp.take_along_axis(final, end, 1)
    at_label = xp.take_along_axis(final, xp.maximum(xp.subtract(end, 1), 0), 1)
    at_label = _where_minus(xp, xp.greater(of.labels, 0), at_label)
    loss = xp.negative(xp.logaddexp(at_blank, at_label))
    of_nothing = _where_minus(xp, xp.equal(of.labels, 0), xp.zeros_like(loss))
    loss = xp.where(xp.greater(of.steps, 0), loss, xp.negative(of_nothing))
    return xp.reshape(loss, (n,)), xp.permute_dims(alphas, (1, 0, 2))


def _gradient_meta(grad: torch.Tensor, log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(log_probs)


@kernel("_ctc_loss_backward.Tensor", host=LENGTHS, meta=_gradient_meta)
@kernel("_ctc_loss_backward", dynamic=LENGTHS, meta=_gradient_meta)
@with_operators
def _ctc_loss_backward(
    xp: Any,
    grad: Value,
    log_probs: Value,
    targets: Value,
    input_lengths: Lengths,
    target_lengths: Lengths,
    loss: Value,
    log_alpha: Value,
    blank: int,
    zero_infinity: bool = False,
) -> Value:
    """Return p - (the share of each class at each time): for log probabilities of a log softmax, as PyTorch's."""
    of = _lattice(xp, log_probs, targets, input_lengths, target_lengths, blank)
    alphas, betas = xp.permute_dims(log_alpha, (1, 0, 2)), _betas(xp, of)
    t, n, _ = alphas.shape
    nll = xp.reshape(loss, (n, 1))
    is_possible = (alphas > -math.inf) & (betas > -math.inf)
    share = xp.exp(alphas + betas - of.emitted + nll)
    share = xp.where(is_possible, share, xp.zeros_like(share))
    states = xp.broadcast_to(of.states, share.shape)
    of_classes = xp.put_along_axis(xp.zeros_like(log_probs), states, share, 2, mode="add")
    slope = (xp.exp(log_probs) - of_classes) * xp.reshape(grad, (n, 1))
    in_time = xp.reshape(_times(xp, t), (t, 1, 1)) < of.steps
    if zero_infinity:
        in_time = in_time & (nll < math.inf)
    return xp.where(in_time, slope, xp.zeros_like(slope))
