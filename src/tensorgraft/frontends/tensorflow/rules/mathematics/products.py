"""Products of matrices, and Einstein sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray


@rule("MatMul")
def matmul(xp: Backend, a: Array, b: Array, *, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    return xp.dot_general(a, b, ((0 if transpose_a else 1,), (1 if transpose_b else 0,)))


def adjoint(xp: Any, x: AnyArray) -> AnyArray:
    x = xp.matrix_transpose(x)
    return xp.conj(x) if dtypes.is_complex(xp.dtype_of(x)) else x


@rule("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")
def batch_matmul(
    xp: Backend, a: Array, b: Array, *, adj_x: bool = False, adj_y: bool = False, Tout: np.dtype | None = None
) -> Array:
    a = adjoint(xp, a) if adj_x else a
    b = adjoint(xp, b) if adj_y else b
    if Tout is not None:
        a, b = xp.astype(a, Tout), xp.astype(b, Tout)
    batch = np.broadcast_shapes(xp.shape(a)[:-2], xp.shape(b)[:-2])
    n = len(batch)
    a = xp.broadcast_to(a, (*batch, *xp.shape(a)[-2:]))
    b = xp.broadcast_to(b, (*batch, *xp.shape(b)[-2:]))
    return xp.dot_general(a, b, ((n + 1,), (n,)), (tuple(range(n)), tuple(range(n))))


@rule("Einsum")
def einsum(xp: Backend, *operands: Array, equation: str) -> Array:
    inputs_text, _, output_labels = equation.replace(" ", "").partition("->")
    labels = inputs_text.split(",")
    missing = (
        max(xp.ndim(x) - len(s.replace("...", "")) for s, x in zip(labels, operands, strict=True) if "..." in s)
        if ("..." in inputs_text)
        else 0
    )
    dots = [chr(ord("À") + i) for i in range(missing)]

    def spelt(s: str, n: int) -> list[str]:
        before, has_dots, after_dots = s.partition("...")
        return [*before, *(dots[len(dots) - (n - len(before) - len(after_dots)) :] if has_dots else ()), *after_dots]

    result = spelt(output_labels, len(output_labels.replace("...", "")) + missing)
    parts = [_plain(xp, x, spelt(s, xp.ndim(x))) for s, x in zip(labels, operands, strict=True)]
    x, names = parts[0]
    if len(parts) == 1:
        x, names = _summed(xp, x, names, result)
    for y, other in parts[1:]:
        x, names = _product(xp, x, names, y, other, result)
    distinct = list(dict.fromkeys(result))
    absent = [name for name in distinct if name not in names]  # axes that broadcasting has given extent 1
    x = xp.reshape(x, (*xp.shape(x), *[1] * len(absent)))
    names = [*names, *absent]
    return _with_diagonals(xp, xp.permute_dims(x, tuple(names.index(name) for name in distinct)), result)


def _with_diagonals(xp: Backend, x: Array, names: Sequence[str]) -> Array:
    """Add the axes of labels that come again, as diagonals among zeros."""
    distinct_names = list(dict.fromkeys(names))
    for k, name in enumerate(names):
        if name in names[:k]:
            axis = distinct_names.index(name)
            n = xp.shape(x)[axis]
            column = xp.reshape(x, (*xp.shape(x)[:k], 1, *xp.shape(x)[k:]))
            diagonal = np.eye(n, dtype=bool).reshape([n if i in (axis, k) else 1 for i in range(xp.ndim(column))])
            x = xp.where(xp.asarray(diagonal), column, xp.zeros_like(column))
            distinct_names.insert(k, name + str(k))
    return x


def _plain(xp: Backend, x: Array, names: Sequence[str]) -> tuple[Array, list[str]]:
    """Return the array with each label once: the diagonal of a label that comes twice."""
    names = list(names)
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            first = names.index(name)
            second = names.index(name, first + 1)
            rest = [i for i in range(len(names)) if i not in (first, second)]
            x = xp.diagonal(xp.permute_dims(x, (*rest, first, second)))
            names = [*(names[i] for i in rest), name]
    return x, names


def _summed(xp: Backend, x: Array, names: list[str], kept_labels: Sequence[str]) -> tuple[Array, list[str]]:
    axes = tuple(i for i, name in enumerate(names) if name not in kept_labels)
    return (xp.sum(x, axis=axes) if axes else x), [name for name in names if name in kept_labels]


def _product(
    xp: Backend, x: Array, x_labels: list[str], y: Array, other: list[str], result: Sequence[str]
) -> tuple[Array, list[str]]:
    x, x_labels = _summed(xp, x, x_labels, [*other, *result])
    y, other = _summed(xp, y, other, [*x_labels, *result])
    for name in [n for n in x_labels if n in other]:  # an axis that broadcasts has extent 1 in one operand
        at, y_axis = x_labels.index(name), other.index(name)
        m, n = xp.shape(x)[at], xp.shape(y)[y_axis]
        if m != n and m == 1:
            x, x_labels = xp.squeeze(x, at), [label for label in x_labels if label != name]
        elif m != n:
            y, other = xp.squeeze(y, y_axis), [label for label in other if label != name]
    shared = [name for name in x_labels if name in other]
    batch = [name for name in shared if name in result]
    contracted = [name for name in shared if name not in result]

    def axes_of(names: list[str], labels: list[str]) -> tuple[int, ...]:
        return tuple(names.index(name) for name in labels)

    out = xp.dot_general(
        x,
        y,
        (axes_of(x_labels, contracted), axes_of(other, contracted)),
        (axes_of(x_labels, batch), axes_of(other, batch)),
    )
    free = [n for n in x_labels if n not in shared] + [n for n in other if n not in shared]
    return out, [*batch, *free]
