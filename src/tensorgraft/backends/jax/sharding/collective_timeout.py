"""Timeouts of collectives that other processes do not join.

XLA waits for ever, in C++, where no exception can reach it. Therefore a thread observes the running collectives. After
some seconds it compares this process's collective with those of the other processes. If they differ, or the timeout of
the group has passed, it ends the process, like the watchdog of PyTorch's NCCL groups.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_EVERY = 1.0  # seconds between two checks
_LONG = 3.0  # seconds, after which the processes compare
_lock = threading.Lock()
_under_way: list[_Call] = []
_some = threading.Event()
_thread: threading.Thread | None = None
Verify = Callable[[Callable[[], bool]], str]  # its argument says when the answer is no longer needed


class _Call:
    def __init__(self, verify: Verify, words: Callable[[], str], seconds: float) -> None:
        self.verify, self.words, self.seconds = verify, words, seconds
        self.begin, self.compared = time.monotonic(), False
        self.results: list[weakref.ref[Any]] | None = None  # None: it has not returned

    def over(self) -> bool:
        """Return True if the results have arrived, or nothing refers to them any more."""
        if self.results is None:
            return False
        arrays = [x for ref in self.results if (x := ref()) is not None]
        return all(x.is_deleted() or x.is_ready() for x in arrays)


@contextlib.contextmanager
def watched(verify: Verify, words: Callable[[], str], seconds: float) -> Iterator[Callable[[Sequence[Any]], None]]:
    """Context that watches a program of several processes. It yields a function that has to be called with the
    program's results, which may not be computed yet.

    Arguments:
        verify: compares this call with those of the other processes; returns the problem, or "".
        words: describes the call in messages.
        seconds: the timeout.
    """
    global _thread
    call = _Call(verify, words, seconds)

    def watch_results(arrays: Sequence[Any]) -> None:
        call.results = [weakref.ref(x) for x in arrays]

    with _lock:
        _under_way.append(call)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_watch, name="tensorgraft collectives", daemon=True)
            _thread.start()
    _some.set()
    try:
        yield watch_results
    except BaseException:
        call.results = []
        raise
    finally:
        if call.over():
            with _lock:
                _under_way.remove(call)


def _watch() -> None:
    while True:
        _some.wait()
        time.sleep(_EVERY)
        current_time = time.monotonic()
        with _lock:
            _under_way[:] = [call for call in _under_way if not call.over()]
            if not _under_way:
                _some.clear()
                continue
            call = _under_way[0]
        if current_time > call.begin + call.seconds:
            _end(call, f"{call.words()} has waited {call.seconds:g} s for other processes, the timeout of its group")
        elif current_time > call.begin + _LONG and not call.compared:
            call.compared = True
            threading.Thread(target=_compare, args=(call,), name="tensorgraft comparison", daemon=True).start()


def _compare(call: _Call) -> None:
    if problem := call.verify(call.over):
        _end(call, problem)


def _end(call: _Call, reason: str) -> None:
    if not call.over():
        print(f"tensorgraft: this process ends: {reason}", file=sys.stderr, flush=True)
        os._exit(1)
