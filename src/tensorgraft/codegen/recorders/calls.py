"""Parameters and arguments of calls of hub operations and words."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from tensorgraft.codegen.words import definition


class NotExpressibleError(NotImplementedError):
    """Raised where a program does something that cannot be written in the target."""


@functools.cache
def parameters(method: str) -> tuple[inspect.Parameter, ...]:
    """Return the parameters of an operation of the hub or a word, without the backend."""
    return tuple(inspect.signature(definition(method)).parameters.values())[1:]


def bound(method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by the names of the operation, with its defaults."""
    named: dict[str, Any] = {}
    remaining = list(args)
    for p in parameters(method):
        if p.kind is p.VAR_POSITIONAL:
            named[p.name] = tuple(remaining)
            remaining = []
        elif remaining:
            named[p.name] = remaining.pop(0)
        elif p.name in kwargs:
            named[p.name] = kwargs[p.name]
        else:
            named[p.name] = p.default
    return named


def defaults(method: str) -> dict[str, Any]:
    return {p.name: p.default for p in parameters(method) if p.default is not p.empty}
