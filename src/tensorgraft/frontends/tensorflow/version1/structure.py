"""Loops and branches among the nodes of a graph of TensorFlow 1.

A loop is a frame: `Enter`, `Merge` (with `NextIteration`), `LoopCond`, `Switch`, `Exit`. A branch is the nodes between
`Switch`es of one predicate and a `Merge`; a node belongs to a branch if it depends on the branch's `Switch`, control
inputs included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensorgraft.frontends.tensorflow.planning import UnsupportedOperationError


class Tensor(NamedTuple):
    """A node's result, by name."""

    node: str
    place: int = 0  # among its results


Branches = frozenset[tuple[Tensor, int]]  # pairs of a predicate and its side
NOWHERE: Branches = frozenset()


def after_those_before(
    name: str, before: Callable[[str], list[str]], finished: Container[str], do: Callable[[str], None]
) -> None:
    """Call `do` for a node once those before it are `finished`. Iterative: graphs are deep."""
    stack = [name]
    while stack:
        top = stack[-1]
        missing = [n for n in before(top) if n not in finished]
        if missing:
            stack += missing
            continue
        stack.pop()
        if top not in finished:
            do(top)


def parse_name(name: str) -> Tensor:
    """Return (node, number of its result) of "node" or "node:1"."""
    node, _, index = name.partition(":")
    return Tensor(node, int(index or 0))


@dataclass
class Loop:
    """A loop (frame): its variables, by their `Merge`s, and its constant inputs."""

    name: str
    enters: list[str] = field(default_factory=list)
    merges: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)  # `Enter`s that no `Merge` takes
    condition: str = ""  # the `LoopCond`


def kind(node: Any) -> str:
    """Return the operation, without the prefix of those by reference."""
    op = node.op
    return op.removeprefix("Ref") if op.removeprefix("Ref") in _FLOW else op


_FLOW = ("Switch", "Merge", "Enter", "Exit", "NextIteration", "Identity")
LOOPS_AND_BRANCHES = (*_FLOW, *(f"Ref{name}" for name in _FLOW), "LoopCond")


class FrameStructure:
    """The loops and branches among the nodes that some results need."""

    def __init__(self, nodes: Mapping[str, Any], results: Iterable[Tensor], feeds: Iterable[Tensor]) -> None:
        self.nodes = nodes
        self._feeds = frozenset(feeds)
        self.inputs = {name: self._inputs(node) for name, node in nodes.items()}
        self.controls = {name: [i[1:] for i in node.input if i.startswith("^")] for name, node in nodes.items()}
        self.needed = self._reachable([t for t in results if t not in self._feeds])
        self.loops = self._loops()
        self._states: dict[str, Branches] = {}

    def _inputs(self, node: Any) -> list[Tensor]:
        return [parse_name(i) for i in node.input if not i.startswith("^")]

    def node(self, name: str) -> Any:
        if name not in self.nodes:
            raise ValueError(f"the graph has no node {name!r}")
        return self.nodes[name]

    def _reachable(self, results: Iterable[Tensor]) -> set[str]:
        stack = [t.node for t in results]
        visited: set[str] = set()
        while stack:
            name = stack.pop()
            if name in visited:
                continue
            self.node(name)
            visited.add(name)
            stack += [t.node for t in self.inputs[name] if t not in self._feeds]
            stack += [c for c in self.controls[name] if Tensor(c) not in self._feeds]
        return visited

    # ---- loops -----------------------------------------------------------------------------------------------------

    def _loops(self) -> dict[str, Loop]:
        loops: dict[str, Loop] = {}
        self._loop_of: dict[str, Loop] = {}  # {name of an Enter, Merge, Switch, Exit or NextIteration: its loop}
        needed_names = [name for name in self.nodes if name in self.needed]
        for name in needed_names:
            if kind(self.nodes[name]) == "Enter":
                frame = self.nodes[name].attr["frame_name"].s.decode()
                loop = self._loop_of[name] = loops.setdefault(frame, Loop(frame))
                loop.enters.append(name)
        for name in needed_names:
            if self.is_loop_merge(name):
                loop = self._loop_of[name] = self._loop_of[self._entry(name)]
                loop.merges.append(name)
        for name in needed_names:
            inputs = self.inputs[name]
            if kind(self.nodes[name]) == "Switch" and self.nodes[inputs[1].node].op == "LoopCond":
                loop = self._loop_of[name] = self._loop_of[inputs[0].node]
                loop.condition = inputs[1].node
        for name in needed_names:
            if kind(self.nodes[name]) == "Exit":
                self._loop_of[name] = self._loop_of[self.inputs[name][0].node]
        for loop in loops.values():
            loop_entries = {self._entry(m) for m in loop.merges}
            loop.constants = [e for e in loop.enters if e not in loop_entries]
        return loops

    def _entry(self, merge: str) -> str:
        return next(t.node for t in self.inputs[merge] if kind(self.nodes[t.node]) == "Enter")

    def entry(self, merge: str) -> Tensor:
        """Return the initial value of a loop's variable."""
        return self.inputs[self._entry(merge)][0]

    def following(self, merge: str) -> Tensor:
        """Return the value of a loop's variable at the end of a step."""
        next_iteration = next(t.node for t in self.inputs[merge] if kind(self.nodes[t.node]) == "NextIteration")
        return self.inputs[next_iteration][0]

    def is_loop_merge(self, name: str) -> bool:
        if kind(self.nodes[name]) != "Merge":
            return False
        return any(kind(self.nodes[t.node]) == "NextIteration" for t in self.inputs[name])

    def is_loop_switch(self, name: str) -> bool:
        return kind(self.nodes[name]) == "Switch" and name in self._loop_of

    def loop(self, name: str) -> Loop:
        return self._loop_of[name]

    def members(self, loop: Loop, of: str) -> list[str]:
        return [n for n, its in self._loop_of.items() if its is loop and kind(self.nodes[n]) == of]

    # ---- branches --------------------------------------------------------------------------------------------------

    def predicate(self, t: Tensor) -> Tensor:
        """Return the predicate that decides, through nodes that pass it on."""
        while t not in self._feeds and kind(self.nodes[t.node]) == "Identity":
            t = self.inputs[t.node][0]
        return t

    def branches(self, t: Tensor) -> Branches:
        """Return the branches in which a value exists."""
        if t in self._feeds:
            return NOWHERE
        own_branches = self.branches_of(t.node)
        if kind(self.nodes[t.node]) == "Switch" and not self.is_loop_switch(t.node):
            return own_branches | {(self.predicate(self.inputs[t.node][1]), t.place)}
        return own_branches

    def branches_of(self, name: str) -> Branches:
        """Return the branches in which a node runs."""

        def join(top: str) -> None:
            self._states[top] = self._joined(top)

        after_those_before(name, self._before, self._states, join)
        return self._states[name]

    def before(self, name: str) -> tuple[list[Tensor], list[str]]:
        """Return (values, nodes) that a node waits for: those that go into a loop, for all that is in it."""
        loop = self._loop_of.get(name)
        names = [name] if loop is None else loop.enters
        values = [t for n in names for t in self.inputs[n]]
        return values, [c for n in names for c in self.controls[n] if Tensor(c) not in self._feeds]

    def _before(self, name: str) -> list[str]:
        values, controls = self.before(name)
        return [*(t.node for t in values if t not in self._feeds), *controls]

    def _joined(self, name: str) -> Branches:
        values, controls = self.before(name)
        sides = [self.branches(t) for t in values]
        common_branches = frozenset().union(*sides, *(self._states[c] for c in controls))
        if kind(self.nodes[name]) == "Merge" and name not in self._loop_of:
            p = _deciding_predicate(sides)
            return common_branches if p is None else frozenset(b for b in common_branches if b[0] != p)
        return common_branches

    def merged_by(self, merge: str) -> tuple[Tensor, list[int]]:
        """Return (the predicate that decides a `Merge`, the position of its input if that is false, and if it is true).
        Raises UnsupportedOperationError if there is no single predicate."""
        sides = [self.branches(t) for t in self.inputs[merge]]
        p = _deciding_predicate(sides)
        if p is None:
            raise UnsupportedOperationError(
                f"the Merge {merge!r} of a TensorFlow 1 graph joins {len(sides)} values that are not selected by a"
                " single predicate: write it with tf.cond, or leave this part to TensorFlow"
            )
        return p, [next(i for i, s in enumerate(sides) if (p, side) in s) for side in (0, 1)]

    def siblings(self, merge: str) -> list[str]:
        """Return the `Merge`s that belong to one conditional: they have the same predicate, and none of them depends on
        another."""
        p, branches, level = self.merged_by(merge)[0], self.branches_of(merge), self._level(merge)
        same_branches = [m for m in self._merges if self.merged_by(m)[0] == p and self.branches_of(m) == branches]
        return [m for m in same_branches if self._level(m) == level]

    @functools.cached_property
    def _merges(self) -> list[str]:
        needed_names = [n for n in self.nodes if n in self.needed]
        return [n for n in needed_names if kind(self.nodes[n]) == "Merge" and not self.is_loop_merge(n)]

    @functools.cached_property
    def _levels(self) -> dict[str, int]:
        return {}

    def _level(self, merge: str) -> int:
        """Return the number of branchings by the same predicate that come before."""
        stack = [merge]
        while stack:
            top = stack[-1]
            before = self._alike_before(top)
            missing = [m for m in before if m not in self._levels]
            if missing:
                stack += missing
                continue
            stack.pop()
            self._levels[top] = 1 + max((self._levels[m] for m in before), default=-1)
        return self._levels[merge]

    def _alike_before(self, merge: str) -> list[str]:
        p = self.merged_by(merge)[0]
        visited, merges_before, stack = {merge}, [], [merge]
        while stack:
            for name in self._before(stack.pop()):
                if name not in visited:
                    visited.add(name)
                    if name in self._merge_set and self.merged_by(name)[0] == p:
                        merges_before.append(name)
                    else:
                        stack.append(name)
        return merges_before

    @functools.cached_property
    def _merge_set(self) -> frozenset[str]:
        return frozenset(self._merges)

    def outside(self, results: Sequence[Tensor], p: Tensor, side: int) -> tuple[list[Tensor], list[str]]:
        """Return (values, nodes) outside of a branch on which it depends, including the inputs of `Switch`es."""
        branch = (p, side)
        outer: tuple[dict[Tensor, None], dict[str, None]] = {}, {}
        visited: set[Tensor] = set()
        stack = list(results)
        while stack:
            t = stack.pop()
            if t in visited:
                continue
            visited.add(t)
            if branch not in self.branches(t):
                outer[0][t] = None
            elif self.takes(t, p, side):
                outer[0][self.inputs[t.node][0]] = None
            else:
                values, controls = self.before(t.node)
                stack += values
                stack += [Tensor(c) for c in controls if branch in self.branches_of(c)]
                outer[1].update(dict.fromkeys(c for c in controls if branch not in self.branches_of(c)))
        return list(outer[0]), list(outer[1])

    def takes(self, t: Tensor, p: Tensor, side: int) -> bool:
        """Return True if a value enters this branch by a `Switch`."""
        node = self.nodes[t.node]
        if kind(node) != "Switch" or self.is_loop_switch(t.node) or t.place != side:
            return False
        return self.predicate(self.inputs[t.node][1]) == p


def _deciding_predicate(sides: Sequence[Branches]) -> Tensor | None:
    """Return the predicate that is false if one value exists and true if the other one does."""
    if len(sides) != 2:
        return None
    predicates = [p for p, side in sides[0] if (p, 1 - side) in sides[1] and (p, 1 - side) not in sides[0]]
    return predicates[0] if len(predicates) == 1 else None
