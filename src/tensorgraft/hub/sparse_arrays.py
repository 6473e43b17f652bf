"""Sparse arrays as their parts: between the classes that frameworks have for them, and front ends."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

COMPRESSED = ("csr", "csc", "bsr", "bsc")


class SparseArray(NamedTuple):
    """A sparse array as its parts, which are ordinary arrays.

    The parts of "coo" are indices (n, dims) and values (n, *dense), those of "csr", "csc", "bsr" and "bsc" compressed
    indices, plain indices and values. `is_coalesced`: the indices of "coo" are distinct and in lexicographic order.
    Elements of the other layouts are distinct.
    """

    layout: str
    shape: tuple[int, ...]
    is_coalesced: bool
    parts: tuple[Any, ...]

    def refused(self, framework: str, expected: str) -> TypeError:
        """Return the error where a framework has no class for the array."""
        dense = "" if self.layout in COMPRESSED or len(self.parts[1].shape) == 1 else " with dense dimensions"
        return TypeError(
            f"{framework} has no class for a sparse array of shape {self.shape} and layout {self.layout}{dense}, only"
            f" {expected}: return another layout, the parts, or a dense array"
        )


def of_known_coordinates(indices: np.ndarray, values: Any, shape: Any) -> SparseArray:
    """Return a "coo" array of indices that can be read. Raises ValueError for indices outside of the shape."""
    shape = tuple(map(int, shape))
    extents = np.array(shape[: indices.shape[1]], np.int64)
    outside = ((indices < 0) | (indices >= extents)).any(1)
    if outside.any():
        raise ValueError(f"a sparse array of shape {shape} has an element at {indices[outside.argmax()].tolist()}")
    is_coalesced = math.prod(shape) < 2**63
    if is_coalesced:
        keys = np.zeros(len(indices), np.int64)
        for column, n in zip(indices.T, extents, strict=True):
            keys = keys * n + column
        is_coalesced = bool((keys[1:] > keys[:-1]).all())
    return SparseArray("coo", shape, is_coalesced, (indices, values))


def check_rows(compressed: np.ndarray, plain: np.ndarray, kind: str) -> None:
    """Raises ValueError where a row (or column) has an element twice, or elements that are not in order."""
    starts = np.zeros(len(plain) + 1, bool)
    starts[compressed] = True
    if not (starts[1:-1] | (plain[1:] > plain[:-1])).all():
        raise ValueError(
            f"an argument is a {kind} with elements that are not in order or occur twice, as those of PyTorch do not:"
            f" call its method sum_duplicates before"
        )
