"""The C library keeps the memory in which programs compute from one call to the next.

XLA for the CPU asks for the memory of a program's intermediate results at each call. glibc maps blocks of 32 MiB, and
those of threads of 64 MiB, anew each time, and the kernel clears them page by page: 25 of the 145 ms of a training step
(ResNet-18, 59 MB), the same of 220 (an LSTM, 66 MB). From one arena, which alone grows beyond 64 MiB, blocks are
taken again as they are.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os

KEPT = 1 << 29  # bytes: what is free beyond them goes back to the system, and larger blocks are mapped

# of <malloc.h>, with glibc's own variables: a program in whose environment one of these is has made its choice
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
_VARIABLES = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


@functools.cache
def install() -> None:
    """For all of the process, before XLA has threads; where others have begun before, their arenas stay, and XLA's
    threads would get those: then nothing is set."""
    if _threads() > 1:
        return
    if any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, KEPT), (_TRIM_THRESHOLD, KEPT)):
            mallopt(option, value)
