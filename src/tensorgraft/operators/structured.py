"""Solving by the structure of an operator that is made of others, without its matrix."""

from __future__ import annotations

from typing import Any

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators import blocks, composed, elementary, lowrank
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.solvers import (
    LU,
    QR,
    Cholesky,
    Diagonal,
    LinearSolver,
    Solved,
    Triangular,
    Tridiagonal,
    finite,
)


def _square(operator: LinearOperator) -> bool:
    return operator.shape[0] == operator.shape[1]


class Structured(LinearSolver):
    """Products, Kronecker products and blocks part by part, low rank by Woodbury's identity, unitary ones by the
    adjoint; each part by the direct solver that suits it."""

    name = "structured"
    failure = "a part of the operator is singular to working precision"

    @staticmethod
    def suits(operator: LinearOperator) -> bool:
        if "unitary" in operator.tags:
            return True
        if isinstance(operator, composed.TaggedLinearOperator):
            return Structured.suits(operator.operator)
        if isinstance(operator, composed.ScaledLinearOperator | composed.ConjugateLinearOperator):
            return _square(operator)
        if operator.inverse_of is not None or isinstance(operator, elementary.IdentityLinearOperator):
            return _square(operator)
        if isinstance(operator, composed.ProductLinearOperator | blocks.KroneckerLinearOperator):
            return all(map(_square, operator.operators))
        if isinstance(operator, blocks.BlockDiagonalLinearOperator):
            return all(map(_square, operator.operators))
        return isinstance(operator, lowrank.LowRankLinearOperator) and operator.base is not None

    def check(self, operator: LinearOperator) -> None:
        super().check(operator)
        if not Structured.suits(operator):
            raise ValueError(
                f"linear_solve: structured requires an operator composed of square ones, got {type(operator).__name__}"
            )

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        x = self._solved(operator, b)
        return Solved(x, finite(x), 1)

    def _part(self, operator: LinearOperator, b: Array) -> Array:
        solver = best_solver(operator)
        if isinstance(solver, Structured):
            return self._solved(operator, b)
        solved = solver.solve(operator, b)
        return xp.where(solved.converged, solved.x, xp.full_like(solved.x, float("nan")))

    def _solved(self, operator: LinearOperator, b: Array) -> Array:
        if "unitary" in operator.tags:
            return operator.H.mm_flat(b)
        if isinstance(operator, composed.TaggedLinearOperator):
            return self._part(operator.operator, b)
        if isinstance(operator, composed.ScaledLinearOperator):
            return self._part(operator.operator, _divide(b, operator.scalar))
        if isinstance(operator, composed.ConjugateLinearOperator):
            return xp.conj(self._part(operator.operator, xp.conj(b)))
        if operator.inverse_of is not None:
            return operator.inverse_of.mm_flat(b)
        if isinstance(operator, composed.ProductLinearOperator):
            for part in operator.operators:
                b = self._part(part, b)
            return b
        if isinstance(operator, blocks.KroneckerLinearOperator):
            return operator.by_factors(b, self._part)
        if isinstance(operator, blocks.BlockDiagonalLinearOperator):
            return operator.by_blocks(b, self._part)
        if isinstance(operator, lowrank.LowRankLinearOperator):
            return operator.woodbury(b, self._part)
        return b  # the identity


def _divide(b: Array, scalar: Any) -> Array:
    return b / (xp.astype(scalar, b.dtype) if isinstance(scalar, Array) else scalar)


def best_solver(operator: LinearOperator) -> LinearSolver:
    """Return the direct solver that suits an operator best."""
    tags = operator.tags
    if "diagonal" in tags:
        return Diagonal()
    if Structured.suits(operator):
        return Structured()
    if "tridiagonal" in tags:
        return Tridiagonal()
    if tags & {"lower_triangular", "upper_triangular"}:
        return Triangular()
    if tags & {"positive_semidefinite", "negative_semidefinite"}:
        return Cholesky()
    return LU() if operator.shape[0] == operator.shape[1] else QR()
