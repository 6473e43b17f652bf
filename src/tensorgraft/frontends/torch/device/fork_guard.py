"""A process forked from one that has used a backend with threads of its own: the backend refuses, instead of hanging.

A fork copies the memory of a process and one of its threads. XLA's threads are missing in the copy, and a computation
waits for them for ever. PyTorch's CUDA has the same rule.
"""

from __future__ import annotations

import os
from typing import Any

from tensorgraft.frontends.torch.core import devices
from tensorgraft.frontends.torch.core.operator import all_plans

_forked = False


def in_bad_fork() -> bool:
    """Return True in a forked process that cannot use a backend of its parent."""
    return _forked


def _after_fork() -> None:
    global _forked
    if not devices.slots.cache_info().currsize:
        return
    for slot in devices.slots():
        if "backend" in vars(slot) and slot.backend.compiles:
            _forked = True
            slot.backend.scope = _refusal(slot.name)  # type: ignore[method-assign]
    if _forked:
        for plans in all_plans:  # what was compiled before does not ask `scope` of now
            plans.clear()


def _refusal(name: str) -> Any:
    def scope() -> Any:
        raise RuntimeError(
            f"Cannot use the backend {name!r} in a forked subprocess: it was in use before the fork, and its threads"
            " are not copied. Return CPU tensors from the workers of a DataLoader, or start processes with the"
            " 'spawn' method (multiprocessing_context='spawn')."
        )

    return scope


def register() -> None:
    os.register_at_fork(after_in_child=_after_fork)
