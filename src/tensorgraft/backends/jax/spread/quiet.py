"""What JAX's collectives on the CPU say on standard output, which is the program's."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

_SAID = b"[Gloo] Rank "  # of each device, when a program first connects it with others (C++, std::cout)
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
            for line in kept:
                if not line.startswith(_SAID):
                    os.write(_OUTPUT, line)
