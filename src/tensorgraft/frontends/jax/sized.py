"""A program of JAX for arrays of several sizes at once, while a framework traces one (see `extents`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from tensorgraft.frontends.jax import extents
from tensorgraft.frontends.jax.keys import is_key_dtype
from tensorgraft.frontends.jax.program import JaxprProgram, traced
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.precision import current

Place = tuple[int, int]  # an argument, and an axis of it


class NeedsNumbers(Exception):
    """A program does something with an extent that is done with numbers only."""


def native(
    xp: Backend, fn: Callable[..., Sequence[Any]], shapes: Sequence[Any], arrays: Sequence[Array]
) -> tuple[core.ClosedJaxpr, Callable[..., tuple[Array, ...]]]:
    """Return the jaxpr, and a function of arrays of `xp` whose shapes have names for some extents. Raises
    NeedsNumbers."""
    try:
        specs, positions = extents.symbolic(shapes)
        closed = traced(fn, specs)
        function = Sized(JaxprProgram(closed, compiled=False, region=current()), positions)
        function.try_out(xp, arrays)
    except Exception as error:  # an error of JAX, a rule or the backend, which cannot handle symbols
        raise NeedsNumbers(str(error)) from error
    return closed, xp.differentiable(function)


class Sized:
    """See `hub.interchange.Differentiable`."""

    def __init__(self, program: JaxprProgram, positions: dict[str, Place]) -> None:
        self._program, self._positions = program, positions
        self._extents: extents.Extents = {}

    def _known(self, xp: Backend, arrays: Sequence[Array]) -> Any:
        self._extents = {name: xp.shape(arrays[i])[axis] for name, (i, axis) in self._positions.items()}
        return extents.known(self._extents)

    def primal(self, xp: Backend, arrays: Sequence[Array]) -> Sequence[Array]:
        with self._known(xp, arrays):
            return self._program.primal(xp, arrays)

    def forward(
        self, xp: Backend, arrays: Sequence[Array], argnums: tuple[int, ...]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        with self._known(xp, arrays):
            return self._program.forward(xp, arrays, argnums)

    def backward(
        self, xp: Backend, residuals: Sequence[Array], cotangents: Sequence[Array], argnums: tuple[int, ...]
    ) -> Sequence[Array]:
        with extents.known(self._extents):  # the trace that made the residuals
            return self._program.backward(xp, residuals, cotangents, argnums)

    def pullback(self, argnums: tuple[int, ...]) -> Sized:
        return Sized(self._program.pullback(argnums), self._positions)

    def pushforward(self, argnums: tuple[int, ...]) -> Sized:
        return Sized(self._program.pushforward(argnums), self._positions)

    def batched(self, axes: tuple[int | None, ...], size: int) -> Sized:
        def moved(position: Place) -> Place:
            i, axis = position
            new = axes[i]
            return i, axis if new is None or new > axis else axis + 1

        return Sized(self._program.batched(axes, size), {name: moved(p) for name, p in self._positions.items()})

    def try_out(self, xp: Backend, arrays: Sequence[Array]) -> None:
        argnums = tuple(i for i, s in enumerate(self._program.specs) if _is_inexact(s.dtype))
        with xp.native_scope():
            self.primal(xp, arrays)
            if argnums:
                results, residuals = self.forward(xp, arrays, argnums)
                smooth = [xp.zeros(xp.shape(r), xp.dtype_of(r)) for r in results if _is_inexact(xp.dtype_of(r))]
                self.backward(xp, residuals, smooth, argnums)


def _is_inexact(dtype: Any) -> bool:
    return not is_key_dtype(dtype) and jax.numpy.issubdtype(np.dtype(dtype), np.inexact)
