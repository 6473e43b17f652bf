"""The inverse of a linear operator, whose products solve linear systems."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.composed import Reversed
from tensorgraft.operators.solving import Solution, as_solver, linear_solve, refuse, solve_columns


class InverseLinearOperator(Reversed):
    """The inverse (or pseudo-inverse) of an operator: `mv` is `linear_solve`.

    Arguments: as of `linear_solve`.
    """

    _fields = ("operator", "solver", "throw")
    _static = ("throw",)

    def __init__(self, operator: LinearOperator, solver: Any = None, *, throw: bool = True, **options: Any) -> None:
        super().__init__(operator)
        self.solver = as_solver(solver, operator, options)
        self.throw = throw

    @property
    def inverse_of(self) -> LinearOperator:
        return self.operator

    @property
    def _tags(self) -> Iterable[str]:
        return tags_.of_inverse(self.operator.tags)

    def mv(self, x: Any, /) -> Any:
        return linear_solve(self.operator, x, self.solver, throw=self.throw).value

    def mm(self, x: Any, /) -> Any:
        leaves = self._in.checked("InverseLinearOperator.mm", x, columns=True)
        return self._out.unravel(self.mm_flat(self._in.ravel(leaves, leaves[0].shape[-1])))

    def _flat(self, x: Array) -> Array:
        if not x.shape[1]:
            return xp.zeros((self.out_size, 0), dtype=self.dtype, device=self.device)
        columns, error, converged, steps = solve_columns(self.operator, x, self.solver)
        if self.throw:
            solution = Solution(columns, xp.max(error), xp.all(converged), steps, self.solver.name)
            refuse(solution, self.solver, self.operator)
        return columns

    @property
    def T(self) -> LinearOperator:
        if "symmetric" in self.tags:
            return self
        return InverseLinearOperator(self.operator.T, self.solver.transposed(), throw=self.throw)

    @property
    def H(self) -> LinearOperator:
        if "hermitian" in self.tags:
            return self
        solver = self.solver.transposed().conjugated()
        return InverseLinearOperator(self.operator.H, solver, throw=self.throw)
