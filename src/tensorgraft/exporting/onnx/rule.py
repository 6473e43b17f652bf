"""Rules: how an operation of the hub, or a word, is written in ONNX's operators.

    @rule("gather")
    def gather(g, x, indices): -> name of the result, or a tuple of names

A rule gets a `GraphBuilder` and the call's arguments by name, with the operation's defaults. What has no rule is
written as what it is made of; a primitive without one is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.exporting.onnx.graph import GraphBuilder

Rule = Callable[..., Any]
RULES: dict[str, tuple[Rule, int]] = {}


def rule(*methods: str, since: int = 1) -> Callable[[Rule], Rule]:
    """Declare the rule of operations. `since` is the opset that has the operator."""

    def declare(fn: Rule) -> Rule:
        for method in methods:
            RULES[method] = (fn, since)
        return fn

    return declare


def rules_of(opset: int) -> dict[str, Rule]:
    """Return the rules of an opset."""
    return {method: fn for method, (fn, since) in RULES.items() if since <= opset}


__all__ = ["RULES", "GraphBuilder", "rule", "rules_of"]
