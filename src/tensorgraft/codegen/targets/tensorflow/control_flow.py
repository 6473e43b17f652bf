"""Branches and loops in TensorFlow."""

from __future__ import annotations

import ast
from typing import Any

from tensorgraft.codegen.output import expressions
from tensorgraft.codegen.targets import Block, Rule, Writing, shared_words
from tensorgraft.codegen.targets.tensorflow.common import zeros_or_ones


def _cond(w: Writing, predicate: Any, true_fn: Block, false_fn: Block, operands: Any = ()) -> ast.expr:
    calls = shared_words.branches(w, true_fn, false_fn, operands)
    true, false = (ast.Lambda(expressions.arguments(), call) for call in calls)
    return w.fill("tf.cond(predicate, true, false)", predicate=predicate, true=true, false=false)


def _while_loop(w: Writing, condition: Block, body: Block, init: Any) -> ast.expr:
    return w.fill("tf.while_loop(lambda *state: condition(state), lambda *state: body(state), init)",
                  condition=w.body(condition, "condition"), body=w.body(body, "body"), init=tuple(init))  # fmt: skip


RULES: dict[str, Rule] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": shared_words.scan(zeros_or_ones("zeros")),
    "optimization_barrier": lambda w, x, after: w(x),
    "constrain": lambda w, x, placement: w(x),
}  # fmt: skip
