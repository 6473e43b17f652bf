"""The table of rules, which express operators of ONNX in operations of the hub.

A rule is a function of the hub, of the node's inputs in the order of the operator's definition, and, by keyword, of the
attributes that it names:

    @rule("Squeeze", known=("axes",))
    def squeeze(xp, data, axes=None):
        ...

An input that is left out is None. What is an input in one version of an operator and an attribute in another is a
parameter of the rule: it gets the attribute as an array. (A name that Python has already is written with an underscore
at its end: `min_`.) Attributes that a node lacks have the default of the operator's definition in the model's opset,
or the rule's. `opset` is the version of the operator's domain, `node` the `OnnxNode`.

Inputs are arrays of the backend `xp`. Those in `known` are `numpy.ndarray`: sizes, axes, positions; where a trace does
not know them, that is an error before the rule is called. If all inputs are known and small, the rule is called with
the NumPy backend, and its results are known, too. Sequences are tuples, an optional without a value is None.

A rule returns its result or, where there may be several, a list of them. A graph among the attributes is a function of
`xp` and its inputs (`planning.GraphBody`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tensorgraft.hub.value import is_formula, with_operators

F = TypeVar("F", bound=Callable[..., Any])
CONTEXT = ("node", "opset", "key")  # parameters that are no attributes


@dataclass(frozen=True)
class OperatorRule:
    """A row of the table."""

    fn: Callable[..., Any]
    inputs: tuple[str, ...]
    variadic: bool
    attributes: dict[str, Any]  # keyword parameters and their defaults (`inspect.Parameter.empty`: there is none)
    known: frozenset[str]
    state: frozenset[str]  # inputs that are no trained parameters: statistics, scales of quantised values
    host: bool
    moves: bool

    @property
    def draws(self) -> bool:
        """Return whether the rule takes a random key."""
        return "key" in self.attributes

    def input_name(self, position: int) -> str:
        """Return the parameter that input number `position` is."""
        return self.inputs[min(position, len(self.inputs) - 1)] if self.inputs else ""


# (domain, operator) -> its rule
RULES: dict[tuple[str, str], OperatorRule] = {}


def _parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(fn).parameters.values())


def _attributes(parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def rule(
    *names: str,
    domain: str = "",
    known: Sequence[str] = (),
    state: Sequence[str] = (),
    host: bool = False,
    moves: bool = False,
    like: Sequence[tuple[str, str] | Callable[..., Any]] = (),
) -> Callable[[F], F]:
    """Register a function as the rule of operators.

    Arguments:
        known: inputs that have to be known.
        state: floating inputs that are buffers of a module, not its parameters.
        host: the operator computes on the host, on known inputs: on strings, on maps.
        moves: the operator moves elements without looking at them, and takes elements of less than 8 bits.
        like: rules (domain, operator) and functions whose attributes the operator has, too, as `**attributes`.
    """

    def register(fn: F) -> F:
        parameters = [p for p in _parameters(fn)[1:] if p.kind is not p.VAR_KEYWORD]
        inherited = [RULES[x].attributes if isinstance(x, tuple) else _attributes(_parameters(x)) for x in like]
        positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        on_host = tuple(i for i, p in enumerate(positional) if p.name in known)
        formula = inspect.unwrap(fn)
        row = OperatorRule(
            with_operators(formula, on_host) if on_host and is_formula(fn) else fn,
            tuple(p.name.rstrip("_") for p in positional),
            any(p.kind is p.VAR_POSITIONAL for p in positional),
            {name: x for row in (*inherited, _attributes(parameters)) for name, x in row.items()},
            frozenset(name.rstrip("_") for name in known),
            frozenset(state),
            host,
            moves,
        )
        for name in names:
            if (domain, name) in RULES:
                raise ValueError(f"{name} has two rules")
            RULES[domain, name] = row
        return fn

    return register


def rules_of(table: Mapping[str, Callable[..., Any]], **options: Any) -> None:
    """Register the rules of a table (operators, with blanks between them -> a function), with the options of `rule`."""
    for names, fn in table.items():
        rule(*names.split(), **options)(fn)
