"""Einstein sums, by the backend's products of two arrays."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.array import Array

Labelled = tuple[list[str], Array]  # the labels of the axes of an array, and the array


def einsum(xp: Any, equation: str, *operands: Array) -> Array:
    """Sum the products of operands over the labels that the result lacks, two operands at a time.

    A label that comes twice is the diagonal in an operand, and a diagonal among zeros in the result. Axes of one
    element broadcast. `...` stands for the other axes, counted from the last one. Without `->`, the result has these,
    and in alphabetical order the labels that come once.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    rest = [xp.ndim(x) - len(t.replace("...", "")) for t, x in zip(terms, operands, strict=True)]
    most = max((n for t, n in zip(terms, rest, strict=True) if "..." in t), default=0)
    dots = [f"...{i}" for i in range(most)]

    def spelled(term: str, count: int) -> list[str]:
        before, has_dots, after = term.partition("...")
        return [*before, *(dots[most - count :] if has_dots else ()), *after]

    labels = [spelled(t, n) for t, n in zip(terms, rest, strict=True)]
    letters = left.replace("...", "").replace(",", "")
    result = spelled(right, most) if arrow else [*dots, *sorted(c for c in set(letters) if letters.count(c) == 1)]
    whole, *others = [_diagonals(xp, (names, x)) for names, x in zip(labels, operands, strict=True)]
    for i, other in enumerate(others, 2):
        whole = _product(xp, whole, other, {*result, *itertools.chain.from_iterable(labels[i:])})
    names, x = _summed(xp, whole, result)
    distinct = list(dict.fromkeys(result))
    absent = [name for name in distinct if name not in names]  # axes of one element that broadcasting has removed
    names, x = [*names, *absent], xp.reshape(x, (*xp.shape(x), *[1] * len(absent))) if absent else x
    x = xp.permute_dims(x, tuple(map(names.index, distinct))) if names != distinct else x
    return _with_diagonals(xp, x, result)


def _diagonals(xp: Any, operand: Labelled) -> Labelled:
    """Return an operand with each label once: the diagonal of one that comes twice."""
    names, x = operand
    for name in dict.fromkeys(names):
        while names.count(name) > 1:
            first = names.index(name)
            second = names.index(name, first + 1)
            rest = [i for i in range(len(names)) if i not in (first, second)]
            x = xp.diagonal(xp.permute_dims(x, (*rest, first, second)))
            names = [*(names[i] for i in rest), name]
    return names, x


def _summed(xp: Any, operand: Labelled, kept: Collection[str]) -> Labelled:
    """Return the sum over the labels that are not kept."""
    names, x = operand
    axes = tuple(i for i, name in enumerate(names) if name not in kept)
    return [name for name in names if name in kept], xp.sum(x, axis=axes) if axes else x


def _product(xp: Any, a: Labelled, b: Labelled, kept: Collection[str]) -> Labelled:
    """Return the product, summed over the labels that are not kept."""
    for name in [n for n in a[0] if n in b[0]]:
        m, n = (xp.shape(x)[names.index(name)] for names, x in (a, b))
        a = _without(xp, a, name) if m == 1 != n else a
        b = _without(xp, b, name) if n == 1 != m else b
    a, b = _summed(xp, a, [*kept, *b[0]]), _summed(xp, b, [*kept, *a[0]])
    (left, x), (right, y) = a, b
    shared = [name for name in left if name in right]
    batch, contracted = ([n for n in shared if (n in kept) == is_kept] for is_kept in (True, False))
    axes = [tuple(tuple(map(names.index, labels)) for names in (left, right)) for labels in (contracted, batch)]
    free = [n for n in (*left, *right) if n not in shared]
    return [*batch, *free], xp.dot_general(x, y, *axes)


def _without(xp: Any, operand: Labelled, name: str) -> Labelled:
    """Return an operand without an axis of one element, which broadcasts."""
    names, x = operand
    return [n for n in names if n != name], xp.squeeze(x, names.index(name))


def _with_diagonals(xp: Any, x: Array, names: Sequence[str]) -> Array:
    """Add the axes of labels that come again, as diagonals among zeros."""
    distinct = list(dict.fromkeys(names))
    for k, name in enumerate(names):
        if name in names[:k]:
            axis = distinct.index(name)
            n = xp.shape(x)[axis]
            column = xp.reshape(x, (*xp.shape(x)[:k], 1, *xp.shape(x)[k:]))
            diagonal = np.eye(n, dtype=bool).reshape([n if i in (axis, k) else 1 for i in range(xp.ndim(column))])
            x = xp.where(xp.asarray(diagonal), column, xp.zeros_like(column))
            distinct.insert(k, name + str(k))
    return x
