"""What a call of an operation or word is made with."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from tensorgraft.codegen.words import WORDS
from tensorgraft.hub.operations import operations


class CannotBeSaidError(NotImplementedError):
    """What the program does has no words in the target."""


def bound(method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The call's arguments by the names of the operation; those with the operation's defaults are None."""
    fn = WORDS.get(method) or operations()[method]
    signature = inspect.signature(fn)
    parameters = list(signature.parameters.values())[1:]
    values = inspect.Signature([p.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD)
                                if p.kind is not inspect.Parameter.VAR_POSITIONAL else p
                                for p in parameters]).bind(*args, **kwargs)  # fmt: skip
    values.apply_defaults()
    return dict(values.arguments)


def defaults(method: str) -> dict[str, Any]:
    fn = WORDS.get(method) or operations()[method]
    return {p.name: p.default for p in inspect.signature(fn).parameters.values() if p.default is not p.empty}
