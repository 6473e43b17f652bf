"""Control flow, and primitives that say something about a value and compute nothing."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub.backend import Backend

Array = Any


@rule("stop_gradient", "copy", "copy_p", "name", "optimization_barrier_single")
def identity(xp: Backend, x: Array, **_: Any) -> Array:
    return x
