"""Derivatives and batching of functions of arrays.

A function is given as (backend, *arrays) -> a tuple of arrays: the backend that it gets computes the transform, and is
the framework's own where the framework transforms, else one that keeps a tape (`hub.tape.ByTape`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

Function = Callable[..., Sequence[Array]]  # (backend, *arrays) -> arrays
# (backend, arguments, results, cotangents of the results) -> cotangents of the arguments, None where they are zero
Backward = Callable[[Any, Sequence[Array], Sequence[Array], Sequence[Array]], Sequence[Array | None]]
# (backend, arguments, results, tangents of the arguments) -> tangents of the results
Forward = Callable[[Any, Sequence[Array], Sequence[Array], Sequence[Array]], Sequence[Array]]

_NONE = "{} has no derivatives: a backend whose framework has none derives from tensorgraft.hub.tape.ByTape, too"


class Transforms:
    def vjp(
        self, fn: Function, /, *primals: Array
    ) -> tuple[tuple[Array, ...], Callable[[Sequence[Array]], tuple[Array, ...]]]:
        """Return (results, the pullback from cotangents of all results to cotangents of all primals). Primals are
        inexact; cotangents of results that are not are ignored."""
        raise NotImplementedError(_NONE.format(self))

    def jvp(
        self, fn: Function, primals: Sequence[Array], tangents: Sequence[Array], /
    ) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return (results, their tangents; of results that are not inexact, zeros of their own dtype)."""
        raise NotImplementedError(_NONE.format(self))

    def vmap(self, fn: Function, /, *arrays: Array) -> tuple[Array, ...]:
        """Apply `fn` to every slice along the first axis of the arrays, which have the same extent there, and stack the
        results.

        Written once as a loop; frameworks that batch programs override it.
        """
        n = self.shape(arrays[0])[0]
        rows = [tuple(self.unstack(x)) for x in arrays]
        rows_out = [tuple(fn(self, *(row[i] for row in rows))) for i in range(n)]
        return tuple(self.stack(list(column)) for column in zip(*rows_out, strict=True))

    def custom_vjp(
        self, fn: Function, backward: Backward, forward: Forward | None = None, /, *arrays: Array
    ) -> tuple[Array, ...]:
        """Call `fn(self, *arrays)`, whose derivative is given by a rule instead of by its operations.

        Rules are called with the backend of the level outside of the derivative that is computed, on which arguments
        and results have derivatives of their own: a rule in terms of `custom_vjp` itself has all higher derivatives.
        Cotangents and tangents of what is not inexact are zeros and ignored. Here, where no derivative is computed,
        `fn` alone counts.

        Arguments:
            backward: linear in the cotangents.
            forward: linear in the tangents; None: `backward` transposed, at the price of calling it.
        """
        return tuple(fn(self, *arrays))


def transposed(backward: Backward) -> Forward:
    """Return the forward rule that follows from a backward rule."""

    def forward(
        xp: Any, arguments: Sequence[Array], results: Sequence[Array], tangents: Sequence[Array]
    ) -> tuple[Array, ...]:
        smooth = [k for k, r in enumerate(results) if dtypes.is_inexact(xp.dtype_of(r))]
        inexact = [k for k, x in enumerate(arguments) if dtypes.is_inexact(xp.dtype_of(x))]

        def run(inner: Any, *cotangents: Array) -> list[Array]:
            known = dict(zip(smooth, cotangents, strict=True))
            seeds = [known[k] if k in known else inner.zeros_like(inner.lifted(r)) for k, r in enumerate(results)]
            ins, outs = ([inner.lifted(x) for x in xs] for xs in (arguments, results))
            gradients = backward(inner, ins, outs, seeds)
            return [inner.zeros_like(ins[k]) if (g := gradients[k]) is None else g for k in inexact]

        _, pullback = xp.vjp(run, *[xp.zeros_like(results[k]) for k in smooth])
        moved = dict(zip(smooth, pullback([tangents[k] for k in inexact]), strict=True))
        return tuple(moved[k] if k in moved else xp.zeros_like(r) for k, r in enumerate(results))

    return forward
