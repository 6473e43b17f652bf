"""Iterative least squares: LSQR and LSMR, for all columns at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators import dense
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.krylov import Iterative, applied, safe
from tensorgraft.operators.solvers import Solved
from tensorgraft.transforms.control_flow import while_loop


class Bidiagonal(Iterative):
    """Least squares by the bidiagonalisation of Golub and Kahan: the solution of least norm, of any shape and rank.

    Arguments:
        rtol: a column has converged when the norm of its residual is at most max(rtol * norm(b), atol), or, where there
            is no solution, when norm(A^H r) is at most rtol * norm(A) * norm(r).
        preconditioner: M, from the right: the least squares problem is that of A M, its solution M y.
    """

    least_squares = True

    def _preconditioned(self, operator: LinearOperator) -> tuple[int, int]:
        return operator.shape[1], operator.shape[1]

    def transposed(self) -> Any:
        # A^H needs another preconditioner on its right
        return self if self.preconditioner is None else self._with_none()

    def _with_none(self) -> Any:
        instance = object.__new__(type(self))
        instance.__dict__.update(vars(self), preconditioner=None)
        return instance

    def _forward(self, operator: LinearOperator, x: Array) -> Array:
        return applied(operator, self._precondition(x))

    def _apply_adjoint(self, adjoint: LinearOperator, x: Array) -> Array:
        x = applied(adjoint, x)
        return x if self.preconditioner is None else applied(self.preconditioner.H, x)

    def _begin(self, operator: LinearOperator, b: Array) -> tuple[Array, ...]:
        """Normalise the first vectors: beta u = b, alpha v = A^H u."""
        beta = dense.norms(b)
        u = b / safe(beta)
        v = self._apply_adjoint(operator.H, u)
        alpha = dense.norms(v)
        return beta, u, alpha, v / safe(alpha)

    def _next(
        self, operator: LinearOperator, adjoint: LinearOperator, u: Array, alpha: Array, v: Array
    ) -> tuple[Array, ...]:
        u = self._forward(operator, v) - u * alpha
        beta = dense.norms(u)
        u = u / safe(beta)
        v = self._apply_adjoint(adjoint, u) - v * beta
        alpha = dense.norms(v)
        return beta, u, alpha, v / safe(alpha)

    def _iterate(
        self, operator: LinearOperator, initial: Any, beta: Array, goal: Array, advance: Callable[..., Any]
    ) -> Solved:
        """Run steps until every column has converged, or for `max_steps`.

        Arguments:
            initial: the state, with "x", "u", "v" and "alpha"; beta: the norms of the right sides.
            goal: the norms of the residuals at which columns have converged.
            advance: (state, and the next beta, u, alpha, v) -> (new state, columns that have converged).
        """
        adjoint, most = operator.H, self._steps(operator)
        state: Any = {
            "s": initial,
            "on": xp.logical_and(beta > goal, initial["alpha"] > 0),
            "step": xp.zeros((), dtype=xp.int64, device=beta.device),
            "good": xp.logical_or(beta <= goal, initial["alpha"] == 0),
        }

        def step(state: Any) -> Any:
            s, on = state["s"], state["on"]
            new, is_good = advance(s, *self._next(operator, adjoint, s["u"], s["alpha"], s["v"]))
            return {
                # columns that have ended keep their state
                "s": {name: xp.where(on, value, s[name]) for name, value in new.items()},
                "on": xp.logical_and(on, xp.logical_not(is_good)),
                "step": state["step"] + 1,
                "good": xp.logical_or(state["good"], xp.logical_and(on, is_good)),
            }

        end = while_loop(lambda s: xp.logical_and(xp.any(s["on"]), s["step"] < most), step, state)
        return Solved(self._precondition(end["s"]["x"]), end["good"], end["step"])


class LSQR(Bidiagonal):
    """LSQR (Paige and Saunders 1982): equivalent to conjugate gradients on the normal equations, but stable."""

    name = "lsqr"

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        goal = self._goal(b)
        beta, u, alpha, v = self._begin(operator, b)
        initial = {"x": xp.zeros_like(v), "w": v, "u": u, "v": v, "alpha": alpha, "phi": beta, "rho": alpha,
                   "norm": xp.zeros_like(beta)}  # fmt: skip

        def advance(s: Any, beta: Array, u: Array, alpha: Array, v: Array) -> tuple[dict[str, Array], Array]:
            norm = s["norm"] + s["alpha"] ** 2 + beta**2
            rho = xp.hypot(s["rho"], beta)
            cos, sin = s["rho"] / safe(rho), beta / safe(rho)
            theta, phi = sin * alpha, cos * s["phi"]
            x = s["x"] + s["w"] * (phi / safe(rho))
            w = v - s["w"] * (theta / safe(rho))
            error = sin * s["phi"]
            slope = error * alpha * xp.abs(cos)  # norm(A^H r)
            is_good = xp.logical_or(xp.abs(error) <= goal, slope <= self.rtol * xp.sqrt(norm) * xp.abs(error))
            new = {"x": x, "w": w, "u": u, "v": v, "alpha": alpha, "phi": error, "rho": -cos * alpha, "norm": norm}
            return new, is_good

        return self._iterate(operator, initial, beta, goal, advance)


class LSMR(Bidiagonal):
    """LSMR (Fong and Saunders 2011): like LSQR, but norm(A^H r) decreases in every step, so that it may end earlier."""

    name = "lsmr"

    def solve(self, operator: LinearOperator, b: Array) -> Solved:
        goal = self._goal(b)
        beta, u, alpha, v = self._begin(operator, b)
        zero, one = xp.zeros_like(beta), xp.ones_like(beta)
        initial = {
            "x": xp.zeros_like(v), "h": v, "h_bar": xp.zeros_like(v), "u": u, "v": v, "alpha": alpha,
            "alpha_bar": alpha, "zeta_bar": alpha * beta, "rho": one, "rho_bar": one, "c_bar": one, "s_bar": zero,
            # for the norm of the residual (section 5.2 of the paper)
            "beta_dd": beta, "beta_d": zero, "rho_dd": one, "tau": zero, "theta": zero, "zeta": zero, "d": zero,
            "norm": alpha**2,
        }  # fmt: skip

        def advance(s: Any, beta: Array, u: Array, alpha: Array, v: Array) -> tuple[dict[str, Array], Array]:
            rho = xp.hypot(s["alpha_bar"], beta)
            cos, sin = s["alpha_bar"] / safe(rho), beta / safe(rho)
            theta_new, alpha_bar = sin * alpha, cos * alpha
            theta_bar = s["s_bar"] * rho
            rho_temp = s["c_bar"] * rho
            rho_bar = xp.hypot(rho_temp, theta_new)
            c_bar, s_bar = rho_temp / safe(rho_bar), theta_new / safe(rho_bar)
            zeta, zeta_bar = c_bar * s["zeta_bar"], -s_bar * s["zeta_bar"]
            h_bar = s["h"] - s["h_bar"] * (theta_bar * rho / safe(s["rho"] * s["rho_bar"]))
            x = s["x"] + h_bar * (zeta / safe(rho * rho_bar))
            h = v - s["h"] * (theta_new / safe(rho))
            # the norm of the residual
            beta_hat, beta_dd = cos * s["beta_dd"], -sin * s["beta_dd"]
            rho_tilde = xp.hypot(s["rho_dd"], theta_bar)
            c_tilde, s_tilde = s["rho_dd"] / safe(rho_tilde), theta_bar / safe(rho_tilde)
            theta, rho_dd = s_tilde * rho_bar, c_tilde * rho_bar
            beta_d = -s_tilde * s["beta_d"] + c_tilde * beta_hat
            tau_before = (s["zeta"] - s["theta"] * s["tau"]) / safe(rho_tilde)
            tau = (zeta - theta * tau_before) / safe(rho_dd)
            error = xp.sqrt(s["d"] + (beta_d - tau) ** 2 + beta_dd**2)
            norm = s["norm"] + beta**2
            slope = xp.abs(zeta_bar)  # norm(A^H r)
            is_good = xp.logical_or(error <= goal, slope <= self.rtol * xp.sqrt(norm) * error)
            new = {
                "x": x, "h": h, "h_bar": h_bar, "u": u, "v": v, "alpha": alpha, "alpha_bar": alpha_bar,
                "zeta_bar": zeta_bar, "rho": rho, "rho_bar": rho_bar, "c_bar": c_bar, "s_bar": s_bar,
                "beta_dd": beta_dd, "beta_d": beta_d, "rho_dd": rho_dd, "tau": tau_before, "theta": theta, "zeta": zeta,
                "d": s["d"], "norm": norm + alpha**2,
            }  # fmt: skip
            return new, is_good

        return self._iterate(operator, initial, beta, goal, advance)
