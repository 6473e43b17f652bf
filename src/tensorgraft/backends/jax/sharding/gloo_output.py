"""Removal of what JAX's collectives on the CPU print on standard output, which is the program's."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

# printed for each device when a program first connects it with others (C++, std::cout); two may share a line
_SAID = (b"[Gloo] Rank ", b" peer ranks", b"peer ranks is : ")
_OUTPUT = 1


@contextlib.contextmanager
def without_connections() -> Iterator[None]:
    """Gloo's lines on connections do not come out; what else is written meanwhile does, when the block ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no file
        sys.stdout.flush()
    try:
        shown = os.dup(_OUTPUT)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), _OUTPUT)
        try:
            yield
        finally:
            os.dup2(shown, _OUTPUT)
            os.close(shown)
            kept.seek(0)
            lines = kept.readlines()
            said = [line for line in lines if any(words in line for words in _SAID)]
            torn = b"".join(said).count(_SAID[0]) - len(said)  # of two in one line the second ends an empty one
            for line in lines:
                if line in said:
                    continue
                if line == b"\n" and torn > 0:
                    torn -= 1
                    continue
                os.write(_OUTPUT, line)
