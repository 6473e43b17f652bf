"""Products with a weight, as sums of terms: which element of the operand meets which element of the weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorgraft.porting.nodes import ValueNode

PRODUCTS = ("dot_general", "convolution")


@dataclass
class Rows:
    """Some outputs of a product, those of one row: the same place in the batch and the image, every channel.

    `operand` (channels, terms) has flat positions in the operand, -1 for padding; `weight` flat positions in the weight
    that the operand's elements are multiplied by.
    """

    outputs: np.ndarray  # (channels,): flat positions in the result
    operand: np.ndarray
    weight: np.ndarray


def rows(node: ValueNode) -> Iterator[Rows]:
    """The rows of a product, those in the middle first."""
    yield from (_dot_rows if node.op == "dot_general" else _convolution_rows)(node)


def _dot_rows(node: ValueNode) -> Iterator[Rows]:
    x, w, contract, batch = node.args[:4]
    positions = [np.arange(n.size).reshape(n.shape) for n in (x, w)]
    axes = [[list(batch[i]), _free(n.shape, batch[i], contract[i]), list(contract[i])] for i, n in enumerate((x, w))]
    a, b = (
        np.transpose(p, [*bs, *fs, *cs]).reshape([_size(n.shape, g) for g in (bs, fs, cs)])
        for p, n, (bs, fs, cs) in zip(positions, (x, w), axes, strict=True)
    )  # (batch, free, contracted) each
    out = np.arange(node.size).reshape(a.shape[0], a.shape[1], b.shape[1])
    for row in _from_middle(a.shape[1]):
        operand = np.broadcast_to(a[:, row, None, :], b.shape)
        yield Rows(out[:, row].reshape(-1), operand.reshape(-1, b.shape[2]), b.reshape(-1, b.shape[2]))


def _free(shape: Sequence[int], *taken: Sequence[int]) -> list[int]:
    return [a for a in range(len(shape)) if all(a not in t for t in taken)]


def _size(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[a] for a in axes)


def _from_middle(n: int) -> Iterator[int]:
    yield from sorted(range(n), key=lambda i: abs(i - n // 2))


def _convolution_rows(node: ValueNode) -> Iterator[Rows]:
    x, w, strides, padding, x_dilation, w_dilation, groups = (*node.args, 1)[:7]
    channels, image = x.shape[1], x.shape[2:]
    outputs, per_group, *taps = w.shape
    channel = (np.arange(outputs) // (outputs // groups) * (channels // groups))[:, None] + np.arange(per_group)
    weight = np.arange(w.size).reshape(outputs, -1)
    out = np.arange(node.size).reshape(node.shape)
    places = np.stack(np.meshgrid(*(np.arange(n) for n in node.shape[2:]), indexing="ij"), -1).reshape(-1, len(taps))
    middle = np.array(node.shape[2:]) // 2
    for place in places[np.argsort(np.abs(places - middle).sum(1), kind="stable")]:
        position = np.zeros((), np.int64)
        valid = np.ones((), bool)
        for axis, n in enumerate(image):
            at = place[axis] * strides[axis] + np.arange(taps[axis]) * w_dilation[axis] - padding[axis][0]
            ok = (at >= 0) & (at % x_dilation[axis] == 0) & (at // x_dilation[axis] < n)
            at = np.where(ok, at // x_dilation[axis], 0)
            position = position[..., None] * n + at
            valid = valid[..., None] & ok
        spatial = position.reshape(-1)
        operand = channel[:, :, None] * math.prod(image) + spatial
        operand = np.where(valid.reshape(-1), operand, -1).reshape(outputs, -1)
        yield Rows(out[(0, slice(None), *place)], operand, weight)
