"""Merging of traces at several sizes into one: numbers that differ between them become expressions of the sizes.

    merge([at (2, 8), at (3, 8), at (2, 12)])     # a reshape to (16, 64), (24, 64) and (24, 64) is one to (Extent, 64)

The frameworks need not support symbolic shapes. If the structure of a program depends on a size (a Python loop over
time steps), its traces differ, and the error shows where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.codegen.trace import Block, Call, Frame, SourceStep, SourceTrace, Var


class Extent(int):
    """A number that depends on the sizes of the arguments. It has a value for each trace, and equals the first one."""

    values: tuple[int, ...]

    def __new__(cls, values: Sequence[int]) -> Extent:
        self = super().__new__(cls, values[0])
        self.values = tuple(map(int, values))
        return self

    def __repr__(self) -> str:
        return f"Extent{self.values}"


class Quantity(float):
    """A floating number that depends on the sizes (a mean's 1 / n): its value in each trace."""

    values: tuple[float, ...]

    def __new__(cls, values: Sequence[float]) -> Quantity:
        self = super().__new__(cls, values[0])
        self.values = tuple(map(float, values))
        return self


class PartingError(ValueError):
    """Programs have no common structure: the message says where they part."""


def values_of(x: Any, n: int) -> tuple[Any, ...]:
    """Return the values of a number in each of `n` traces."""
    return x.values if isinstance(x, Extent | Quantity) else (x,) * n


def joined(values: Sequence[Any]) -> Any:
    """Return one value for the values in all traces: the value itself if it is the same, else an `Extent` or
    `Quantity`."""
    if all(type(v) is type(values[0]) and (v == values[0] or v != v) for v in values):
        return values[0]
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        return Extent(values)
    return Quantity(values)


def equal_sizes(a: Any, b: Any) -> bool:
    """Return True for equal numbers or shapes at every size."""
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(equal_sizes, a, b))
    x, y = getattr(a, "values", None), getattr(b, "values", None)
    if x is None and y is None:
        return bool(a == b)
    n = len(x if x is not None else y)  # type: ignore[arg-type]
    return values_of(a, n) == values_of(b, n)


class Merger:
    """Traverses corresponding trees of several traces, and builds one tree with new arrays."""

    def __init__(self, trace_count: int = 1, ranks: bool = False) -> None:
        """`trace_count`: how many values a number of one tree has already. `ranks`: arrays may differ in their ranks;
        that of the merged one does not count."""
        self.trace_count, self.ranks = trace_count, ranks
        self.counterparts: dict[Var, tuple[Var, ...]] = {}
        self.merged: dict[Var, Var] = {}
        self.at = ""

    def differ(self, difference: str) -> PartingError:
        return PartingError(f"{difference}{f', at {self.at}' if self.at else ''}")

    def var(self, variables: Sequence[Var]) -> Var:
        first = variables[0]
        known = self.counterparts.get(first)
        if known is None:
            if any(v.dtype != first.dtype or (v.ndim != first.ndim and not self.ranks) for v in variables):
                raise self.differ(f"{' and '.join(map(str, variables))} differ in more than their extents")
            if first.value is not None and not all(_equal(first.value, v.value) for v in variables[1:]):
                raise self.differ(f"a constant of {first} has other values at other sizes")
            self.counterparts[first] = tuple(variables)
            if len({v.ndim for v in variables}) > 1:
                self.merged[first] = Var((Ellipsis,), first.dtype)  # type: ignore[arg-type]
                return self.merged[first]
            shape = tuple(self.number(extents) for extents in zip(*(v.shape for v in variables), strict=True))
            self.merged[first] = Var(shape, first.dtype, first.value)
        elif any(a is not b for a, b in zip(known, variables, strict=True)):
            raise self.differ("other arrays are used at other sizes")
        return self.merged[first]

    def number(self, numbers: Sequence[Any]) -> Any:
        return joined([v for x in numbers for v in values_of(x, self.trace_count)])

    def tree(self, trees: Sequence[Any]) -> Any:
        first = trees[0]
        kinds = {type(t) for t in trees}
        if kinds <= {int, Extent} or kinds <= {float, Quantity} or kinds <= {int, Extent, float, Quantity}:
            return self.number(trees)
        if len(kinds) > 1:
            raise self.differ(f"{' and '.join(sorted(k.__name__ for k in kinds))} meet")
        if isinstance(first, Var):
            return self.var(trees)
        if isinstance(first, tuple | list):
            if len({len(t) for t in trees}) > 1:
                raise self.differ(f"{' and '.join(str(len(t)) for t in trees)} values")
            return type(first)([self.tree(ts) for ts in zip(*trees, strict=True)])
        if isinstance(first, dict):
            if len({tuple(t) for t in trees}) > 1:
                raise self.differ("dictionaries have other keys")
            return {k: self.tree([t[k] for t in trees]) for k in first}
        if isinstance(first, slice):
            return slice(*(self.tree([getattr(t, end) for t in trees]) for end in ("start", "stop", "step")))
        if isinstance(first, Block):
            return Block(
                self.tree([t.parameters for t in trees]),
                self.calls([t.calls for t in trees]),
                self.tree([t.result for t in trees]),
                first.names,
            )
        if isinstance(first, np.ndarray):
            if not all(_equal(first, t) for t in trees[1:]):
                raise self.differ("a constant has other values")
            return first
        if any(t != first for t in trees):
            raise self.differ(f"{' and '.join(map(repr, trees))} differ")
        return first

    def calls(self, lists: Sequence[list[Any]]) -> list[Any]:
        merged = [self.call(calls) for calls in zip(*lists, strict=False)]
        if len({len(calls) for calls in lists}) > 1:
            longest = max(lists, key=len)
            self.at = getattr(longest[len(merged)], "place", "")
            raise self.differ(f"{' and '.join(str(len(calls)) for calls in lists)} operations")
        return merged

    def call(self, calls: Sequence[Any]) -> Any:
        first = calls[0]
        self.at = getattr(first, "place", "") or self.at
        if any(type(c) is not type(first) for c in calls):
            raise self.differ("a function is called, and an operation")
        if isinstance(first, Frame):
            return self.frame(calls)
        if any(c.method != first.method for c in calls):
            raise self.differ(f"{' and '.join(dict.fromkeys(c.method for c in calls))} are called")
        args = self.tree([c.args for c in calls])
        kwargs = self.tree([c.kwargs for c in calls])
        result_vars = self.tree([c.results for c in calls])
        if isinstance(first, SourceStep):
            return SourceStep(first.method, args, kwargs, result_vars, first.names, first.place)
        return Call(first.method, args, kwargs, result_vars)

    def frame(self, frames: Sequence[Frame]) -> Frame:
        first = frames[0]
        if any((f.kind, f.path) != (first.kind, first.path) for f in frames):
            raise self.differ(f"{' and '.join(dict.fromkeys(f.kind for f in frames))} are called")
        return Frame(
            first.kind,
            first.name,
            self.calls([f.calls for f in frames]),
            [(n, self.tree([f.arguments[i][1] for f in frames])) for i, (n, _) in enumerate(first.arguments)],
            self.tree([f.result for f in frames]),
            first.names,
            first.place,
            first.doc,
            first.path,
            first.is_module,
            first.attributes,
        )


def merge(traces: Sequence[SourceTrace]) -> SourceTrace:
    """Merge traces into one. Raises PartingError if they differ in more than numbers."""
    first = traces[0]
    m = Merger()
    owned = {
        kind: {path: m.var([getattr(t, kind)[path] for t in traces]) for path in getattr(first, kind)}
        for kind in ("parameters", "buffers")
    }
    arguments = [(n, m.tree([t.arguments[i][1] for t in traces])) for i, (n, _) in enumerate(first.arguments)]
    key = None if first.key is None else m.var([t.key for t in traces if t.key is not None])
    root = m.frame([t.root for t in traces])
    result = m.tree([t.result for t in traces])
    written_vars = m.tree([t.written for t in traces])
    return SourceTrace(
        **{
            **vars(first),
            **owned,
            "key": key,
            "root": root,
            "arguments": arguments,
            "result": result,
            "written": written_vars,
        }
    )


def _equal(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
