"""The trip count of a loop that depends on numbers which are known when it begins: a counter and its bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.graph import FunctionGraph, Value
from tensorgraft.frontends.tensorflow.planning import functions, plan, rule_of
from tensorgraft.frontends.tensorflow.rule import RULES
from tensorgraft.frontends.tensorflow.values import is_known
from tensorgraft.hub import registry

_MOST = 1 << 20  # steps that are counted one by one


def counted(cond: FunctionGraph, body: FunctionGraph, operands: Sequence[Any]) -> tuple[int, dict[int, Any]] | None:
    """Return (the number of steps, {position among the operands: final value of a number}); None if the loop's
    condition depends on other values."""
    numbers = {i for i, x in enumerate(operands) if is_known(x) and x.size <= 64}
    needs = [_needs(body, value) for value in body.outputs]
    while unknown := {i for i in numbers if (n := needs[i]) is None or not n <= numbers}:
        numbers -= unknown
    condition_needs = _needs(cond, cond.outputs[0])
    if condition_needs is None or not condition_needs <= numbers:
        return None
    order = sorted(numbers)
    goes_on, step = plan(cond), _step(body, tuple(order))
    state = [x if i in numbers else None for i, x in enumerate(operands)]
    host = registry.get("numpy")
    with host.scope():
        for count in range(_MOST):
            if not bool(goes_on(host, *state)[0]):
                return count, {i: np.asarray(state[i]) for i in order}
            for i, x in zip(order, step(host, *state), strict=True):
                state[i] = x
    return None


def _step(body: FunctionGraph, order: tuple[int, ...]) -> Any:
    if ("step", order) not in body.memory:
        body.memory["step", order] = body.part([body.outputs[i] for i in order], effects=False)
    return plan(body.memory["step", order])


def _needs(graph: FunctionGraph, value: Value) -> frozenset[int] | None:
    """Return the arguments from which a value is computed; None if it is computed by an operation that cannot be
    folded."""
    memory = graph.memory.setdefault("needs", {})
    if value not in memory:
        visited, stack, needs = {value[0]}, [value[0]], set()
        pure = True
        while stack and pure:
            index = stack.pop()
            argument = graph.argument((index, 0))
            if argument is not None:
                needs.add(argument)
                continue
            node = graph.nodes[index]
            pure = not functions(node) and (node.op not in RULES or rule_of(node).folds)
            stack += [p for p, _ in node.inputs if p not in visited]
            visited |= {p for p, _ in node.inputs}
        memory[value] = frozenset(needs) if pure else None
    return memory[value]
