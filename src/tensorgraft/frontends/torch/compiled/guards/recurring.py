"""The choice of when `tg.jit` compiles a new signature: at its first call, or once it recurs.

Where eager operators have a cold tier, a call that is not compiled costs a small part of a compilation. So the first
signature of a function is compiled at once, and a later one runs as eager code until it has come back: it is
compiled at its second call, or at its n-th where the function has n programs, since each says less of the next one. So
is the first one if the call changes what it reads (it creates a cache, or counts), after which it does not come back by
itself.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from tensorgraft.compiled.background import TRACED, When
from tensorgraft.compiled.uncompiled import warn_in_program
from tensorgraft.frontends.torch.compiled.guards.retraces import History, NamedKey
from tensorgraft.frontends.torch.core.modes import of_program
from tensorgraft.frontends.torch.core.source_location import program_place
from tensorgraft.hub import tiers
from tensorgraft.hub.backend import Backend

_MOST = 4096  # signatures that are counted
_MANY = 4  # signatures that ran cold: so many are not the last batch of an epoch, and one of another kind


class _Thread(threading.local):
    cold = False  # a compiled function runs its function as eager code


_now = _Thread()


class Counts:
    """The numbers of calls of signatures for which there is no program."""

    def __init__(self) -> None:
        self._calls: Counter[Any] = Counter()

    def waits(self, backend: Backend, signature: Any, programs: int, most: int | None = None) -> bool:
        """Count a call, and say whether it is to run cold. `programs`: how many there are, of at most `most`."""
        if not programs or not _is_cheap(backend):
            return False
        if self.comes_before(max(2, programs), signature, programs == most):
            return True
        del self._calls[signature]
        return False

    def comes_before(self, number: int, signature: Any, always: bool = False) -> bool:
        """Count a call, and say whether it comes before that number of its signature, or `always`."""
        if len(self._calls) >= _MOST:
            self._calls.clear()
        self._calls[signature] += 1
        return always or self._calls[signature] < number

    def new(self, signature: Any) -> bool:
        """Return whether the signature has been called once."""
        return self._calls[signature] == 1


def _is_cheap(backend: Backend) -> bool:
    """Return whether a call as eager code costs a small part of a compilation."""
    return backend.cold is not None and backend.host_visible and tiers.tiered()


class Recurring:
    """The calls of one compiled function that run cold."""

    def __init__(self, when: When, name: str, history: History) -> None:
        self.when, self.name, self.history = when, name, history
        self._counts = Counts()
        self._warned = False

    def waits(
        self, backend: Backend, signature: Any, programs: int, most: int, call: Callable[[], NamedKey], sure: bool
    ) -> bool:
        """Count a call that there is no program for, and say whether it is to run cold. `programs`: how many there are,
        of at most `most`; `call`: gives what history keeps of it; `sure`: the backend is the function's."""
        if self.when == "background":
            if _now.cold:  # it is compiled with the outer function
                return True
            waits = self._counts.comes_before(TRACED, signature, programs == most)
        else:
            if self.when == "first" or not sure:
                return False
            # the outer function has not recurred yet
            if _now.cold and backend.cold is not None and backend.host_visible:
                return True
            waits = self._counts.waits(backend, signature, programs, most)
        if not waits:
            return False
        if programs and not self._warned and self._counts.new(signature):
            self.history.cold.append(call())
            self._warn()
        return True

    def defers(self, backend: Backend, once: bool, sure: bool) -> bool:
        """Return whether a call that was traced is to run cold, and a second one of its kind to compile it. `once`: the
        call changes what it reads, as one that creates a cache does; `sure`: the backend is the function's."""
        return once and sure and self.when == "recurring" and _is_cheap(backend)

    def _warn(self) -> None:
        """Warn once of values that keep changing."""
        text = self.history.keeps_changing(self.name, program_place()) if len(self.history.cold) >= _MANY else None
        if text is not None:
            self._warned = True
            warn_in_program(lambda _: text, RecurringWarning)


def run(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a compiled function as eager code, and those inside it."""
    before, _now.cold = _now.cold, True
    try:
        return of_program(fn, *args, **kwargs)
    finally:
        _now.cold = before


class RecurringWarning(UserWarning):
    """A function compiled by `tg.jit` is called with new shapes again and again, and runs uncompiled for them."""
