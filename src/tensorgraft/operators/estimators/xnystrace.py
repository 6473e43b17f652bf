"""XNysTrace and XNysDiag (arXiv 2301.07825), for positive semidefinite operators: leave-one-out estimators like those
in `leave_one_out`, with Nystrom approximations."""

from __future__ import annotations

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators.estimators.hutchinson import GrowingEstimator, Pair, _extended_basis, _factored, joined
from tensorgraft.operators.estimators.leave_one_out import directions, mean_of_columns
from tensorgraft.operators.estimators.nystrom import approximation, leaving_out
from tensorgraft.operators.estimators.problem import Problem
from tensorgraft.operators.estimators.programs import conj, dots, inner, mean_and_error, program, real, squares

_FEW = 256  # up to this dimension an orthonormal basis is always used


class Sketch(GrowingEstimator):
    """Y = A W, or Y = A Q where W = Q R.

    Columns of W are almost orthogonal if there are few compared with n. An orthonormal basis Q costs a factorisation,
    but is stable for any number of columns, also when columns are added until a tolerance is reached.
    """

    definite = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.w: Array | None = None
        self.q: Array | None = None
        self.r: Array | None = None
        self.y: Array | None = None

    @staticmethod
    def columns(k: int) -> int:
        return k

    def grow(self, k: int) -> None:
        old = 0 if self.w is None else self.w.shape[1]
        if old == k:
            return
        (w,) = self.problem.draw(k - old)
        if self.w is None and not self.adaptive and 4 * k <= self.problem.n and self.problem.n > _FEW:
            self.w, self.y = w, self.problem.times(w)
            return
        if self.q is None:
            q, self.r = _factored(w)
        else:
            assert self.r is not None
            q, a, b = _extended_basis(self.q, w)
            zero = xp.zeros((b.shape[0], old), dtype=b.dtype, device=b.device)
            self.r = xp.concat([xp.concat([self.r, a], axis=1), xp.concat([zero, b], axis=1)], axis=0)
        self.w, self.q, self.y = joined(self.w, w), joined(self.q, q), joined(self.y, self.problem.times(q))


class XNysTrace(Sketch):
    """The mean of tr(A_i) + w_i* (A - A_i) w_i over the k columns of W, where A_i is the Nystrom approximation of A by
    W without column i (arXiv 2301.07825, section 2.2 and algorithm 2.1). The improved version, as of XTrace."""

    def estimate(self) -> Pair:
        assert self.w is not None and self.y is not None
        if self.q is None or self.r is None:
            return _of_vectors(self.w, self.y)
        return _of_basis(self.q, self.r, self.y)


@program
def _of_vectors(w: Array, y: Array) -> Pair:
    n, m = w.shape
    f, left = approximation(w, y)
    out, h = leaving_out(f)
    mean, error = mean_and_error((n - m + 1) / (left * h**2) - squares(out))
    return f.checked(real(inner(f.factor, f.factor)) + (mean - f.shift * n)), f.checked(error)


@program
def _of_basis(q: Array, r: Array, y: Array) -> Pair:
    n, m = q.shape
    f, _ = approximation(q, y, orthonormal=True)
    out, h = leaving_out(f, directions(r))
    mean, error = mean_and_error((n - m + 1) / h**2 - squares(out))
    return f.checked(real(inner(f.factor, f.factor)) + (mean - f.shift * n)), f.checked(error)


class XNysDiag(Sketch):
    """The mean of diag(A_i) + conj(w_i) (A - A_i) w_i, element by element, where A_i is the Nystrom approximation of A
    by W without column i (arXiv 2301.07825, section 2.4, "XNysDiag")."""

    def estimate(self) -> Pair:
        assert self.w is not None and self.y is not None
        if self.q is None or self.r is None:
            return _diagonal_of_vectors(self.w, self.y)
        return _diagonal_of_basis(self.w, self.q, self.r, self.y)


@program
def _diagonal_of_vectors(w: Array, y: Array) -> Pair:
    f, _ = approximation(w, y)
    out, h = leaving_out(f)
    rest = real(conj(w) * out) / h - real(out * conj(out))
    known = xp.sum(real(f.factor * conj(f.factor)), axis=1, keepdims=True) - f.shift
    mean, error = mean_of_columns(known + rest, True)
    return f.checked(mean), f.checked(error)


@program
def _diagonal_of_basis(w: Array, q: Array, r: Array, y: Array) -> Pair:
    f, _ = approximation(q, y, orthonormal=True)
    d = directions(r)
    out, h = leaving_out(f, d)
    rest = real(conj(w) * out * (dots(d, r) / h)) - real(out * conj(out))
    known = xp.sum(real(f.factor * conj(f.factor)), axis=1, keepdims=True) - f.shift
    mean, error = mean_of_columns(known + rest, True)
    return f.checked(mean), f.checked(error)
