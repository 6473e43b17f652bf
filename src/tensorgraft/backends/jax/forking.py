"""A process forked from one that has used JAX: its threads are not copied, and a computation may wait for them.

JAX warns of every fork. Where it works for programs of another framework, most forks are workers that never touch it (a
`DataLoader`'s): nothing is said of them, and JAX in the child raises.
"""

from __future__ import annotations

import os
from typing import Any

import jax
from jax._src import core, xla_bridge


def install() -> None:
    """In the place of JAX's own warning, unless the program has started JAX itself: then that one stays."""
    if getattr(xla_bridge, "_at_fork_handler_installed", True):
        return
    xla_bridge._at_fork_handler_installed = True
    os.register_at_fork(after_in_child=_refuse)


def _refuse() -> None:
    if not xla_bridge._backends:
        return
    jax.config.update("jax_disable_jit", True)  # what is compiled would run without Python
    core.Primitive.bind = _bind  # type: ignore[method-assign]


def _bind(self: Any, *args: Any, **params: Any) -> Any:
    raise RuntimeError(
        f"Cannot use JAX ({self}) in a forked subprocess: it was in use before the fork, and its threads are not"
        " copied. Start processes with the 'spawn' method (multiprocessing_context='spawn' of a DataLoader), or leave"
        " JAX to the process that started it."
    )
