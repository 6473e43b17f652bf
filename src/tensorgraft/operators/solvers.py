"""Solvers of A x = b: the base class, and the direct solvers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.operators import dense
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.pytrees import register
from tensorgraft.transforms.control_flow import cond


@dataclass
class Solved:
    """The solution, and for each of its columns whether it converged."""

    x: Array  # (n, k)
    converged: Array  # bool (k,)
    steps: Array | int  # steps of the column that took the most


class LinearSolver(ABC):
    """Solves A x = b for several columns at once. A pytree: its operators' arrays are arguments of a compiled function.

    A subclass writes `solve`, and `transposed` where it has operators in it.
    """

    name: ClassVar[str]
    least_squares: ClassVar[bool] = False  # solves also where there is no solution, or several
    failure: ClassVar[str] = "the matrix is singular to working precision"  # why x may be infinite or NaN
    _operators: ClassVar[tuple[str, ...]] = ()  # attributes that are pytrees of arrays

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls, _flatten, _unflatten)

    @abstractmethod
    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        """Solve for a right-hand side `b` (m, k), ravelled."""

    def check(self, operator: LinearOperator) -> None:
        """Raises ValueError where the solver is not for such operators."""
        if not self.least_squares and operator.shape[0] != operator.shape[1]:
            raise ValueError(
                f"linear_solve: {self.name} requires a square operator, this one has shape {operator.shape}: use"
                " 'qr', 'svd', 'lsmr' or 'lsqr' for the least squares solution"
            )

    def transposed(self) -> LinearSolver:
        """Return the solver of the transposed operator."""
        return self

    def conjugated(self) -> LinearSolver:
        """Return the solver of the conjugate operator."""
        return self


def _flatten(solver: LinearSolver) -> tuple[list[Any], Any, tuple[str, ...]]:
    names = tuple(solver._operators)
    rest = tuple(sorted((k, v) for k, v in vars(solver).items() if k not in names))
    return [getattr(solver, n) for n in names], (names, rest), names


def _unflatten(cls: type[LinearSolver], static_data: Any, children: Iterable[Any]) -> LinearSolver:
    names, rest = static_data
    instance = object.__new__(cls)
    for name, value in (*zip(names, children, strict=True), *rest):
        setattr(instance, name, value)
    return instance


def finite(x: Array) -> Array:
    """Say of each column whether it is finite."""
    return xp.all(xp.isfinite(x), axis=0)


# ---- direct ----------------------------------------------------------------------------------------------------------


class Diagonal(LinearSolver):
    """Divides by the diagonal."""

    name = "diagonal"

    def check(self, operator: LinearOperator) -> None:
        super().check(operator)
        _require_tag(self, operator, "diagonal")

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        x = b / xp.expand_dims(operator.diagonal(), axis=1)
        return Solved(x, finite(x), 1)


class Tridiagonal(LinearSolver):
    """Cyclic reduction and one step of refinement; where that is not accurate, elimination with pivoting."""

    name = "tridiagonal"

    def check(self, operator: LinearOperator) -> None:
        super().check(operator)
        _require_tag(self, operator, "tridiagonal")

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        lower, diagonal, upper = bands(operator)
        x = dense.tridiagonal_solve(lower, diagonal, upper, b)
        x = x + dense.tridiagonal_solve(lower, diagonal, upper, b - operator.mm_flat(x))
        largest = _sup(diagonal) + _sup(lower) + _sup(upper)
        error = dense.norms(b - operator.mm_flat(x))
        bound = 100 * float(xp.finfo(x.dtype).eps) * (largest * dense.norms(x) + dense.norms(b))
        x = cond(
            xp.all(xp.logical_and(finite(x), error <= bound)),
            lambda x: x,
            lambda _: dense.pivoted_tridiagonal_solve(lower, diagonal, upper, b),
            x,
        )
        return Solved(x, finite(x), 1)


def _sup(x: Array) -> Array:
    return xp.max(xp.abs(x)) if x.size else xp.zeros((), dtype=dtypes.real_dtype(x.dtype), device=x.device)


def bands(operator: LinearOperator) -> tuple[Array, Array, Array]:
    """Return (below, on, above) the diagonal of a tridiagonal operator, of three products."""
    known = getattr(operator, "bands", None)
    if known is not None:
        return known
    n = operator.in_size
    index = xp.arange(n, device=operator.device)
    colours = xp.astype(xp.expand_dims(index % 3, axis=1) == xp.arange(3, device=operator.device), operator._in.dtype)
    out = operator.mm_flat(colours)  # every row has one element of each colour

    def band(shift: int, rows: slice) -> Array:
        where = xp.expand_dims((index + shift) % 3, axis=1)
        return xp.squeeze(xp.take_along_axis(out, where, axis=1), axis=1)[rows]

    return band(-1, slice(1, None)), band(0, slice(None)), band(1, slice(n - 1))


class Triangular(LinearSolver):
    """Substitution."""

    name = "triangular"

    def check(self, operator: LinearOperator) -> None:
        super().check(operator)
        if not operator.tags & {"lower_triangular", "upper_triangular"}:
            _require_tag(self, operator, "lower_triangular")

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        x = dense.triangular_solve(
            operator.as_matrix(),
            b,
            lower="lower_triangular" in operator.tags,
            unit_diagonal="unit_diagonal" in operator.tags,
        )
        return Solved(x, finite(x), 1)


class Cholesky(LinearSolver):
    """A = L L^H of a positive definite matrix, or -A of a negative definite one."""

    name = "cholesky"
    failure = "the matrix is not definite, as its tag says"

    def check(self, operator: LinearOperator) -> None:
        super().check(operator)
        definite_sign(self, operator)

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        sign = definite_sign(self, operator)
        lower = xp.linalg.cholesky(operator.as_matrix() * sign)
        x = dense.triangular_solve(lower, dense.triangular_solve(lower, b, lower=True), lower=True, adjoint=True)
        return Solved(x * sign, finite(x), 1)


class LU(LinearSolver):
    """P A = L U with partial pivoting."""

    name = "lu"

    def __init__(self) -> None:
        self.of_transpose = False  # factorises A^T: a gradient, which solves with A^T, shares the factors

    def transposed(self) -> LinearSolver:
        transposed_solver = LU()
        transposed_solver.of_transpose = not self.of_transpose
        return transposed_solver

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        matrix = (operator.T if self.of_transpose else operator).as_matrix()
        x = dense.lu_solve(matrix, b, transpose=self.of_transpose)
        return Solved(x, finite(x), 1)


class QR(LinearSolver):
    """The least squares solution of a matrix of full rank; with fewer rows than columns, the one of least norm."""

    name = "qr"
    least_squares = True
    failure = "the matrix has not full rank ('svd' does without)"

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        a = operator.as_matrix()
        if a.shape[0] >= a.shape[1]:
            q, r = xp.linalg.qr(a)
            x = dense.triangular_solve(r, xp.matmul(dense.adjoint(q), b), lower=False)
        else:
            q, r = xp.linalg.qr(dense.adjoint(a))
            x = xp.matmul(q, dense.triangular_solve(r, b, lower=False, adjoint=True))
        return Solved(x, finite(x), 1)


class SVD(LinearSolver):
    """The pseudo-inverse: least squares, and least norm among them.

    Arguments:
        rtol: singular values below `rtol` times the greatest count as zero; None: the machine's precision times the
            larger side.
    """

    name = "svd"
    least_squares = True
    failure = "the matrix has elements that are not finite"

    def __init__(self, rtol: float | None = None) -> None:
        self.rtol = rtol

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        a = operator.as_matrix()
        u, s, vh = xp.linalg.svd(a, full_matrices=False)
        rtol = float(xp.finfo(a.dtype).eps) * max(a.shape) if self.rtol is None else self.rtol
        keep = s > rtol * xp.max(s) if s.size else s > 0
        inverse = xp.where(keep, 1 / xp.where(keep, s, xp.ones_like(s)), xp.zeros_like(s))
        scaled = xp.matmul(dense.adjoint(u), b) * xp.expand_dims(xp.astype(inverse, a.dtype), axis=1)
        x = xp.matmul(dense.adjoint(vh), scaled)
        return Solved(x, finite(x), 1)


def definite_sign(solver: LinearSolver, operator: LinearOperator) -> int:
    """1 of a positive semidefinite operator, -1 of a negative one. Raises ValueError for others."""
    if "positive_semidefinite" in operator.tags:
        return 1
    if "negative_semidefinite" in operator.tags:
        return -1
    raise ValueError(
        f"linear_solve: {solver.name} requires a positive or negative semidefinite operator, this one is tagged"
        f" {_tags_of(operator)}: use TaggedLinearOperator(operator, 'positive_semidefinite') if it is, else another"
        " solver ('lu', 'gmres')"
    )


def _require_tag(solver: LinearSolver, operator: LinearOperator, tag: str) -> None:
    if tag not in operator.tags:
        raise ValueError(
            f"linear_solve: {solver.name} requires an operator tagged {tag!r}, this one is tagged {_tags_of(operator)}"
        )


def _tags_of(operator: LinearOperator) -> str:
    return "{" + ", ".join(sorted(operator.tags)) + "}"
