"""Settings of the process that JAX runs in: memory that is kept from call to call, and forks."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from typing import Any

import jax
from jax._src import xla_bridge
from jax.extend.core import Primitive

KEPT = 1 << 29  # bytes of free memory that are kept; larger blocks are mapped separately

# of <malloc.h>; the variables are glibc's: if one is set, the user has chosen
_ARENA_MAX, _MMAP_THRESHOLD, _TRIM_THRESHOLD = -8, -3, -1
_VARIABLES = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


def _threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 1


@functools.cache
def keep_memory() -> None:
    """Let the C library keep the memory in which programs compute from one call to the next.

    XLA for the CPU allocates the memory of a program's intermediate results at each call. glibc maps blocks of 32 MiB
    or more (64 MiB in threads) each time, and the kernel clears them page by page: 25 of the 145 ms of a training step
    (ResNet-18, 59 MB), the same of 220 (an LSTM, 66 MB). With a single arena, which may grow beyond 64 MiB, freed
    blocks are reused.

    The setting is for the whole process and is made before XLA has threads. If other threads already have arenas, XLA's
    threads would share those, and nothing is set.
    """
    if _threads() > 1:
        return
    if any(name in os.environ for name in _VARIABLES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):  # the C library is not glibc
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_ARENA_MAX, 1), (_MMAP_THRESHOLD, KEPT), (_TRIM_THRESHOLD, KEPT)):
            mallopt(option, value)


def mind_forks() -> None:
    """A process forked from one that has used JAX: its threads are not copied, and a computation may wait for them.

    JAX warns of every fork. Where it works for programs of another framework, most forks are workers that never
    touch it (a `DataLoader`'s): nothing is said of them, and JAX in the child raises.

    In the place of JAX's own warning, unless the program has started JAX itself: then that one stays.
    """
    if getattr(xla_bridge, "_at_fork_handler_installed", True):
        return
    xla_bridge._at_fork_handler_installed = True
    os.register_at_fork(after_in_child=_refuse)


def _refuse() -> None:
    if not xla_bridge._backends:
        return
    jax.config.update("jax_disable_jit", True)  # a compiled program would run without Python
    Primitive.bind = _bind  # type: ignore[method-assign]


def _bind(self: Any, *args: Any, **params: Any) -> Any:
    raise RuntimeError(
        f"Cannot use JAX ({self}) in a forked subprocess: it was in use before the fork, and its threads are not"
        " copied. Start processes with the 'spawn' method (multiprocessing_context='spawn' of a DataLoader), or leave"
        " JAX to the process that started it."
    )
