"""Values that branches keep for their derivatives, in TensorFlow's optionals: other shapes in each branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.frontends.tensorflow.loop_carry import abstractly
from tensorgraft.frontends.tensorflow.residuals import flattened
from tensorgraft.frontends.tensorflow.values import EitherOptional, OptionalValue, lifted
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

_KINDS = (OptionalValue, EitherOptional)


def of_side(x: Any, side: int) -> Any:
    """Return the part of a kept value that the branch `side` of the derivative sees."""
    return (x.yes, x.no)[side] if isinstance(x, EitherOptional) else x


class KeptOfBranches:
    """Optionals among the results of two branches: each branch gives the arrays of its own, and zeros for the other's.

    Arguments:
        branches: functions of a backend and of operands, for true and false; none where they have no optionals.
    """

    def __init__(
        self, xp: Backend, branches: Sequence[Callable[[Backend, list[Any]], list[Any]]], operands: Sequence[Any]
    ) -> None:
        self.xp = xp
        self.positions: list[int] = []
        self._specs: list[list[Any]] = [[], []]
        self._likes: list[list[Any]] = [[], []]
        self._counts: list[list[int]] = [[], []]
        for side, branch in enumerate(branches):
            operands_of_side = [of_side(x, side) for x in operands]
            abstract, outputs = abstractly(xp, branch, operands_of_side)
            self.positions = [i for i, x in enumerate(outputs) if isinstance(x, _KINDS)]
            if not self.positions:
                return
            self._specs[side] = [a for i in self.positions for a in flattened(abstract, outputs[i])[1]]

    def others(self, outputs: Sequence[Any]) -> list[Any]:
        return [x for i, x in enumerate(outputs) if i not in self.positions]

    def arrays(self, side: int, outputs: Sequence[Any]) -> list[Array]:
        xp = self.xp
        parts = [flattened(xp, outputs[i]) for i in self.positions]
        self._likes[side] = [like for like, _ in parts]
        branch_arrays = [lifted(xp, a) for _, arrays in parts for a in arrays]
        zeros = [xp.zeros(spec.shape, spec.dtype) for spec in self._specs[1 - side]]
        return [*branch_arrays, *zeros] if side == 0 else [*zeros, *branch_arrays]

    def together(self, unkept: Sequence[Any], arrays: Sequence[Array]) -> list[Any]:
        """Return all results, with those that the branches keep in their positions."""
        if not self.positions:
            return list(unkept)
        remaining = iter(arrays)
        if_true, if_false = ([like.value(remaining) for like in likes] for likes in self._likes)
        kept_values = dict(zip(self.positions, map(EitherOptional, if_true, if_false), strict=True))
        rest = iter(unkept)
        return [kept_values[i] if i in kept_values else next(rest) for i in range(len(unkept) + len(kept_values))]
