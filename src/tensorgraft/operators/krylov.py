"""Iterative solvers of square systems: conjugate gradients and restarted GMRES, for all columns at once.

Loops are Python's where values are known, and end when every column has converged; a column that has is left alone.
"""

from __future__ import annotations

from typing import Any

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.operators import dense
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.solvers import LinearSolver, Solved, definite_sign, finite
from tensorgraft.transforms.control_flow import while_loop


class Iterative(LinearSolver):
    """The base class of iterative solvers.

    Arguments:
        rtol, atol: a column has converged when the norm of its residual is at most max(rtol * norm(b), atol).
        max_steps: steps at most; None: ten times the size.
        preconditioner: a `LinearOperator` like the inverse of the operator; None: the identity.
    """

    _operators = ("preconditioner",)

    def __init__(
        self,
        rtol: float = 1e-6,
        atol: float = 0.0,
        max_steps: int | None = None,
        preconditioner: LinearOperator | None = None,
    ) -> None:
        for name, value in (("rtol", rtol), ("atol", atol)):
            if not isinstance(value, int | float) or not value >= 0:
                raise ValueError(f"{type(self).__name__}: expected {name} to be a number of at least 0, got {value!r}")
        if max_steps is not None and (not isinstance(max_steps, int) or max_steps < 1):
            raise ValueError(f"{type(self).__name__}: expected max_steps to be an int of at least 1, got {max_steps!r}")
        if preconditioner is not None and not isinstance(preconditioner, LinearOperator):
            raise TypeError(
                f"{type(self).__name__}: expected preconditioner to be a LinearOperator, got a"
                f" {type(preconditioner).__qualname__}"
            )
        self.rtol = float(rtol)
        self.atol = float(atol)
        self.max_steps = max_steps
        self.preconditioner = preconditioner

    @property
    def failure(self) -> str:  # type: ignore[override]
        return (
            f"it has not converged to rtol={self.rtol:g}, atol={self.atol:g}: more steps (max_steps), a preconditioner,"
            " or a direct solver"
        )

    def check(self, operator: LinearOperator) -> None:
        super().check(operator)
        inverse = self.preconditioner
        if inverse is not None and inverse.shape != self._preconditioned(operator):
            raise ValueError(
                f"linear_solve: {self.name}: the preconditioner has shape {inverse.shape}, expected"
                f" {self._preconditioned(operator)} for an operator of shape {operator.shape}"
            )

    def _preconditioned(self, operator: LinearOperator) -> tuple[int, int]:
        return operator.shape[1], operator.shape[0]

    def _with(self, inverse: LinearOperator) -> LinearSolver:
        instance = object.__new__(type(self))
        instance.__dict__.update(vars(self), preconditioner=inverse)
        return instance

    def transposed(self) -> LinearSolver:
        return self if self.preconditioner is None else self._with(self.preconditioner.T)

    def conjugated(self) -> LinearSolver:
        return self if self.preconditioner is None else self._with(self.preconditioner.H.T)

    def _steps(self, operator: LinearOperator) -> int:
        return 10 * max(operator.shape) if self.max_steps is None else self.max_steps

    def _goal(self, b: Array) -> Array:
        """Return (k,): the norms that residuals are to reach."""
        bound = dense.norms(b) * self.rtol
        return xp.maximum(bound, xp.full_like(bound, self.atol))

    def _precondition(self, x: Array) -> Array:
        return x if self.preconditioner is None else applied(self.preconditioner, x)


def applied(operator: LinearOperator, x: Array) -> Array:
    """Apply an operator to the columns of (n, k); to one alone by `mv`, for which nothing has to be batched."""
    if x.shape[1] != 1 or operator.is_vector_operator:
        return operator.mm_flat(x)
    import optree

    if dtypes.is_complex(x.dtype) and not all(dtypes.is_complex(s.dtype) for s in operator._in.leaves):
        return operator.mm_flat(x)
    out = operator.mv(operator._in.unravel(x[:, 0]))
    return xp.expand_dims(operator._out.ravel(optree.tree_leaves(out)), axis=1)


def safe(x: Array) -> Array:
    """Return `x` with ones in place of zeros, to divide by."""
    return xp.where(x == 0, xp.ones_like(x), x)


def _select(mask: Array, new: Array, old: Array) -> Array:
    return xp.where(mask, new, old)


class CG(Iterative):
    """Conjugate gradients (Hestenes and Stiefel 1952; preconditioned: Saad, Iterative Methods, algorithm 9.1).

    For positive (or negative) semidefinite operators; the preconditioner is positive definite.
    """

    name = "cg"

    def check(self, operator: LinearOperator) -> None:
        super().check(operator)
        definite_sign(self, operator)

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        sign = definite_sign(self, operator)
        goal, most = self._goal(b), self._steps(operator)
        b = b * sign  # solve -A x = -b
        z = self._precondition(b)
        state = {
            "x": xp.zeros_like(b),
            "r": b,
            "p": z,
            "rho": xp.real(dense.inner(b, z)) if dtypes.is_complex(b.dtype) else dense.inner(b, z),
            "on": dense.norms(b) > goal,
            "step": xp.zeros((), dtype=xp.int64, device=b.device),
        }

        def goes_on(s: Any) -> Array:
            return xp.logical_and(xp.any(s["on"]), s["step"] < most)

        def step(s: Any) -> Any:
            q = applied(operator, s["p"]) * sign
            curvature = _real(dense.inner(s["p"], q))
            on = xp.logical_and(s["on"], curvature > 0)  # a column that breaks down ends
            alpha = xp.where(on, s["rho"] / safe(curvature), xp.zeros_like(curvature))
            x, r = s["x"] + s["p"] * alpha, s["r"] - q * alpha
            z = self._precondition(r)
            rho = _real(dense.inner(r, z))
            on_next = xp.logical_and(on, dense.norms(r) > goal)
            p = _select(on_next, z + s["p"] * (rho / safe(s["rho"])), s["p"])
            return {"x": x, "r": r, "p": p, "rho": rho, "on": on_next, "step": s["step"] + 1}

        s = while_loop(goes_on, step, state)
        return Solved(s["x"], xp.logical_and(dense.norms(s["r"]) <= goal, finite(s["x"])), s["step"])


def _real(x: Array) -> Array:
    return xp.real(x) if dtypes.is_complex(x.dtype) else x


class GMRES(Iterative):
    """GMRES, preconditioned from the right and restarted (Saad and Schultz 1986; Saad, algorithm 9.5).

    Arguments:
        restart: the dimension of the Krylov space at which it restarts.
    """

    name = "gmres"

    def __init__(
        self,
        rtol: float = 1e-6,
        atol: float = 0.0,
        max_steps: int | None = None,
        preconditioner: LinearOperator | None = None,
        restart: int = 30,
    ) -> None:
        super().__init__(rtol, atol, max_steps, preconditioner)
        if not isinstance(restart, int) or restart < 1:
            raise ValueError(f"GMRES: expected restart to be an int of at least 1, got {restart!r}")
        self.restart = restart

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        n, k = b.shape
        size, most = min(self.restart, n), self._steps(operator)
        goal = self._goal(b)
        state = {
            "x": xp.zeros_like(b),
            "error": dense.norms(b),
            "better": xp.ones(k, dtype=xp.bool, device=b.device),
            "step": xp.zeros((), dtype=xp.int64, device=b.device),
        }

        def goes_on(s: Any) -> Array:
            left = xp.logical_and(s["error"] > goal, s["better"])
            return xp.logical_and(xp.any(left), s["step"] < most)

        def cycle(s: Any) -> Any:
            r = b - applied(operator, s["x"])
            move, steps = self._cycle(operator, r, goal, size, most - s["step"])
            x = s["x"] + self._precondition(move)
            error = dense.norms(b - applied(operator, x))
            # a cycle that gains nothing would be followed by the same again
            better = error < s["error"] * (1 - 1e-3)
            is_better = error < s["error"]
            return {
                "x": _select(is_better, x, s["x"]),
                "error": xp.where(is_better, error, s["error"]),
                "better": better,
                "step": s["step"] + steps,
            }

        s = while_loop(goes_on, cycle, state) if n else state
        return Solved(s["x"], s["error"] <= goal, s["step"])

    def _cycle(self, operator: LinearOperator, r: Array, goal: Array, size: int, left: Array) -> tuple[Array, Array]:
        """Return (the correction before preconditioning, the steps). Arrays have the column's axis first."""
        n, k = r.shape
        dtype, device = r.dtype, r.device
        row_index = xp.arange(size + 1, device=device)
        beta = dense.norms(r)
        first = (r / safe(beta)).T  # (k, n)
        eye = xp.eye(size + 1, dtype=dtype, device=device)
        state = {
            "v": xp.zeros((k, size + 1, n), dtype=dtype, device=device)
            + _row(row_index == 0, dtype) * _with_middle_axis(first),
            "turned": xp.broadcast_to(eye, (k, size + 1, size + 1)) + xp.zeros((k, 1, 1), dtype=dtype, device=device),
            "r": xp.broadcast_to(eye[:, :size], (k, size + 1, size)) + xp.zeros((k, 1, 1), dtype=dtype, device=device),
            "on": beta > goal,
            "used": xp.zeros((k, size), dtype=xp.bool, device=device),
            "j": xp.zeros((), dtype=xp.int64, device=device),
        }

        def goes_on(s: Any) -> Array:
            return xp.logical_and(xp.any(s["on"]), s["j"] < xp.minimum(left, xp.full_like(left, size)))

        def step(s: Any) -> Any:
            current_row, next_row = row_index == s["j"], row_index == s["j"] + 1
            v = s["v"]
            newest = xp.sum(v * _row(current_row, dtype), axis=1).T
            w = _with_middle_axis(applied(operator, self._precondition(newest)).T)  # (k, 1, n)
            w, column, is_new = _orthogonalised(w, v, next_row)
            v = v + _row(next_row, dtype) * _with_middle_axis(w)
            # the rotations so far, and one more that takes the last element away (Saad, section 6.5.3)
            column = xp.matmul(s["turned"], xp.expand_dims(column, axis=2))[:, :, 0]
            a = xp.sum(column * xp.astype(current_row, dtype), axis=1)
            c = xp.sum(column * xp.astype(next_row, dtype), axis=1)
            cos, sin = _rotation(a, c)
            rotations = _rotate_rows(s["turned"], current_row, next_row, cos, sin)
            column = _rotate_rows(xp.expand_dims(column, axis=2), current_row, next_row, cos, sin)[:, :, 0]
            column = xp.where(next_row, xp.zeros_like(column), column)
            on = s["on"]
            live = xp.logical_and(on, xp.sum(column * xp.astype(current_row, dtype), axis=1) != 0)
            put = xp.logical_and(current_row[:size], xp.expand_dims(live, axis=1))
            r_ = xp.where(xp.expand_dims(put, axis=1), xp.expand_dims(column, axis=2), s["r"])
            error = beta * xp.abs(xp.sum(rotations[:, :, 0] * xp.astype(next_row, dtype), axis=1))
            keep = xp.reshape(on, (k, 1, 1))
            return {
                "v": _select(keep, v, s["v"]),
                "turned": _select(keep, rotations, s["turned"]),
                "r": r_,
                "on": xp.logical_and(xp.logical_and(live, is_new), error > goal),
                "used": xp.logical_or(s["used"], put),
                "j": s["j"] + 1,
            }

        s = while_loop(goes_on, step, state)
        right = s["turned"][:, :size, 0] * xp.expand_dims(xp.astype(beta, dtype), axis=1)
        right = xp.where(s["used"], right, xp.zeros_like(right))
        y = dense.triangular_solve(s["r"][:, :size, :], xp.expand_dims(right, axis=2), lower=False)  # (k, size, 1)
        return xp.matmul(y.mT, s["v"][:, :size, :])[:, 0, :].T, s["j"]


def _orthogonalised(w: Array, v: Array, next_row: Array) -> tuple[Array, Array, Array]:
    """One step of Arnoldi's process: (w without its parts along the rows of v, of norm 1 or 0; these parts, and its
    norm where `next_row` is; which norms are no rounding). Shapes (k, n), (k, size + 1), (k,)."""
    dtype = v.dtype
    column = xp.zeros(v.shape[:2], dtype=dtype, device=v.device)
    for _ in range(2):  # Gram and Schmidt twice are enough
        parts = xp.matmul(w, dense.adjoint(v))  # (k, 1, size + 1)
        w = w - xp.matmul(parts, v)
        column = column + parts[:, 0, :]
    w = w[:, 0, :]
    length = dense.norms(w.T)  # (k,)
    size_before = dense.norms(column.T)
    is_new = length > float(xp.finfo(dtype).eps) * size_before  # else the space is invariant
    length = xp.where(is_new, length, xp.zeros_like(length))
    column = column + xp.astype(next_row, dtype) * xp.expand_dims(xp.astype(length, dtype), axis=1)
    w = w / xp.expand_dims(xp.astype(safe(length), dtype), axis=1)
    return xp.where(xp.expand_dims(is_new, axis=1), w, xp.zeros_like(w)), column, is_new


def _rotation(a: Array, c: Array) -> tuple[Array, Array]:
    """Return the cosine and sine of Givens' rotation that turns (a, c) into (t, 0)."""
    t = xp.sqrt(_square(a) + _square(c))
    is_nonzero = t > 0
    t = xp.astype(safe(t), a.dtype)
    return xp.where(is_nonzero, a / t, xp.ones_like(a)), xp.where(is_nonzero, c / t, xp.zeros_like(c))


def _square(x: Array) -> Array:
    return _real(x * xp.conj(x)) if dtypes.is_complex(x.dtype) else x * x


def _row(mask: Array, dtype: Any) -> Array:
    """Return (1, size, 1) of a mask (size,)."""
    return xp.reshape(xp.astype(mask, dtype), (1, -1, 1))


def _with_middle_axis(x: Array) -> Array:
    """Return (k, 1, n) of (k, n)."""
    return xp.expand_dims(x, axis=1)


def _rotate_rows(x: Array, row: Array, below: Array, cos: Array, sin: Array) -> Array:
    """Return the rows `row` and `below` of (k, size, m) rotated."""
    dtype = x.dtype
    top = xp.sum(x * _row(row, dtype), axis=1)
    low = xp.sum(x * _row(below, dtype), axis=1)
    cos, sin = xp.expand_dims(cos, axis=1), xp.expand_dims(sin, axis=1)
    is_complex = dtypes.is_complex(dtype)
    new_top = (xp.conj(cos) if is_complex else cos) * top + (xp.conj(sin) if is_complex else sin) * low
    new_low = cos * low - sin * top
    unchanged = x * _row(xp.logical_not(xp.logical_or(row, below)), dtype)
    return unchanged + _row(row, dtype) * _with_middle_axis(new_top) + _row(below, dtype) * _with_middle_axis(new_low)
