"""Removal of the messages that JAX's collectives on the CPU print to the program's standard output."""

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
    """A context in which Gloo's messages on connections are removed; other output is written when it ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or no file
        sys.stdout.flush()
    try:
        saved_stream = os.dup(_OUTPUT)
    except OSError:
        yield
        return
    with tempfile.TemporaryFile() as captured_output:
        os.dup2(captured_output.fileno(), _OUTPUT)
        try:
            yield
        finally:
            os.dup2(saved_stream, _OUTPUT)
            os.close(saved_stream)
            captured_output.seek(0)
            lines = captured_output.readlines()
            dropped = [line for line in lines if any(words in line for words in _SAID)]
            # if two are in one line, the second one ends an empty line
            torn = b"".join(dropped).count(_SAID[0]) - len(dropped)
            for line in lines:
                if line in dropped:
                    continue
                if line == b"\n" and torn > 0:
                    torn -= 1
                    continue
                os.write(_OUTPUT, line)
