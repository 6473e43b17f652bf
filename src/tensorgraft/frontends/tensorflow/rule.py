"""The table of rules, which express raw operations of TensorFlow in operations of the hub.

A rule is a function of the hub, of the node's operands, and of those of the node's attributes that it names:

    @rule("MatMul")
    def matmul(xp, a, b, *, transpose_a, transpose_b):
        ...

Operands are arrays of the backend `xp`, of TensorFlow's shapes and dtypes. `known=` names operands that have to be
numbers (shapes, axes): these come as `numpy.ndarray`, and where a trace does not know them, that is an error before the
rule is called. `either=` names operands that may be `numpy.ndarray` or arrays of the backend: positions that a loop may
compute (`EVERY`: all of them as they come, lists and variables too). Operands may be named by their position where
their number varies: `known=(-1,)`.

    @rule("Reshape", known=("shape",))
    def reshape(xp, x, shape):
        return xp.reshape(x, ...)

Attributes come as numbers, strings, tuples, `numpy.dtype` (None for what is no array), shapes (tuples with None, or
None), arrays, and `FunctionGraph`s. A rule that asks for `node` gets the `GraphNode`, whose `dtypes` and `shapes` are
those of its results.

Variables come as `VariableCell`s: `cell.value` is read and written; a rule that writes says `writes=True`. Tensor lists
come as `TensorList`s (`values`).

A rule returns an array, or a sequence of them where the node has several results (or none), of TensorFlow's dtypes. It
may return `numpy.ndarray` for what is known (shapes). Where all of its operands are known and small, the rule is called
with the NumPy backend, and the result is known: so shape arithmetic needs nothing of its own. `folds=False` says that
this would be wrong: of random ones. `effect=True` keeps nodes whose results nobody reads.

Only what TensorFlow's CPU kernels do counts, in value, dtype and shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tensorgraft.hub.value import is_formula, with_operators

F = TypeVar("F", bound=Callable[..., Any])
Operands = Sequence[str | int]
EVERY = (-1 << 30,)  # all operands, as they come


@dataclass(frozen=True)
class OperationRule:
    """A row of the table."""

    fn: Callable[..., Any]
    attributes: tuple[str, ...]
    known: tuple[int, ...] = ()
    either: tuple[int, ...] = ()  # or EVERY
    writes: bool = False
    folds: bool = True
    effect: bool = False


RULES: dict[str, OperationRule] = {}
# raw operation -> why it has no rule
REASONS: dict[str, str] = {}


def rule(
    *names: str,
    known: Operands = (),
    either: Operands = (),
    writes: bool = False,
    folds: bool = True,
    effect: bool = False,
) -> Callable[[F], F]:
    """Register a function as the rule of raw operations."""

    def register(fn: F) -> F:
        parameters = inspect.signature(fn).parameters.values()
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY][1:]

        def positions_of(operands: Operands) -> tuple[int, ...]:
            return tuple(o if isinstance(o, int) else positional.index(o) for o in operands)

        formula, on_host = inspect.unwrap(fn), positions_of((*known, *either))
        row = OperationRule(
            with_operators(formula, on_host) if on_host and is_formula(fn) else fn,
            tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY),
            known if known is EVERY else positions_of(known),
            either if either is EVERY else positions_of(either),
            writes,
            folds and not writes and not effect,
            effect or writes,
        )
        for name in names:
            if name in RULES:
                raise ValueError(f"{name} has two rules")
            RULES[name] = row
        return fn

    return register


def without_rule(reason: str, *names: str) -> None:
    """Say why operations have no rule."""
    REASONS.update(dict.fromkeys(names, reason))
