"""Programs traced by JAX: a jaxpr whose captured constants have become inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from tensorgraft.backends.jax.backend import JaxBackend

Array = Any


class JaxProgram:
    """`jax.make_jaxpr` of a function without arguments: every array that it used is a constant of the jaxpr."""

    def __init__(self, backend: JaxBackend, fn: Callable[[], Sequence[Array]]) -> None:
        self._backend = backend
        with backend.scope():
            closed = jax.make_jaxpr(lambda: tuple(fn()))()
        self._jaxpr = closed.jaxpr
        self.captured: list[Array] = list(closed.consts)

    @property
    def size(self) -> int:
        return len(self._jaxpr.eqns)

    def compile(self, donate: Sequence[int] = ()) -> Callable[..., tuple[Array, ...]]:
        jaxpr = self._jaxpr
        return self._backend.compile(lambda *captured: tuple(jax.core.eval_jaxpr(jaxpr, captured)), donate)
