"""Conditions that are errors, checked on the host: at once if their values are known, otherwise when the program that
computes them has run. A trace returns them as additional results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.errors import CheckError
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend


def check(xp: Backend, flag: Any, message: str) -> None:
    """Raise CheckError where any element of `flag`, a bool array of the backend, is true; call it in its scope."""
    flag = xp.any(flag) if xp.shape(flag) else flag
    if not xp.is_traced(flag):
        xp.when_known(flag, lambda value: raise_first(value, [message]))
        return
    capture = tracing.now.capture
    while capture is not None and capture.inner is not xp:
        capture = capture.before
    if capture is None:  # a trace that is not ours
        raise_first(xp.to_numpy(flag), [message])  # raises
    else:
        capture.checks.append((flag, message))


def raise_first(flags: np.ndarray, messages: Sequence[str]) -> None:
    """Raise the first of the messages whose flag is true."""
    for flag, message in zip(flags.reshape(-1), messages, strict=True):
        if flag:
            raise CheckError(message)


def stacked(xp: Backend, checks: Sequence[tuple[Any, str]]) -> list[Any]:
    """Return the flags as one result, which is fetched at once; none where there are no checks."""
    return [xp.stack([flag for flag, _ in checks])] if checks else []


class Repeated:
    """The checks of a body that a program may run any number of times, or not at all: one int32 that goes along, 0 or
    which of them failed first. Bodies without checks carry nothing: those with some are traced again."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # {message: number}

    def along(self, xp: Backend, checks: Sequence[tuple[Any, str]], before: Sequence[Any]) -> list[Any]:
        """Return what a body carries: the number of the first check that failed, or 0; nothing if it received
        nothing."""
        for _, message in checks:
            self.numbers.setdefault(message, len(self.numbers) + 1)
        if not before:
            return []
        code = self.begin(xp)
        for flag, message in reversed(checks):
            code = xp.where(flag, xp.full((), self.numbers[message], dtypes.int32), code)
        return [xp.where(xp.not_equal(before[0], 0), before[0], code)]

    def begin(self, xp: Backend) -> Any:
        return xp.full((), 0, dtypes.int32)

    def verify(self, xp: Backend, code: Any) -> None:
        """Check, after the loop, the number that it has carried."""
        for message, number in self.numbers.items():
            check(xp, xp.equal(code, number), message)
