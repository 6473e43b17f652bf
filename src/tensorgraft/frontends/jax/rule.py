"""The table of rules, which express each primitive of JAX in operations of the hub."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class PrimitiveRule:
    """`fn(xp, *operands, **params)`, with `out=` (the abstract values of the results) where it has such a parameter,
    `given=` (those of the operands), and `known=` (for each operand its value, where it is a constant, else None)."""

    fn: Callable[..., Any]
    asks: tuple[str, ...]


RULES: dict[str, PrimitiveRule] = {}
# primitive -> why it has no rule
REASONS: dict[str, str] = {}


def rule(*names: str) -> Callable[[F], F]:
    """Register a function as the rule of primitives. It takes the hub, operands (arrays of the backend), and the
    primitive's parameters by name, and returns an array, or a sequence of them where there are several results. What it
    returns has the shapes and dtypes of the abstract values."""

    def register(fn: F) -> F:
        parameters = inspect.signature(fn).parameters
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has two rules")
            RULES[name] = PrimitiveRule(fn, tuple(p for p in ("out", "given", "known") if p in parameters))
        return fn

    return register


def without_rule(reason: str, *names: str) -> None:
    """Say why primitives have no rule."""
    REASONS.update(dict.fromkeys(names, reason))
