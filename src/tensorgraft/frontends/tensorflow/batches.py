"""Functions over batches: as TensorFlow vectorises them, or row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorgraft.errors import DerivativeError
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.interchange import Differentiable

Array = Any
Axes = tuple[int | None, ...]


@dataclass(frozen=True)
class RowByRow:
    """`function` of each row of the arguments (`Differentiable`).

    Arguments:
        axes: where rows of the arguments are; None for one that all share, 0 for those behind the end.
        size: how many rows there are.
        ends: where rows of the results go, in the same way; None for results that are summed.
    """

    function: Differentiable
    axes: Axes
    size: int
    ends: Axes = ()

    def _row(self, xp: Backend, arrays: Sequence[Array], axes: Axes, i: int) -> list[Array]:
        places = (*axes, *[0] * (len(arrays) - len(axes)))
        return [
            x if axis is None else xp.squeeze(xp.take_slice(x, axis, i, i + 1), axis)
            for x, axis in zip(arrays, places, strict=True)
        ]

    def _joined(self, xp: Backend, rows: Sequence[Sequence[Array]], ends: Axes) -> list[Array]:
        out = []
        for k, parts in enumerate(zip(*rows, strict=True)):
            axis = ends[k] if k < len(ends) else 0
            total = parts[0]
            for x in parts[1:] if axis is None else ():
                total = xp.add(total, x)
            out.append(total if axis is None else xp.stack(list(parts), axis=axis))
        return out

    def primal(self, xp: Backend, arrays: Sequence[Array]) -> Sequence[Array]:
        rows = [self.function.primal(xp, self._row(xp, arrays, self.axes, i)) for i in range(self.size)]
        return self._joined(xp, rows, self.ends)

    def forward(
        self, xp: Backend, arrays: Sequence[Array], wanted: tuple[int, ...]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        return self.primal(xp, arrays), list(arrays)

    def backward(
        self, xp: Backend, residuals: Sequence[Array], cotangents: Sequence[Array], wanted: tuple[int, ...]
    ) -> Sequence[Array]:
        rows = []
        for i in range(self.size):
            _, kept = self.function.forward(xp, self._row(xp, residuals, self.axes, i), wanted)
            incoming = self._row(xp, cotangents, self.ends, i)
            rows.append(self.function.backward(xp, kept, incoming, wanted))
        return self._joined(xp, rows, tuple(self.axes[i] for i in wanted))

    def pullback(self, wanted: tuple[int, ...]) -> RowByRow:
        ends = tuple(self.axes[i] for i in wanted)
        return RowByRow(self.function.pullback(wanted), (*self.axes, *self.ends), self.size, ends)

    def pushforward(self, wanted: tuple[int, ...]) -> RowByRow:
        axes = (*self.axes, *(self.axes[i] for i in wanted))
        return RowByRow(self.function.pushforward(wanted), axes, self.size, self.ends)

    def batched(self, axes: Axes, size: int) -> RowByRow:
        return RowByRow(self, axes, size)


@dataclass(frozen=True)
class Vectorised:
    """A function that TensorFlow has vectorised, whose derivatives it may not have: calls in it have none. Then they
    are those of its rows."""

    function: Differentiable
    rows: RowByRow
    _by: dict[tuple[int, ...], Differentiable] = field(default_factory=dict)

    def primal(self, xp: Backend, arrays: Sequence[Array]) -> Sequence[Array]:
        return self.function.primal(xp, arrays)

    def forward(
        self, xp: Backend, arrays: Sequence[Array], wanted: tuple[int, ...]
    ) -> tuple[Sequence[Array], Sequence[Array]]:
        try:
            return self._by.setdefault(wanted, self.function).forward(xp, arrays, wanted)
        except DerivativeError:
            self._by[wanted] = self.rows
            return self.rows.forward(xp, arrays, wanted)

    def backward(
        self, xp: Backend, residuals: Sequence[Array], cotangents: Sequence[Array], wanted: tuple[int, ...]
    ) -> Sequence[Array]:
        return self._by[wanted].backward(xp, residuals, cotangents, wanted)

    def pullback(self, wanted: tuple[int, ...]) -> Vectorised | RowByRow:
        rows = self.rows.pullback(wanted)
        try:
            return Vectorised(self.function.pullback(wanted), rows)
        except DerivativeError:
            return rows

    def pushforward(self, wanted: tuple[int, ...]) -> Vectorised | RowByRow:
        rows = self.rows.pushforward(wanted)
        try:
            return Vectorised(self.function.pushforward(wanted), rows)
        except DerivativeError:
            return rows

    def batched(self, axes: Axes, size: int) -> Differentiable:
        return self.function.batched(axes, size)
