"""How far two results are apart: numbers relative to the largest of their array, all else equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree

# By the precision of what is compared: sums come in another order, and errors grow over the steps of a program.
FLOAT32 = 1e-5
FLOAT64 = 1e-9


class Differs(Exception):
    """Two results that no rounding explains."""


def apart(want: Any, got: Any) -> float:
    """The largest difference of two nested structures of numbers and arrays.

    Raises `Differs` where structures, shapes, dtypes, texts or whole numbers are not equal.
    """
    want_leaves, want_structure = optree.tree_flatten(want, none_is_leaf=True)
    got_leaves, got_structure = optree.tree_flatten(got, none_is_leaf=True)
    if want_structure != got_structure:
        raise Differs(f"structure {got_structure} for {want_structure}")
    return max((_apart(a, b) for a, b in zip(want_leaves, got_leaves, strict=True)), default=0.0)


def tolerance(want: Any) -> float:
    """What the rounding of the program explains: a program in double precision is held to it."""
    dtypes = {np.asarray(leaf).dtype for leaf in optree.tree_leaves(want)}
    return FLOAT64 if np.dtype("float64") in dtypes and np.dtype("float32") not in dtypes else FLOAT32


def _apart(want: Any, got: Any) -> float:
    a, b = np.asarray(want), np.asarray(got)
    if a.shape != b.shape or a.dtype != b.dtype:
        raise Differs(f"{b.dtype}{b.shape} for {a.dtype}{a.shape}")
    if a.dtype.kind not in "fcV":  # V: bfloat16 and its like
        if not np.array_equal(a, b):
            raise Differs(f"{str(b)[:60]} for {str(a)[:60]}")
        return 0.0
    a, b = (v.astype(np.complex128) for v in (a, b))
    finite = np.isfinite(a)
    if not (np.array_equal(finite, np.isfinite(b)) and np.array_equal(a[~finite], b[~finite], equal_nan=True)):
        raise Differs("NaN or infinity at other places")
    largest = max(1.0, float(np.max(np.abs(a), where=finite, initial=0.0)))
    return float(np.max(np.abs(np.where(finite, a - b, 0.0)), initial=0.0)) / largest
