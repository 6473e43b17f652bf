"""Collectives for which other processes do not come: the process ends when the time of its group is over.

XLA waits for ever, in C++, where no exception reaches it; so a thread looks at what is under way, as the watchdog of
NCCL's groups in PyTorch does.
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

_EVERY = 1.0  # seconds from one look to the next
_lock = threading.Lock()
_under_way: list[_Call] = []
_some = threading.Event()
_thread: threading.Thread | None = None


class _Call:
    def __init__(self, words: Callable[[], str], seconds: float) -> None:
        self.words, self.seconds, self.until = words, seconds, time.monotonic() + seconds
        self.results: list[weakref.ref[Any]] | None = None  # None: it has not returned

    def over(self) -> bool:
        """Its results are there, or nobody has them any more."""
        if self.results is None:
            return False
        arrays = [x for ref in self.results if (x := ref()) is not None]
        return all(x.is_deleted() or x.is_ready() for x in arrays)


@contextlib.contextmanager
def watched(words: Callable[[], str], seconds: float) -> Iterator[Callable[[Sequence[Any]], None]]:
    """While a program of several processes runs. It is given the program's results, which may not be there yet."""
    global _thread
    call = _Call(words, seconds)

    def gives(arrays: Sequence[Any]) -> None:
        call.results = [weakref.ref(x) for x in arrays]

    with _lock:
        _under_way.append(call)
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_look, name="tensorgraft collectives", daemon=True)
            _thread.start()
    _some.set()
    try:
        yield gives
    except BaseException:
        call.results = []
        raise
    finally:
        if call.over():
            with _lock:
                _under_way.remove(call)


def _look() -> None:
    while True:
        _some.wait()
        time.sleep(_EVERY)
        with _lock:
            _under_way[:] = [call for call in _under_way if not call.over()]
            if not _under_way:
                _some.clear()
            late = [call for call in _under_way if time.monotonic() > call.until]
        if late:
            print(
                f"tensorgraft: {late[0].words()} has waited {late[0].seconds:g} s, the timeout of its group, for other"
                " processes, which call something else or have ended. This process ends.",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)
