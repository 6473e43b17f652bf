"""A line in the terminal while a compiler works for long."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_SECONDS = 5.0  # of silence first; nothing is shown without a terminal
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def progress_shown(name: str) -> Iterator[None]:
    """A context that shows a line in the terminal with the function being compiled and the time, if it takes long; the
    line is erased at the end."""
    out = sys.stderr
    if out is None or not out.isatty():
        yield
        return
    start, finished = time.monotonic(), threading.Event()

    def report() -> None:
        if finished.wait(_SECONDS):
            return
        while True:
            out.write(f"{_CLEAR}tensorgraft: compiling {name}, {time.monotonic() - start:.0f} s")
            out.flush()
            if finished.wait(1):
                break
        out.write(_CLEAR)
        out.flush()

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
