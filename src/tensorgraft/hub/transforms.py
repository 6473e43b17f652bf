"""Derivatives and batching of functions of arrays.

A function is given as (backend, *arrays) -> a tuple of arrays: the backend that it gets computes the transform, and is
the framework's own where the framework transforms, else one that keeps a tape.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Array = Any
Function = Callable[..., Sequence[Array]]  # (backend, *arrays) -> arrays


class Transforms:
    def vjp(
        self, fn: Function, /, *primals: Array
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
        """(results, pullback: cotangents of all results -> cotangents of all primals). Primals are inexact; cotangents
        of results that are not are ignored."""
        from tensorgraft.hub.tape import vjp

        xp: Any = self
        return vjp(xp, fn, primals)

    def jvp(
        self, fn: Function, primals: Sequence[Array], tangents: Sequence[Array], /
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """(results, their tangents; of results that are not inexact, zeros of their own dtype)."""
        from tensorgraft.hub.tape import jvp

        xp: Any = self
        return jvp(xp, fn, primals, tangents)

    def vmap(self, fn: Function, /, *arrays: Array) -> tuple[Array, ...]:
        """`fn` of every slice along the first axis of the arrays, which have one of the same extent; results stacked.

        Written once as a loop; frameworks that batch programs override it.
        """
        n = self.shape(arrays[0])[0]
        rows = [tuple(self.unstack(x)) for x in arrays]
        made = [tuple(fn(self, *(row[i] for row in rows))) for i in range(n)]
        return tuple(self.stack(list(column)) for column in zip(*made, strict=True))
