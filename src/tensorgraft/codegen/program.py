"""The interface of front ends' programs to `tg.source`, and the sizes at which a program is traced."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tensorgraft.codegen.structure.size_merging import PartingError, merge
from tensorgraft.codegen.trace import SourceTrace

ExtentNames = Sequence[Sequence[str | None]]  # for each array, of its axes


class SourceProgram(Protocol):
    """A program of a framework."""

    framework: str
    name: str
    origin: str  # "transformers.models.gpt2.modeling_gpt2.GPT2Model (PyTorch 2.13.0)"

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SourceTrace: ...

    def flatten(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[list[Any], Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]]:
        """Return (the arrays among the arguments, in the order of `SourceTrace.arguments`; a function that puts others
        in their places)."""

    def resized(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Return an array of this shape that repeats the values of `x`."""

    def numpy(self, x: Any) -> np.ndarray: ...

    def evaluate(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], gradients: bool, same_numbers: bool = False
    ) -> Evaluation:
        """`same_numbers`: random numbers are those that `runners` give to generated files."""


@runtime_checkable
class NamedExtents(Protocol):
    """A program that names extents of its arguments."""

    def extent_names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExtentNames:
        """Return the names of the extents of the arrays of `SourceProgram.flatten`."""


@dataclass
class Evaluation:
    """The results of the program itself: arrays by their places in them ("logits", "0.1"), gradients by the names of
    parameters, and buffers that were written.

    Gradients are those of the sum of all inexact results, each times its `cosines`; the gradient of a complex parameter
    is the direction in which the sum grows, as in PyTorch.
    """

    outputs: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    buffers: dict[str, np.ndarray]
    note: str = ""  # why there are no gradients, or no results, to compare with


def by_path(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of tuples, lists and dictionaries, None left out."""
    if isinstance(tree, dict):
        return {k: v for name, child in tree.items() for k, v in by_path(child, f"{prefix}{name}.").items()}
    if isinstance(tree, list | tuple):
        return {k: v for i, child in enumerate(tree) for k, v in by_path(child, f"{prefix}{i}.").items()}
    return {} if tree is None else {prefix[:-1] or "result": tree}


def cosines(shape: Sequence[int]) -> np.ndarray:
    """Return weights for the elements of a result, so that a gradient depends on each of them."""
    n = int(np.prod(shape, dtype=np.int64))
    return np.cos(np.arange(n, dtype=np.float64) * 0.7 + 0.3).reshape(tuple(shape))


@dataclass
class SizeGroup:
    """Extents of arguments that change together."""

    size: int
    axes: list[tuple[int, int]]  # (which array, axis)
    title: str
    checked_sizes: list[int] = field(default_factory=list)  # sizes at which the program is the same
    reason: str = ""  # the reason for which it is not changed

    def __str__(self) -> str:
        traced_at = ", ".join(map(str, self.checked_sizes))
        generality = f"others, too (traced at {traced_at})" if traced_at else f"{self.size} only ({self.reason})"
        return f"  size {self.size} ({self.title}): {generality}"


@dataclass
class TracedSizes:
    """A program traced at several sizes."""

    traces: list[SourceTrace]
    owners: list[int]  # for each trace, the group of sizes that it varies; -1 for the first
    groups: list[SizeGroup]
    arguments: Callable[[Mapping[int, int]], tuple[tuple[Any, ...], dict[str, Any]]]  # group number -> size

    def without(self, fixed: Container[int], reason: str) -> None:
        """Leave the sizes of these groups as they are in the example."""
        remaining = [(t, g) for t, g in zip(self.traces, self.owners, strict=True) if g not in fixed]
        self.traces, self.owners = [t for t, _ in remaining], [g for _, g in remaining]
        for g, group in enumerate(self.groups):
            if g in fixed and group.checked_sizes:
                group.checked_sizes, group.reason = [], reason


def trace_at_sizes(
    program: SourceProgram,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic: bool,
    prepare: Callable[[SourceTrace], None],
    names: ExtentNames | None = None,
) -> TracedSizes:
    """Return the traces of the program at sizes near that of the example, of which a merge is possible. `prepare` is
    done to each trace. A size at which the program fails, or has another structure, is left as it is. `names`: of the
    extents of the arrays, if not those that the program states.

    Raises what the program raises at the size of the example.
    """
    search = _SizeSearch(program, args, kwargs, dynamic, prepare, names)
    for g, group in enumerate(search.groups):
        if not group.reason:
            search.attempt(g)
    move_vectors(search.groups, [tuple(x.shape) for x in search.arrays], search.attempt)
    for g in range(len(search.groups)):
        search.attempt_together(g)
    return search.result()


class _SizeSearch:
    """The search for sizes at which a program is the same."""

    def __init__(
        self,
        program: SourceProgram,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        dynamic: bool,
        prepare: Callable[[SourceTrace], None],
        names: ExtentNames | None,
    ) -> None:
        self._program, self._prepare = program, prepare
        self.arrays, self._rebuild = program.flatten(args, kwargs)
        if names is None and isinstance(program, NamedExtents):
            names = program.extent_names(args, kwargs)
        self.groups = size_groups([tuple(x.shape) for x in self.arrays], names) if dynamic else []
        self._base = {g: 2 for g, group in enumerate(self.groups) if group.size == 1}
        first: SourceTrace | None = None
        if self._base:
            try:
                first = self._trace(self._base)
            except Exception as error:
                for g in self._base:
                    self.groups[g].reason = error_line(error)
                self._base = {}
        self._traces, self._owners = [first or self._trace({})], [-1]

    def _arguments(self, sizes: Mapping[int, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments at other sizes of some groups."""
        new = []
        for k, x in enumerate(self.arrays):
            shape = list(x.shape)
            for g, size in sizes.items():
                for array, axis in self.groups[g].axes:
                    if array == k:
                        shape[axis] = size
            new.append(x if tuple(shape) == tuple(x.shape) else self._program.resized(x, tuple(shape)))
        return self._rebuild(new)

    def _trace(self, sizes: Mapping[int, int]) -> SourceTrace:
        args, kwargs = self._arguments(sizes)
        trace = self._program.trace(args, kwargs)
        self._prepare(trace)
        return trace

    def attempt(self, g: int) -> None:
        """Trace the program at other sizes of a group."""
        group = self.groups[g]
        for candidate in candidate_sizes(self._base.get(g, group.size), group):
            try:
                other = self._trace({**self._base, g: candidate})
                merge([self._traces[0], other])
            except PartingError as error:
                group.reason = group.reason or f"the program is another one at {candidate}: {error}"
                continue
            except Exception as error:
                group.reason = group.reason or f"at {candidate}: {error_line(error)}"
                continue
            group.checked_sizes.append(candidate)
            self._traces.append(other)
            self._owners.append(g)
            if len(group.checked_sizes) == (1 if group.title == "batch" else 2):
                break
        if group.checked_sizes:
            group.reason = ""

    def attempt_together(self, g: int) -> None:
        """Try equal extents that change only together: the second axis of a recurrent state."""
        groups, group = self.groups, self.groups[g]
        peers = [h for h in range(g + 1, len(groups)) if groups[h].size == group.size and groups[h].axes
                 and not groups[h].checked_sizes and h not in self._base]  # fmt: skip
        if group.checked_sizes or g in self._base or not group.axes or not peers:
            return
        previous = group.axes, group.reason
        group.axes, group.reason = [*group.axes, *(at for h in peers for at in groups[h].axes)], ""
        self.attempt(g)
        if group.checked_sizes:
            for h in peers:
                groups[h].axes = []
        else:
            group.axes, group.reason = previous

    def result(self) -> TracedSizes:
        left = [g for g, group in enumerate(self.groups) if group.axes]
        owners = [left.index(g) if g >= 0 else g for g in self._owners]
        self.groups[:] = [self.groups[g] for g in left]
        return TracedSizes(self._traces, owners, self.groups, self._arguments)


def move_vectors(
    groups: Sequence[SizeGroup], shapes: Sequence[tuple[int, ...]], attempt: Callable[[int], None]
) -> None:
    """Try the batch together with arrays of one axis that have its extent, where other axes have it, too, and neither
    changes alone: a batch of two measurements of states of two numbers."""
    for g, batch in enumerate(groups):
        others = [
            h for h, group in enumerate(groups) if h != g and group.size == batch.size and not group.checked_sizes
        ]
        moved = [(h, at) for h in others for at in groups[h].axes if len(shapes[at[0]]) == 1]
        if batch.title != "batch" or batch.checked_sizes or not moved:
            continue
        previous = batch.axes, batch.reason
        batch.axes, batch.reason = sorted([*batch.axes, *(at for _, at in moved)]), ""
        attempt(g)
        if not batch.checked_sizes:
            batch.axes, batch.reason = previous
            continue
        for h, at in moved:
            groups[h].axes.remove(at)
        for h in dict(moved):
            groups[h].reason = ""
            attempt(h)


def candidate_sizes(size: int, group: SizeGroup) -> list[int]:
    """Return other sizes of a group to try."""
    return [size + 1, size + 2] if group.title == "batch" else [2 * size, size + 1, size + 4]


def size_groups(shapes: Sequence[tuple[int, ...]], names: ExtentNames | None = None) -> list[SizeGroup]:
    """Return extents of arrays that are likely to be one: the first axis, and equal extents of other axes. What has one
    axis (labels) goes with the first axis of the others, where that has its extent and no other axis has. Extents that
    have names are one where these are equal."""
    groups: dict[tuple[bool | str, int], SizeGroup] = {}
    batches, extents = {s[0] for s in shapes if len(s) > 1}, {n for s in shapes for n in s[1:]}
    for k, shape in enumerate(shapes):
        for axis, size in enumerate(shape):
            if size == 0:
                continue
            first = axis == 0 and (len(shape) > 1 or (size in batches and size not in extents))
            name = names[k][axis] if names is not None and names[k] else None
            new = SizeGroup(size, [], "batch" if first else f"axis {axis}")
            group = groups.setdefault((name or first, size), new)
            group.axes.append((k, axis))
    return list(groups.values())


_FRAMES = ("in user code:", "File ", "Exception encountered when calling", "Arguments received")  # TensorFlow's


def error_line(error: BaseException) -> str:
    """Return an error in a line."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", str(error)).split("\n")]
    plain = [x for x in lines if x and not x.startswith(_FRAMES)] or [""]
    text = next((x for x in plain if "Error: " in x), plain[0])
    return f"{type(error).__name__}: {text[:120]}"
