"""XTrace and XDiag (Epperly, Tropp, Webber, "XTrace: Making the most of every sample in stochastic trace estimation",
arXiv 2301.07825); XNysTrace and XNysDiag of the same paper are in `xnystrace`.

Each test vector w_i estimates what the low-rank approximation without it leaves over, and the estimate is the mean.
XTrace is the improved version of the paper (its section 2.3): the part of w_i that is left is brought to its expected
length on its own subspace, so that the lengths of test vectors do not count. Everything is for complex operators:
conjugates where they belong.
"""

from __future__ import annotations

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators.estimators.hutchinson import GrowingEstimator, Pair, _extended_basis, _factored, joined
from tensorgraft.operators.estimators.problem import Problem
from tensorgraft.operators.estimators.programs import (
    adjoint,
    conj,
    dots,
    inner,
    mean_and_error,
    program,
    real,
    squares,
    triangular_solve,
)


class Basis(GrowingEstimator):
    """Y = A W = Q R for half of the products, and Z = A Q (or its adjoint) for the other half. Of an odd number, one
    is A g for a test vector g that is in no basis."""

    adjoint = False  # A* Q is needed, too, where A is not Hermitian

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.w: Array | None = None
        self.q: Array | None = None
        self.r: Array | None = None
        self.z: Array | None = None
        self.g: Array | None = None
        self.ag: Array | None = None

    @staticmethod
    def columns(k: int) -> int:
        return k // 2 + k % 2

    def grow(self, k: int) -> None:
        problem = self.problem
        old = 0 if self.w is None else self.w.shape[1]
        m, odd = k // 2, k % 2 if self.g is None else 0
        w, *rest = problem.draw(m - old, *([1] if odd else []))
        g = rest[0] if rest else None
        if m == old:
            q = None
        elif self.q is None:
            q, self.r = _factored(problem.times(w))
            self.w, self.q = w, q
        else:
            assert self.r is not None and self.w is not None
            q, a, b = _extended_basis(self.q, problem.times(w))
            zero = xp.zeros((b.shape[0], old), dtype=b.dtype, device=b.device)
            self.r = xp.concat([xp.concat([self.r, a], axis=1), xp.concat([zero, b], axis=1)], axis=0)
            self.w, self.q = joined(self.w, w), joined(self.q, q)
        if q is not None and (not self.adjoint or problem.hermitian):
            all_products = problem.times(q if g is None else xp.concat([q, g], axis=1))
            self.z = joined(self.z, all_products[:, : m - old] if odd else all_products)
            if g is not None:
                self.g, self.ag = g, all_products[:, m - old :]
            return
        if q is not None:
            self.z = joined(self.z, problem.adjoint_times(q))
        if g is not None:
            self.g, self.ag = g, problem.times(g)

    def arrays(self) -> list[Array]:
        parts = [self.w, self.q, self.r, self.z, *((self.g, self.ag) if self.g is not None else ())]
        return [x for x in parts if x is not None]


def directions(r: Array) -> Array:
    """Unit vectors s_i (columns): Q (I - s_i s_i*) Q* projects on the range of all columns of Q R but the i-th.

    They are the normalised columns of R^-*. Where the columns depend on each other, R is singular up to rounding: its
    diagonal is kept above that, which changes s_i only by directions that hold nothing of the operator.
    """
    m = r.shape[0]
    eps = float(xp.finfo(r.dtype).eps)
    size = xp.abs(xp.linalg.diagonal(r))
    most = xp.max(size)
    most = xp.where(most > 0, most, xp.ones_like(most))
    eye = xp.eye(m, dtype=r.dtype, device=r.device)
    lift = xp.astype(xp.where(size < eps * most, eps * xp.ones_like(size), xp.zeros_like(size)), r.dtype)
    s = triangular_solve(r / xp.astype(most, r.dtype) + eye * lift, eye, lower=False, adjoint=True)
    return s / xp.sqrt(squares(s))


def _length(n: int, m: int, total: Array, left: Array) -> Array:
    """Return the factor that brings |v|^2 = `left` to n - m, its expectation where v is isotropic in that many
    dimensions."""
    tiny = total * float(xp.finfo(total.dtype).eps)
    return xp.where(left > tiny, (n - m) / xp.where(left > tiny, left, xp.ones_like(left)), xp.zeros_like(left))


class XTrace(Basis):
    """tr(Q_i* A Q_i) + w_i* (I - Q_i Q_i*) A (I - Q_i Q_i*) w_i, where Q_i is an orthonormal basis of A W without
    column i (arXiv 2301.07825, section 2.1 and algorithm 1.1); k / 2 columns of W."""

    def estimate(self) -> Pair:
        if self.w is None:
            assert self.g is not None and self.ag is not None
            return _single_vector_estimate(self.g, self.ag, hermitian=self.problem.hermitian)
        return _xtrace(*self.arrays(), hermitian=self.problem.hermitian)


@program
def _single_vector_estimate(g: Array, ag: Array, *, hermitian: bool) -> Pair:
    t = dots(g, ag) * (g.shape[0] / squares(g))
    return mean_and_error(real(t) if hermitian else t)


@program
def _xtrace(w: Array, q: Array, r: Array, z: Array, *rest: Array, hermitian: bool) -> Pair:
    n, m = w.shape
    h = adjoint(q) @ z
    c = adjoint(q) @ w
    s = directions(r)
    sums = xp.sum(xp.stack([conj(s) * c, c * conj(c)]), axis=1)
    a = sums[0, :]
    b = s * a
    u = c - b  # the component of w_i that Q_i spans, in the basis Q
    forms = xp.stack([conj(b) * r + conj(u) * (h @ u) - conj(adjoint(z) @ w) * u, conj(s) * (h @ s)])
    quadratic, linear_term = xp.unstack(xp.sum(forms, axis=1))  # for v = w_i - Q u
    total = squares(w)
    scale = _length(n, m - 1, total, total - real(sums[1, :] - a * conj(a)))
    t = quadratic * scale - linear_term
    if rest:  # a vector that is in no basis: all of Q is there for it
        g, ag = rest
        c = adjoint(q) @ g
        quadratic = dots(g, ag) - dots(c, adjoint(q) @ ag) - dots(adjoint(z) @ g, c) + dots(c, h @ c)
        total = squares(g)
        t = xp.concat([t, quadratic * _length(n, m, total, total - squares(c))])
    mean, error = mean_and_error(real(t) if hermitian else t)
    known = inner(q, z)  # tr(Q* A Q)
    return (real(known) if hermitian else known) + mean, error


# ---- diagonals -------------------------------------------------------------------------------------------------------


class XDiag(Basis):
    """diag(Q_i Q_i* A) + conj(w_i) (I - Q_i Q_i*) A w_i element by element (arXiv 2301.07825, section 2.4, "XDiag").

    Operators that are not tagged hermitian are multiplied with their adjoint for A* Q.
    """

    adjoint = True

    def estimate(self) -> Pair:
        if self.w is None:
            assert self.g is not None and self.ag is not None
            return _one_diagonal(self.g, self.ag, hermitian=self.problem.hermitian)
        return _xdiag(*self.arrays(), hermitian=self.problem.hermitian)


@program
def _one_diagonal(g: Array, ag: Array, *, hermitian: bool) -> Pair:
    return mean_of_columns(conj(g) * ag, hermitian)


@program
def _xdiag(w: Array, q: Array, r: Array, z: Array, *rest: Array, hermitian: bool) -> Pair:
    s = directions(r)
    b = conj(z)  # Q* A, transposed
    qs = q @ s
    known = xp.sum(q * b, axis=1, keepdims=True)
    t = known - qs * (b @ conj(s)) + conj(w) * qs * dots(s, r)
    if rest:
        g, ag = rest
        t = xp.concat([t, known + conj(g) * (ag - q @ (adjoint(q) @ ag))], axis=1)
    return mean_of_columns(t, hermitian)


def mean_of_columns(t: Array, hermitian: bool) -> Pair:
    t = real(t) if hermitian else t
    m = t.shape[1]
    mean = xp.sum(t, axis=1) / m
    if m < 2:
        return mean, xp.full_like(real(mean), xp.nan)
    d = t - xp.expand_dims(mean, axis=1)
    return mean, xp.sqrt(xp.sum(real(d * conj(d)), axis=1)) / m
