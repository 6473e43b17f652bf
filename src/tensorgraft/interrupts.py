"""Protection from exceptions between what belongs together: the run of a program that takes donated memory and the
handling of its results, and the writes of one call.

An interrupt (Ctrl-C, a timer's signal) comes between two instructions of Python's: most likely right after a long call
of C++ has ended, in which a program has used up the arrays that were donated to it, and before anybody has its results.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enumerations, and takes five times as long
import contextlib
import threading
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
# signals that programs turn into exceptions
_SIGNALS = tuple(getattr(_signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(_signal, name))
_ignored = {_signal.SIG_DFL, _signal.SIG_IGN}
_held = False  # by the main thread, the only one in which handlers run


class held_back:
    """Context that delays signals for which Python has a handler until the end. The second signal of a kind is not
    delayed, since the context may never end."""

    __slots__ = ("_handlers", "_waiting")

    def __init__(self) -> None:
        self._handlers: list[tuple[int, Any]] = []
        self._waiting: list[tuple[int, Any]] = []

    def __enter__(self) -> None:
        global _held
        if _held or get_ident() != threading.main_thread().ident:
            return
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if handler is not None and handler not in _ignored:
                _held = True
                self._handlers.append((number, handler))
                _signal.signal(number, self._wait)

    def _wait(self, number: int, frame: Any) -> None:
        repeated = any(n == number for n, _ in self._waiting)
        self._waiting.append((number, frame))
        if repeated:
            self._waiting = [(n, f) for n, f in self._waiting if n != number]
            dict(self._handlers)[number](number, frame)

    def __exit__(self, *_: object) -> None:
        global _held
        if not self._handlers:
            return
        for number, handler in self._handlers:
            _signal.signal(number, handler)
        _held = False
        for number, frame in self._waiting:
            for known, handler in self._handlers:
                if known == number:
                    handler(number, frame)


def all_or_none(write: Callable[[T], object], items: Sequence[T]) -> None:
    """Call `write` for each item: for all, or for none. If a call raises, it is repeated, and the remaining ones are
    done, before the exception propagates; `write` has to be idempotent. Nothing is written only if no call succeeds."""
    count = 0
    try:
        for item in items:
            write(item)
            count += 1
    except BaseException:
        with contextlib.suppress(Exception):
            for item in items[count:]:
                write(item)
        raise
