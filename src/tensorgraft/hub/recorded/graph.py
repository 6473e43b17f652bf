"""The graph of calls recorded since the last run: their operands, and which of their results are still used."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.hub.array import HasShape
from tensorgraft.hub.array import NativeArray as Array

Scalar = bool | int | float | complex


@dataclass
class Figures:
    """Statistics of a recording backend."""

    operations: int = 0  # calls that were recorded
    cold: int = 0  # calls that were computed at once, in pieces of the program that have not recurred
    runs: int = 0  # graphs that were run
    programs: int = 0  # different graphs among them, each compiled once


class Node(HasShape):
    """An array: a result of a recorded call, or, once `value` is set, an array with values."""

    __slots__ = ("__weakref__", "dtype", "graph", "number", "owner", "shape", "shared", "value")

    def __init__(self, owner: Any, shape: tuple[int, ...], dtype: np.dtype, value: Array = None) -> None:
        self.owner = owner  # the backend that recorded it
        self.shape = shape
        self.dtype = dtype
        self.value = value
        self.graph: Graph | None = None
        self.number = -1
        self.shared = False  # True: its memory has references outside, and must not be reused for another array

    def __dlpack__(self, **options: Any) -> Any:
        return self.owner.materialize(self).__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.owner.materialize(self).__dlpack_device__()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.owner.to_numpy(self), dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        return f"{self.dtype}{list(self.shape)}, {'recorded' if self.graph else 'known'}"


class Graph:
    """Recorded calls in order. An operand is leaf `i` of the graph, written `~i`, or the result `i` of an earlier call.
    Results are held by weak references, so that results which the program has dropped are not computed."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[..., Any], tuple[int, ...], int]] = []  # with the number of the first result
        self.leaves: list[Array | Scalar] = []
        self.kinds: list[Any] = []  # kinds of the leaves: (shape, dtype), or the type of a Python scalar
        self.results: list[weakref.ref[Node]] = []
        self.shared: list[Array] = []  # leaves that are shared outside: one more reference marks them as in use
        self._leaf_of: dict[int, int] = {}

    def add(self, fn: Callable[..., Any], operands: Sequence[Any], kinds: Sequence[Any], results: list[Node]) -> None:
        """`operands`: nodes, arrays of the inner backend, host arrays, Python scalars."""
        refs = []
        for x, kind in zip(operands, kinds, strict=True):
            if isinstance(x, Node):
                refs.append(x.number if x.graph is self else ~self._leaf(x.value, kind, x.shared))
            elif kind.__class__ is type:
                self.leaves.append(x)
                self.kinds.append(kind)
                refs.append(~(len(self.leaves) - 1))
            else:
                refs.append(~self._leaf(x, kind, True))
        first = len(self.results)
        for node in results:
            node.graph, node.number = self, len(self.results)
            self.results.append(weakref.ref(node))
        # last, because an interrupt before would leave a call without results
        self.calls.append((fn, tuple(refs), first))

    def _leaf(self, value: Array, kind: Any, shared: bool) -> int:
        at = self._leaf_of.get(id(value))
        if at is None:
            at = self._leaf_of[id(value)] = len(self.leaves)
            self.leaves.append(value)
            self.kinds.append(kind)
        if shared:
            self.shared.append(value)
        return at

    def wanted(self) -> list[Node]:
        """Return the results that the program still refers to."""
        return [node for ref in self.results if (node := ref()) is not None]

    def unheld(self) -> tuple[int, ...]:
        """Return the indices of leaves that only this graph refers to: their memory can be reused."""
        leaves = self.leaves
        return tuple(
            i for i, kind in enumerate(self.kinds) if kind.__class__ is tuple and sys.getrefcount(leaves[i]) == 2
        )

    def program(self, numbers: Sequence[int]) -> Callable[..., tuple[Array, ...]]:
        """Return the function (leaves) -> the results with these numbers."""
        calls = self.calls

        def run(*leaves: Any) -> tuple[Array, ...]:
            outputs: dict[int, Array] = {}
            for fn, refs, first in calls:
                new = fn(*[outputs[r] if r >= 0 else leaves[~r] for r in refs])
                outputs.update(zip(range(first, first + len(new)), new, strict=True))
            return tuple(outputs[i] for i in numbers)

        return run
