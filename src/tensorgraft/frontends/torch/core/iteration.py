"""PyTorch's TensorIterator: the order in which an elementwise operator traverses its operands, which determines the
strides of its result (aten/src/ATen/TensorIterator.cpp; its `Note [TensorIterator strides]` describes the strategy)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tensorgraft.storage import Shape, contiguous_strides, is_dense

Tensor = torch.Tensor


def aligned(strides: Shape, own_shape: Shape, shape: Shape) -> Shape | None:
    """Return an operand's strides along the axes of `shape`, to which it is broadcast; None: it is no such operand."""
    missing = len(shape) - len(own_shape)
    if missing < 0 or any(n not in (1, m) for n, m in zip(own_shape, shape[missing:], strict=True)):
        return None
    return (0,) * missing + tuple(
        0 if n == 1 and m != 1 else s for n, m, s in zip(own_shape, shape[missing:], strides, strict=True)
    )


def fastest_first(shape: Shape, operands: Sequence[Shape]) -> list[int]:
    """Return the axes in the order of iteration (`reorder_dimensions`), from the aligned strides of the operands."""

    def slower(a: int, b: int) -> int:
        for strides in operands:
            if strides[a] == 0 or strides[b] == 0:
                continue
            if strides[a] != strides[b]:
                return 1 if strides[a] > strides[b] else -1
            if shape[a] > shape[b]:
                return 1
        return 0

    order = list(reversed(range(len(shape))))
    for i in range(1, len(order)):  # an insertion sort in which some pairs have no order
        at = i
        for before in reversed(range(i)):
            order_of_pair = slower(order[before], order[at])
            if order_of_pair > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif order_of_pair < 0:
                break
    return order


def result_strides(shape: Shape, operands: Sequence[Tensor]) -> Shape | None:
    """Return the strides of a new elementwise result; None where the operands do not broadcast to `shape`."""
    strides = [aligned(t.stride(), tuple(t.shape), shape) for t in operands]
    if not operands or any(s is None for s in strides):
        return None
    if all(t.shape == shape for t in operands):
        if all(t.is_contiguous() for t in operands):
            return contiguous_strides(shape)
        if len(shape) == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in operands):
            return _strides(shape, (1, 3, 2, 0))
        first = operands[0]
        same_strides = all(t.stride() == first.stride() for t in operands)
        if same_strides and is_dense(shape, first.stride()):
            return first.stride()
    order = fastest_first(shape, [s for s in strides if s is not None])
    return contiguous_strides(shape) if order == list(reversed(range(len(shape)))) else _strides(shape, order)


def _strides(shape: Shape, order: Sequence[int]) -> Shape:
    strides, n = [0] * len(shape), 1
    for axis in order:
        strides[axis] = n
        n *= shape[axis]
    return tuple(strides)
