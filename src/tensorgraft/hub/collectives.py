"""Collectives: computations of the devices of several processes together, each with its own array.

A `World` is the processes of a program, each with one device, in the order of their ranks; a `Group` is some of them.
The operations are those of StableHLO (`Backend.collective`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]
Reduction = Literal["sum", "avg", "product", "min", "max", "and", "or", "xor"]
WHOLE = "processes"  # the name of the axis of one group's devices


@dataclass(frozen=True)
class CollectiveCall:
    """A collective operation on arrays that have the same shape in all `n` processes of a group:

    all_reduce: (...) -> (...), the reduction of all arrays; reduce_scatter: (n, ...) -> (...), the process's own row of
    that; all_gather: (...) -> (n, ...); all_to_all: (n, ...) -> (n, ...), row i comes from process i; broadcast: (...)
    -> (...), the array of the process `root`.

    Sums of bools are "or", products "and"; averages of integers are rounded towards zero.
    """

    kind: Kind
    reduction: Reduction = "sum"
    root: int = 0

    def __str__(self) -> str:
        if self.kind == "broadcast":
            return f"broadcast from {self.root}"
        return f"{self.kind} ({self.reduction})" if "reduce" in self.kind else self.kind


class World:
    """All processes of a program. `device_of`: the number of a process's device, by its rank; `rank`: this one's."""

    def __init__(self, size: int, rank: int, device_of: Callable[[int], int]) -> None:
        self._size, self.rank, self.device_of = size, rank, device_of
        self.groups: list[Group] = []  # the groups that this process knows

    def __len__(self) -> int:
        return self._size

    def group(self, ranks: tuple[int, ...], seconds: float) -> Group:
        """Return the group of some ranks: the same object for the same ranks."""
        for known in self.groups:
            if known.ranks == ranks:
                return known
        self.groups.append(Group(self, ranks, seconds))
        return self.groups[-1]

    def axes(self) -> dict[str, int]:
        """Return {axis: size} of a mesh of all processes, the outermost axis first, in which groups are along one or
        several axes, as far as their ranks allow."""
        return {_name(begin, end): end // begin for begin, end in self._axis_strides()}

    def axes_of(self, group: Group) -> tuple[str, ...]:
        """Return the axes of this mesh along which a group's processes are, the outermost first; none if the group is
        not along axes."""
        span = group.span
        if span is None:
            return ()
        begin, end = span
        factors = self._axis_strides()
        on_axes = {begin, end} <= {boundary for pair in factors for boundary in pair}
        return tuple(_name(a, b) for a, b in factors if begin <= a and b <= end) if on_axes else ()

    def _axis_strides(self) -> list[tuple[int, int]]:
        """Return (stride, stride times size) of each axis of the mesh, the outermost first."""
        cuts = [1, len(self)]
        for group in self.groups:
            wider = sorted({*cuts, *(group.span or ())})
            if all(b % a == 0 for a, b in itertools.pairwise(wider)):
                cuts = wider
        return list(itertools.pairwise(cuts))[::-1]


def _name(begin: int, end: int) -> str:
    return f"{WHOLE} {begin}:{end}"


@dataclass(eq=False)
class Group:
    """A group of some of the processes, by their ranks in the world, in the order of their ranks in the group.
    `seconds`: how long a process waits for the others."""

    world: World
    ranks: tuple[int, ...]
    seconds: float

    @property
    def size(self) -> int:
        return len(self.ranks)

    @functools.cached_property
    def devices(self) -> tuple[int, ...]:
        return tuple(map(self.world.device_of, self.ranks))

    @functools.cached_property
    def span(self) -> tuple[int, int] | None:
        """Return (stride, stride times size) if the ranks are along an axis of a mesh of all processes, otherwise
        None."""
        n, first = self.size, self.ranks[0]
        stride = self.ranks[1] - first if n > 1 else 1
        if stride < 1 or self.ranks != tuple(range(first, first + n * stride, stride)):
            return None
        return (stride, stride * n) if first % (stride * n) < stride and len(self.world) % (stride * n) == 0 else None


def in_words(call: CollectiveCall, shapes: Sequence[tuple[tuple[int, ...], np.dtype]], group_name: str) -> str:
    """Return the text of a call, for messages and for comparison between processes."""
    return f"{call} of {', '.join(f'{dtype}{list(shape)}' for shape, dtype in shapes)} among {group_name}"
