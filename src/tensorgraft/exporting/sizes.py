"""The sizes of a program's arguments that its file leaves open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorgraft.codegen.program import Evaluation, SizeGroup, candidate_sizes, error_line, move_vectors, size_groups
from tensorgraft.exporting.progress import step
from tensorgraft.exporting.subject import Subject

Dynamic = bool | Mapping[str, Mapping[int, str]]


@dataclass
class OpenSizes:
    """Groups of extents that change together, and the results of the program at sizes where it runs.

    A group whose `checked_sizes` are empty is fixed.
    """

    subject: Subject
    groups: list[SizeGroup]
    symbols: list[str]
    results: dict[tuple[int, int], Evaluation] = field(default_factory=dict)  # (group, size) -> results
    limits: dict[str, int] = field(default_factory=dict)  # the largest extents that the file takes, by symbol

    def arrays(self, sizes: Mapping[int, int]) -> list[Any]:
        """Return the arrays of the example at other sizes of some groups."""
        changed = []
        for k, x in enumerate(self.subject.arrays):
            shape = list(x.shape)
            for g, size in sizes.items():
                for array, axis in self.groups[g].axes:
                    if array == k:
                        shape[axis] = size
            changed.append(x if shape == list(x.shape) else self.subject.source.resized(x, tuple(shape)))
        return changed

    def attempt(self, g: int) -> None:
        """Run the program at another size of a group."""
        group = self.groups[g]
        for size in candidate_sizes(group.size, group):
            try:
                self.results[g, size] = self.subject.evaluate(self.arrays({g: size}))
            except Exception as error:  # whatever the program raises at a size that it does not take
                group.reason = group.reason or f"at {size}: {error_line(error)}"
                continue
            group.checked_sizes.append(size)
            break
        if group.checked_sizes:
            group.reason = ""

    def open(self) -> list[int]:
        return [g for g, group in enumerate(self.groups) if group.checked_sizes]

    def symbol(self, array: int, axis: int) -> str | None:
        """Return the symbol of an extent, None for a fixed one."""
        return next((self.symbols[g] for g in self.open() if (array, axis) in self.groups[g].axes), None)

    def names(self) -> list[list[str | None]]:
        """Return the symbols of the extents of each array."""
        return [[self.symbol(k, axis) for axis in range(len(x.shape))] for k, x in enumerate(self.subject.arrays)]

    def shape(self, array: int) -> list[int | str]:
        shape = self.subject.arrays[array].shape
        return [self.symbol(array, axis) or int(n) for axis, n in enumerate(shape)]

    def fix(self, groups: Sequence[int], reason: str) -> None:
        for g in groups:
            self.groups[g].checked_sizes, self.groups[g].reason = [], reason

    def bound(self, message: str) -> bool:
        """Take the limit of a size from an error of JAX, which has cut an array of 64 rows to `min(64, length)`.
        Returns False if there is none, or it is known."""
        for number, symbol in re.findall(r"min\((\d+), (\w+)\)", message):
            if symbol in self.symbols and symbol not in self.limits:
                self.limits[symbol] = int(number)
                return True
        return False

    def tracing_arrays(self) -> list[Any]:
        """Return the example, with open extents of 1 as 2: exporters take an extent of 1 for a constant."""
        return self.arrays({g: 2 for g in self.open() if self.groups[g].size == 1})


def open_sizes(subject: Subject, dynamic: Dynamic) -> OpenSizes:
    """Find the sizes that may vary: the program is run at others. `dynamic` is True for all, False for none, or
    {name of an argument: {axis: symbol}}.

    Raises ValueError for an unknown argument or axis, and if the program does not run at another size of one that is
    named.
    """
    shapes = [tuple(int(n) for n in x.shape) for x in subject.arrays]
    named = isinstance(dynamic, Mapping)
    if isinstance(dynamic, Mapping):
        groups, symbols = _named_groups(subject, shapes, dynamic)
    else:
        groups = size_groups(shapes) if dynamic else []
        symbols = _symbols(groups)
    sizes = OpenSizes(subject, groups, symbols)
    for g in range(len(groups)):
        step(f"running {subject.name} at another {symbols[g]}", g, len(groups))
        sizes.attempt(g)
        if named and not groups[g].checked_sizes:
            raise ValueError(
                f"dynamic: {subject.name} does not run with another size of {symbols[g]!r}, {groups[g].reason}"
            )
    if not named:
        move_vectors(groups, shapes, sizes.attempt)
    return sizes


def _symbols(groups: Sequence[SizeGroup]) -> list[str]:
    """Return a name for each group: "batch", "length", "size_2"."""
    names: list[str] = []
    for g, group in enumerate(groups):
        name = "batch" if group.title == "batch" else "length" if group.title == "axis 1" else f"size_{g}"
        names.append(name if name not in names else f"{name}_{g}")
    return names


def _named_groups(
    subject: Subject, shapes: Sequence[tuple[int, ...]], dynamic: Mapping[str, Mapping[int, str]]
) -> tuple[list[SizeGroup], list[str]]:
    groups: dict[str, SizeGroup] = {}
    for name, axes in dynamic.items():
        if name not in subject.names:
            raise ValueError(
                f"dynamic: {subject.name} has no array {name!r}; its arrays are {', '.join(subject.names)}"
            )
        k = subject.names.index(name)
        for axis, symbol in axes.items():
            if not -len(shapes[k]) <= axis < len(shapes[k]):
                raise ValueError(f"dynamic: {name} of shape {shapes[k]} has no axis {axis}")
            if not symbol.isidentifier():
                raise ValueError(f"dynamic: {symbol!r} is no name of a size; expected an identifier such as 'batch'")
            at = axis % len(shapes[k])
            group = groups.setdefault(symbol, SizeGroup(shapes[k][at], [], symbol))
            if group.size != shapes[k][at]:
                raise ValueError(f"dynamic: {symbol!r} is {group.size} and {shapes[k][at]} in the example")
            group.axes.append((k, at))
    return list(groups.values()), list(groups)
