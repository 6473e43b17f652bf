"""Functions over batches: as TensorFlow vectorises them, or row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.interchange import Differentiable

Axes = tuple[int | None, ...]


class _Vectorised(Differentiable, Protocol):
    """A function that may have a vectorised form, which takes a batch of each argument: a program or a `Batched`."""

    def vectorised(self, axes: Axes, size: int) -> Differentiable | None: ...
    def pullback(self, argnums: tuple[int, ...]) -> _Vectorised: ...
    def pushforward(self, argnums: tuple[int, ...]) -> _Vectorised: ...


@dataclass(frozen=True)
class Batched:
    """`function` applied to each row of the arguments (`Differentiable`).

    Its derivatives are the function's derivatives applied to each row, and not derivatives of the vectorised function,
    because TensorFlow vectorises single operations and ignores custom gradients.

    Arguments:
        axes: the batch axis of each argument, or None for an argument that all rows share; 0 for further arguments.
        size: the number of rows.
        ends: the batch axis of each result, or None for a result that is summed over the rows; 0 for further results.
    """

    function: _Vectorised
    axes: Axes
    size: int
    ends: Axes = ()

    def primal(self, xp: Backend, arrays: Sequence[Array]) -> Sequence[Array]:
        axes = (*self.axes, *[0] * (len(arrays) - len(self.axes)))
        vectorised = self.function.vectorised(axes, self.size)
        if vectorised is not None:
            return [self._joined(xp, x, k) for k, x in enumerate(vectorised.primal(xp, arrays))]
        rows = [self.function.primal(xp, self._row(xp, arrays, axes, i)) for i in range(self.size)]
        return [self._joined(xp, xp.stack(list(x), axis=0), k) for k, x in enumerate(zip(*rows, strict=True))]

    def _row(self, xp: Backend, arrays: Sequence[Array], axes: Axes, i: int) -> list[Array]:
        return [
            x if axis is None else xp.squeeze(xp.take_slice(x, axis, i, i + 1), axis)
            for x, axis in zip(arrays, axes, strict=True)
        ]

    def _joined(self, xp: Backend, x: Array, k: int) -> Array:
        """Return result `k`, whose rows are along axis 0, with them along the axis of `ends`, or summed."""
        axis = self.ends[k] if k < len(self.ends) else 0
        if axis is None:
            return xp.sum(x, axis=0)
        return xp.permute_dims(x, (*range(1, axis + 1), 0, *range(axis + 1, xp.ndim(x)))) if axis else x

    def vectorised(self, axes: Axes, size: int) -> None:
        return None

    def forward(
        self, xp: Backend, arrays: Sequence[Array], argnums: tuple[int, ...]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        return self.primal(xp, arrays), list(arrays)

    def backward(
        self, xp: Backend, residuals: Sequence[Array], cotangents: Sequence[Array], argnums: tuple[int, ...]
    ) -> Sequence[Array]:
        return self.pullback(argnums).primal(xp, [*residuals, *cotangents])

    def pullback(self, argnums: tuple[int, ...]) -> Batched:
        ends = tuple(self.axes[i] for i in argnums)
        return Batched(self.function.pullback(argnums), (*self.axes, *self.ends), self.size, ends)

    def pushforward(self, argnums: tuple[int, ...]) -> Batched:
        axes = (*self.axes, *(self.axes[i] for i in argnums))
        return Batched(self.function.pushforward(argnums), axes, self.size, self.ends)

    def batched(self, axes: Axes, size: int) -> Batched:
        return Batched(self, axes, size)
