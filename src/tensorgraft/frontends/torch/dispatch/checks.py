"""Checks of the values of arrays: an index out of range, a table with too few rows.

A kernel calls `check` with a small array (the least and the greatest index) and a function of its values on the host
that raises PyTorch's error. If the values are known, it is called at once. While a plan is compiled, the array becomes
an additional output of its program, which is checked after each run, before anything is written. Inside `tg.jit`
nothing is checked, because a program cannot raise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import array_of

Verifier = Callable[[np.ndarray], None]

_local = threading.local()


def check(xp: Backend, values: Array, verify: Verifier) -> None:
    """Call `verify` with the values of `values`, now or as soon as they are known."""
    if not xp.is_traced(values):
        xp.when_known(values, verify)
    elif (pending := getattr(_local, "pending", None)) is not None:
        pending.append((array_of(values), verify))


def require(xp: Backend, *requirements: tuple[Array, str]) -> None:
    """Check (booleans, message) pairs: RuntimeError with the message of the first whose booleans are not all true."""
    messages = [message for _, message in requirements]

    def verify(condition: np.ndarray) -> None:
        if not condition.all():
            raise RuntimeError(messages[int(condition.argmin())])

    check(xp, xp.stack([xp.all(condition) for condition, _ in requirements]), verify)


class collected:
    """The checks of arrays without values that are asked for inside."""

    __slots__ = ("_before",)

    def __enter__(self) -> list[tuple[Array, Verifier]]:
        self._before = getattr(_local, "pending", None)
        pending: list[tuple[Array, Verifier]] = []
        _local.pending = pending
        return pending

    def __exit__(self, *_: object) -> None:
        _local.pending = self._before


def raise_failed(xp: Backend, arrays: Sequence[Array], verifiers: Sequence[Verifier]) -> None:
    """Raise the errors of checks of a program that has run; their values are its last outputs."""
    for value, verify in zip(arrays[-len(verifiers) :], verifiers, strict=True):
        check(xp, value, verify)
