"""`linear_solve`: x with A x = b, by the solver that fits, differentiated implicitly."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import optree

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.checks import check
from tensorgraft.frontends.array_api.core.promotion import promote
from tensorgraft.frontends.array_api.transforms import custom
from tensorgraft.hub import dtypes
from tensorgraft.operators import dense
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.krylov import CG, GMRES
from tensorgraft.operators.lsmr import LSMR, LSQR
from tensorgraft.operators.pytrees import register
from tensorgraft.operators.solvers import LU, QR, SVD, Cholesky, Diagonal, LinearSolver, Solved, Triangular, Tridiagonal
from tensorgraft.operators.structured import Structured, best_solver

SOLVERS: dict[str, type[LinearSolver]] = {
    s.name: s for s in (Structured, Diagonal, Tridiagonal, Triangular, Cholesky, LU, QR, SVD, CG, GMRES, LSMR, LSQR)
}


class Solution:
    """The result of `linear_solve`. A pytree.

    Attributes:
        value: x, of the operator's `in_structure`.
        residual: the norm of b - A x, a 0-dimensional array (of several right-hand sides, one norm each).
        success: bool, of no dimension: the solver has done what it promises.
        num_steps: int64, of no dimension: the steps of an iterative solver, else 1.
        solver: its name.
    """

    def __init__(self, value: Any, residual: Array, success: Array, num_steps: Array, solver: str) -> None:
        self.value = value
        self.residual = residual
        self.success = success
        self.num_steps = num_steps
        self.solver = solver

    @property
    def stats(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps, "residual": self.residual, "success": self.success, "solver": self.solver}

    def __repr__(self) -> str:
        return (
            f"Solution(solver={self.solver!r}, success={self.success}, num_steps={self.num_steps},"
            f" residual={self.residual}, value={self.value})"
        )


_NAMES = ("value", "residual", "success", "num_steps")


def _flatten(solution: Solution) -> tuple[list[Any], str, tuple[str, ...]]:
    return [getattr(solution, name) for name in _NAMES], solution.solver, _NAMES


def _unflatten(cls: type[Solution], solver: str, children: Iterable[Any]) -> Solution:
    value, residual, success, steps = children
    return cls(value, residual, success, steps, solver)


register(Solution, _flatten, _unflatten)


def linear_solve(
    operator: LinearOperator, b: Any, solver: str | LinearSolver | None = None, *, throw: bool = True, **options: Any
) -> Solution:
    """Solve A x = b; the least squares solution of least norm by the solvers that give it.

    The derivative in the arrays of the operator (those that its functions close over, too) and in `b` is that of the
    equation, not of the iterations: one more solution of the transposed system.

    Arguments:
        b: a vector of the operator's `out_structure`.
        solver: a `LinearSolver`, or its name with its options. None: by the tags and the kind of the operator:
            diagonal, tridiagonal, triangular, Cholesky of definite ones, factor by factor of products, Kronecker
            products and blocks, else LU of square matrices and QR of others.
        throw: an error where there is no success; inside a compiled function when it has run.
        options: of a solver given by name: `rtol`, `atol`, `max_steps`, `preconditioner`, `restart`.

    Raises:
        ValueError: structures that differ, a solver that is not for such operators.
        CheckError: no success, with `throw`.

        linear_solve(MatrixLinearOperator(a), b).value
        linear_solve(operator, b, "cg", rtol=1e-10, preconditioner=DiagonalLinearOperator(1 / d)).value
    """
    if not isinstance(operator, LinearOperator):
        raise TypeError(f"linear_solve: expected a LinearOperator, got a {type(operator).__qualname__}")
    leaves = operator._out.checked("linear_solve", b)
    for x in leaves:
        if not dtypes.is_inexact(x.dtype):
            raise TypeError(
                f"linear_solve: the right-hand side has dtype {x.dtype}: convert it with astype(b, {operator.dtype})"
            )
    method = as_solver(solver, operator, options)
    column = xp.expand_dims(operator._out.ravel(leaves), axis=1)
    x, error, converged, steps = solve_columns(operator, column, method)
    value = operator._in.unravel(x[:, 0])
    solution = Solution(value, error[0], converged[0], steps, method.name)
    if throw:
        refuse(solution, method, operator)
    return solution


def as_solver(solver: Any, operator: LinearOperator, options: dict[str, Any]) -> LinearSolver:
    if isinstance(solver, str):
        if solver not in SOLVERS:
            raise ValueError(f"linear_solve: unknown solver {solver!r}: expected one of {', '.join(SOLVERS)}")
        solver = SOLVERS[solver](**options)
    elif options:
        raise TypeError(f"linear_solve: options ({', '.join(options)}) require a solver that is given by its name")
    if solver is None:
        solver = best_solver(operator)
    if not isinstance(solver, LinearSolver):
        raise TypeError(f"linear_solve: expected a LinearSolver or a name, got a {type(solver).__qualname__}")
    solver.check(operator)
    return solver


def refuse(solution: Solution, solver: LinearSolver, operator: LinearOperator) -> None:
    """Raise an error if the solver has failed."""
    backend = solution.success._cell.backend
    with backend.scope():
        flag = backend.logical_not(solution.success._value())
        residual_note = ""
        if not backend.is_traced(flag):
            if solution.success:
                return
            residual_note = f" The residual is {float(solution.residual):.3g} after {int(solution.num_steps)} steps."
        text = (
            f"linear_solve: {solver.name} has not solved the system of {type(operator).__name__} of shape"
            f" {operator.shape}: {solver.failure}.{residual_note} throw=False gives what there is."
        )
        check(backend, flag, text)


# ---- several right-hand sides, and the derivative --------------------------------------------------------------------


def solve_columns(operator: LinearOperator, b: Array, solver: LinearSolver) -> tuple[Array, Array, Array, Array]:
    """Return (x (n, k), norms of b - A x (k,), bool (k,), steps) for columns b (m, k)."""
    dtype = promote(operator.dtype, b.dtype)
    b = xp.astype(b, dtype, copy=False)
    cells = custom.cells_of(lambda: operator.mv(operator._in.zeros(operator.device)), (operator, b, solver))
    rule = functools.partial(_backward, cells=cells)
    tangent = functools.partial(_forward, cells=cells)
    return custom.custom_vjp("linear_solve", _solve, (operator, b, solver), rule, tangent, cells)


def _solve(operator: LinearOperator, b: Array, solver: LinearSolver) -> tuple[Array, Array, Array, Array]:
    solved: Solved = solver.solve(operator, b)
    x = xp.astype(solved.x, b.dtype, copy=False)
    error = dense.norms(b - operator.mm_flat(x))
    steps = solved.steps
    if not isinstance(steps, Array):
        steps = xp.full((), steps, dtype=xp.int64, device=b.device)
    return x, error, solved.converged, steps


def _solution(operator: LinearOperator, b: Array, solver: LinearSolver) -> Array:
    """Inside a rule: not a number where there is no success."""
    x, _, converged, _ = solve_columns(operator, b, solver)
    return xp.where(converged, x, xp.full_like(x, float("nan")))


def _conj(x: Array) -> Array:
    return xp.conj(x) if dtypes.is_complex(x.dtype) else x


def _of_adjoint(operator: LinearOperator, y: Array) -> Array:
    return operator.H.mm_flat(y)


def _times(operator: LinearOperator, x: Array) -> Array:
    return operator.mm_flat(x)


def _backward(args: tuple[Any, ...], out: Any, cotangent: Any, *, cells: list[Any]) -> list[Array | None]:
    """Return the cotangents of x = A^+ b, by the transpose of

        dx = A^+ (db - dA x) + A^+ A^+H dA^H (b - A x) + (I - A^+ A) dA^H A^+H x

    (Golub and Pereyra 1973), whose second and third term vanish where A is invertible.
    """
    operator, b, solver = args
    x, ct = out[0], cotangent[0]
    transposed = solver.transposed()
    w = _solution(operator.T, ct, transposed)  # A^+T ct
    parts = [custom.cotangents_of(_times, (operator, x), -w, cells)]
    if solver.least_squares:
        u = _conj(_solution(operator, _conj(w), solver))  # conj(A^+) w
        residual = b - operator.mm_flat(x)
        parts.append(custom.cotangents_of(_of_adjoint, (operator, residual), u, cells))
        v = ct - operator.T.mm_flat(w)
        y = _solution(operator.H, x, transposed.conjugated())
        parts.append(custom.cotangents_of(_of_adjoint, (operator, y), v, cells))
    count = len([leaf for leaf in optree.tree_leaves(operator) if isinstance(leaf, Array)])
    rest = len([leaf for leaf in optree.tree_leaves(solver) if isinstance(leaf, Array)])
    of_operator = [_total(column) for column in zip(*(p[:count] for p in parts), strict=True)]
    of_cells = [_total(column) for column in zip(*(p[count + 1 :] for p in parts), strict=True)]
    return [*of_operator, w, *([None] * rest), *of_cells]


def _total(terms: Iterable[Array | None]) -> Array | None:
    known = [t for t in terms if t is not None]
    return functools.reduce(lambda a, b: a + b, known) if known else None


def _forward(args: tuple[Any, ...], out: Any, tangents: Any, of_cells: Any, *, cells: list[Any]) -> Any:
    operator, b, solver = args
    x, error, converged, steps = out
    count = len([leaf for leaf in optree.tree_leaves(operator) if isinstance(leaf, Array)])
    of_operator, db = list(tangents[:count]), tangents[count]

    def moved(fn: Any, v: Array) -> Array:
        return custom.tangent_of(fn, (operator, v), [*of_operator, xp.zeros_like(v)], cells, of_cells)

    dx = _solution(operator, db - moved(_times, x), solver)
    if solver.least_squares:
        adjoint_solver = solver.transposed().conjugated()
        y = _solution(operator.H, x, adjoint_solver)
        d = moved(_of_adjoint, y)
        dx = dx + d - _solution(operator, operator.mm_flat(d), solver)
        residual = b - operator.mm_flat(x)
        dx = dx + _solution(operator, _solution(operator.H, moved(_of_adjoint, residual), adjoint_solver), solver)
    return dx, xp.zeros_like(error), xp.zeros_like(converged), xp.zeros_like(steps)
