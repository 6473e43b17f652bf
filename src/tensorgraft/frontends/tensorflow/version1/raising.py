"""The trace of a TensorFlow 1 graph as a function of TensorFlow 2: loops become `tf.while_loop`, branches `tf.cond`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensorgraft.frontends.tensorflow.planning import UnsupportedOperationError
from tensorgraft.frontends.tensorflow.version1.operations import SessionOperations, value_of
from tensorgraft.frontends.tensorflow.version1.structure import FrameStructure, Loop, Tensor, after_those_before, kind

# the parts of their shapes that a loop's variables have to keep: all, the number of axes, nothing
_HELD: Sequence[Callable[[tf.TensorShape], tf.TensorShape]] = (
    lambda shape: shape,
    lambda shape: tf.TensorShape([None] * shape.rank if shape.rank is not None else None),
    lambda shape: tf.TensorShape(None),
)


def trace(
    operations: SessionOperations, feeds: Mapping[Tensor, Any], results: Sequence[Tensor], effects: Sequence[str] = ()
) -> list[tf.Tensor]:
    """Return the results in the graph being traced. Nodes are run in the order of the graph, as far as their inputs
    allow: if TensorFlow 1 defines no order, that of the program is used. `effects`: nodes that have to run.

    Raises ValueError for a placeholder that is not fed, UnsupportedOperationError for a node that cannot be
    translated."""
    structure = FrameStructure(operations.nodes, [*results, *map(Tensor, effects)], feeds)
    return [value_of(x) for x in _Scope(operations, structure, feeds).all(results, effects)]


def call(operations: SessionOperations, name: str, operands: Sequence[Any]) -> list[tf.Tensor]:
    """Inline a function of the graph's library in place of its call."""
    inner, arguments, results, effects = operations.function(name)
    return trace(inner, dict(zip(arguments, operands, strict=True)), results, effects)


def _call_function(operations: SessionOperations, node: Any, operands: list[Any]) -> Sequence[Any]:
    return call(operations, node.attr["f"].func.name, operands)


def _if(operations: SessionOperations, node: Any, operands: list[Any]) -> Sequence[Any]:
    if_true, if_false = (lambda a=a: call(operations, node.attr[a].func.name, operands[1:])
                       for a in ("then_branch", "else_branch"))  # fmt: skip
    return list(tf.nest.flatten(tf.cond(_as_predicate(operands[0]), if_true, if_false)))


def _case(operations: SessionOperations, node: Any, operands: list[Any]) -> Sequence[Any]:
    names = [f.name for f in node.attr["branches"].list.func]
    branches = [lambda name=name: call(operations, name, operands[1:]) for name in names]
    return list(tf.nest.flatten(tf.switch_case(value_of(operands[0]), branches)))


def _while(operations: SessionOperations, node: Any, operands: list[Any]) -> Sequence[Any]:
    fixed = [i for i, x in enumerate(operands) if not isinstance(x, tf.Tensor) or x.dtype == tf.resource]
    moving = [i for i in range(len(operands)) if i not in fixed]

    def full_state(state: Sequence[tf.Tensor]) -> list[Any]:
        values = dict(zip(moving, state, strict=True))
        return [values.get(i, x) for i, x in enumerate(operands)]

    def goes_on(*state: tf.Tensor) -> tf.Tensor:
        return _as_predicate(call(operations, node.attr["cond"].func.name, full_state(state))[0])

    def step(*state: tf.Tensor) -> list[tf.Tensor]:
        new_state = call(operations, node.attr["body"].func.name, full_state(state))
        return [new_state[i] for i in moving]

    return full_state(_looped(goes_on, step, [operands[i] for i in moving]))


def _as_predicate(x: Any) -> tf.Tensor:
    """Return the truth of a condition, which may be a number."""
    x = value_of(x)
    if x.dtype == tf.bool and x.shape.rank == 0:
        return x
    return tf.size(x) > 0 if x.shape.rank else tf.cast(x, tf.bool)


_FUNCTIONAL: dict[str, Callable[[SessionOperations, Any, list[Any]], Sequence[Any]]] = {
    **dict.fromkeys(["PartitionedCall", "StatefulPartitionedCall"], _call_function),
    **dict.fromkeys(["If", "StatelessIf"], _if),
    **dict.fromkeys(["Case", "StatelessCase"], _case),
    **dict.fromkeys(["While", "StatelessWhile"], _while),
}


class _Scope:
    """A graph that is being traced: the whole one, or a step of a loop, or a branch."""

    def __init__(
        self,
        operations: SessionOperations,
        structure: FrameStructure,
        known: Mapping[Tensor, Any],
        branch: tuple[Tensor, int] | None = None,
    ) -> None:
        self.operations, self.structure, self.branch = operations, structure, branch
        self._values = dict(known)
        self._finished = {t.node for t in known}

    def all(self, results: Sequence[Tensor], effects: Sequence[str] = ()) -> list[Any]:
        pending = self._waited_for([*(t.node for t in results if not self._is_known(t)), *effects])
        order = self.operations.places
        for name in sorted(pending, key=order.__getitem__):
            self._run(name)
        return [self._value(t) for t in results]

    def _is_known(self, t: Tensor) -> bool:
        source = self._switch_input(t)
        return t in self._values or (source is not None and source in self._values)

    def _switch_input(self, t: Tensor) -> Tensor | None:
        """Return the input of a `Switch` of this branch from outside; None for other tensors."""
        return self.structure.inputs[t.node][0] if self.branch and self.structure.takes(t, *self.branch) else None

    def _value(self, t: Tensor) -> Any:
        if t in self._values:
            return self._values[t]
        source = self._switch_input(t)
        if source is not None and source in self._values:
            return self._values[source]
        node = self.structure.nodes[t.node]
        raise UnsupportedOperationError(
            f"{node.op} {node.name!r} of a TensorFlow 1 graph is computed inside a branch or a loop, but used"
            " outside of it: fetch the result of the Merge or Exit instead"
        )

    # ---- the order -------------------------------------------------------------------------------------------------

    def _before(self, name: str) -> list[str]:
        """Return the nodes that have to be there first."""
        structure = self.structure
        values, controls = structure.before(name)
        if self._is_merge(name):
            p, _ = structure.merged_by(name)
            group = structure.siblings(name)
            values = [p, *(t for m in group for t in self._branch_inputs(m)[0])]
            controls = [c for m in group for c in (*structure.controls[m], *self._branch_inputs(m)[1])]
        return [t.node for t in values if not self._is_known(t)] + [c for c in controls if self._is_here(c)]

    def _branch_inputs(self, merge: str) -> tuple[list[Tensor], list[str]]:
        p, sides = self.structure.merged_by(merge)
        inputs = self.structure.inputs[merge]
        parts = [self.structure.outside([inputs[i]], p, side) for side, i in enumerate(sides)]
        return [t for values, _ in parts for t in values], [c for _, controls in parts for c in controls]

    def _is_merge(self, name: str) -> bool:
        return kind(self.structure.nodes[name]) == "Merge" and not self.structure.is_loop_merge(name)

    def _is_here(self, name: str) -> bool:
        """Return True if a node is traced in this graph, not around it."""
        if self.branch is not None and self.branch not in self.structure.branches_of(name):
            return False
        return name not in self._finished and self.structure.nodes[name].op not in ("LoopCond", "Switch", "RefSwitch")

    def _waited_for(self, names: Iterable[str]) -> set[str]:
        stack, visited = [n for n in names if n not in self._finished], set()
        while stack:
            name = stack.pop()
            if name not in visited:
                visited.add(name)
                stack += [n for n in self._before(name) if n not in visited]
        return visited

    def _run(self, name: str) -> None:
        after_those_before(name, self._before, self._finished, self._trace)

    def _trace(self, name: str) -> None:
        node, structure = self.structure.node(name), self.structure
        if self._is_merge(name):
            self._branching(structure.siblings(name))
        elif kind(node) == "Exit":
            self._loop(structure.loop(name))
        else:
            if kind(node) not in ("Switch", "Enter", "Merge"):  # others have no value here
                operands = [self._value(t) for t in structure.inputs[name]]
                for i, x in enumerate(self._results(node, operands)):
                    self._values[Tensor(name, i)] = x
            self._finished.add(name)

    def _results(self, node: Any, operands: list[Any]) -> Sequence[Any]:
        if node.op in _FUNCTIONAL:
            return _FUNCTIONAL[node.op](self.operations, node, operands)
        if self.operations.has_function(node.op):
            return call(self.operations, node.op, operands)
        return self.operations.run(node, operands)

    # ---- loops -----------------------------------------------------------------------------------------------------

    def _loop(self, loop: Loop) -> None:
        structure = self.structure
        merges, exits = loop.merges, structure.members(loop, "Exit")
        init = [value_of(self._value(structure.entry(m))) for m in merges]
        constants = {Tensor(e): self._value(structure.inputs[e][0]) for e in loop.constants}
        switches = [(s, merges.index(structure.inputs[s][0].node)) for s in structure.members(loop, "Switch")]

        def scope_of(state: Sequence[tf.Tensor], going_on: bool) -> _Scope:
            known = {**constants, **{Tensor(m): x for m, x in zip(merges, state, strict=True)}}
            if going_on:
                known |= {Tensor(s, 1): state[i] for s, i in switches}
            return _Scope(self.operations, structure, known)

        def goes_on(*state: tf.Tensor) -> tf.Tensor:
            return value_of(scope_of(state, False).all(structure.inputs[loop.condition][:1])[0])

        def step(*state: tf.Tensor) -> list[tf.Tensor]:
            return [value_of(x) for x in scope_of(state, True).all([structure.following(m) for m in merges])]

        final_state = _looped(goes_on, step, init)
        for name in exits:
            switch = structure.inputs[name][0].node
            self._values[Tensor(name)] = final_state[dict(switches)[switch]]
        self._finished.update(exits)

    # ---- branches --------------------------------------------------------------------------------------------------

    def _branching(self, group: Sequence[str]) -> None:
        structure = self.structure
        p = structure.merged_by(group[0])[0]
        outer = {t: self._value(t) for m in group for t in self._branch_inputs(m)[0]}

        def branch(side: int) -> Callable[[], list[tf.Tensor]]:
            def run() -> list[tf.Tensor]:
                inputs_of_side = [structure.merged_by(m)[1][side] for m in group]
                scope = _Scope(self.operations, structure, outer, (p, side))
                values = scope.all([structure.inputs[m][i] for m, i in zip(group, inputs_of_side, strict=True)])
                return [*map(value_of, values), *(tf.constant(i, tf.int32) for i in inputs_of_side)]

            return run

        results = tf.nest.flatten(tf.cond(value_of(self._value(p)), branch(1), branch(0)))
        for i, name in enumerate(group):
            self._values[Tensor(name)], self._values[Tensor(name, 1)] = results[i], results[len(group) + i]
        self._finished.update(group)


def _looped(goes_on: Callable[..., Any], step: Callable[..., Any], init: list[tf.Tensor]) -> list[tf.Tensor]:
    """Shapes of a loop's variables may change where the graph lets them: they are held to as far as they hold."""
    for shape_of in _HELD:
        try:
            shapes = [shape_of(x.shape) for x in init]
            return list(tf.nest.flatten(tf.while_loop(goes_on, step, init, shape_invariants=shapes)))
        except ValueError as error:
            if shape_of is _HELD[-1] or "shape" not in str(error):
                raise
    raise AssertionError
