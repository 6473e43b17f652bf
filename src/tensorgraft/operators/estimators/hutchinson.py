"""Estimators of the trace from quadratic forms of random vectors, alone or after a low-rank approximation."""

from __future__ import annotations

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators.estimators.nystrom import approximation
from tensorgraft.operators.estimators.problem import Problem
from tensorgraft.operators.estimators.programs import adjoint, dots, inner, mean_and_error, program, real, squares

Pair = tuple[Array, Array]  # an estimate, its standard error


class GrowingEstimator:
    """An estimator that is refined: `grow` increases its number of products to `k`, `estimate` returns the estimate."""

    least = 1  # products that it needs
    first = 16  # products with which it begins, on its way to a tolerance
    definite = False  # it is for positive semidefinite operators
    adaptive = False  # it is on its way to a tolerance

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @staticmethod
    def columns(k: int) -> int:
        """Return the columns of a test matrix for `k` products."""
        raise NotImplementedError

    def grow(self, k: int) -> None:
        raise NotImplementedError

    def estimate(self) -> Pair:
        raise NotImplementedError


def joined(before: Array | None, new: Array) -> Array:
    return new if before is None else xp.concat([before, new], axis=1)


class Hutchinson(GrowingEstimator):
    """The mean of w* A w (Girard 1989; Hutchinson 1990), `k` products."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.w: Array | None = None
        self.y: Array | None = None

    @staticmethod
    def columns(k: int) -> int:
        return k

    def grow(self, k: int) -> None:
        new = k - (0 if self.w is None else self.w.shape[1])
        if new > 0:
            (w,) = self.problem.draw(new)
            self.w, self.y = joined(self.w, w), joined(self.y, self.problem.times(w))

    def estimate(self) -> Pair:
        assert self.w is not None and self.y is not None
        return _quadratic(self.w, self.y, hermitian=self.problem.hermitian)


@program
def _quadratic(w: Array, y: Array, *, hermitian: bool) -> Pair:
    t = dots(w, y)
    return _sample_mean(real(t) if hermitian else t)


def _sample_mean(t: Array) -> Pair:
    """Return the mean of independent samples, with its unbiased standard error."""
    m = t.shape[0]
    mean, error = mean_and_error(t)
    return mean, error * (m / max(m - 1, 1)) ** 0.5


class HutchPlusPlus(GrowingEstimator):
    """tr(Q* A Q) + the mean of g* A g, Q an orthonormal basis of A S and g random vectors less their part in its range
    (Meyer, Musco, Musco, Woodruff, "Hutch++", arXiv 2010.09649, algorithm 1): k // 3 columns of S, the rest of `k`
    for the quadratic forms. A tolerance makes it grow as "A-Hutch++" does (Persson, Cortinovis, Kressner, arXiv
    2201.10684), by what the quadratic forms scatter: the products of both parts are kept.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.qg: Array | None = None  # [Q G], as long as it has not grown
        self.z: Array | None = None  # A times that, later A Q
        self.q: Array | None = None
        self.g: Array | None = None
        self.ag: Array | None = None
        self.m = 0

    @staticmethod
    def columns(k: int) -> int:
        return k - k // 3

    def grow(self, k: int) -> None:
        m = k // 3
        if self.z is None and self.ag is None:
            if m:
                s, g = self.problem.draw(m, k - 2 * m)
                (self.qg,) = _basis(self.problem.times(s), g)
                self.z, self.m = self.problem.times(self.qg), m
            else:
                (self.g,) = self.problem.draw(k)
                self.ag = self.problem.times(self.g)
            return
        if self.qg is not None:
            assert self.z is not None
            self.q, self.g = self.qg[:, : self.m], self.qg[:, self.m :]
            self.z, self.ag, self.qg = self.z[:, : self.m], self.z[:, self.m :], None
        if m > self.m:
            y = self.problem.times(self.problem.draw(m - self.m)[0])
            new = _extended_basis(self.q, y)[0] if self.q is not None else _factored(y)[0]
            self.q, self.z, self.m = joined(self.q, new), joined(self.z, self.problem.times(new)), m
        assert self.g is not None
        extra = k - 2 * m - self.g.shape[1]
        if extra > 0:
            (g,) = self.problem.draw(extra)
            self.g, self.ag = joined(self.g, g), joined(self.ag, self.problem.times(g))

    def estimate(self) -> Pair:
        if self.qg is not None and self.z is not None:
            return _with_basis(self.qg, self.z, m=self.m, hermitian=self.problem.hermitian)
        assert self.g is not None and self.ag is not None
        if self.q is None or self.z is None:
            return _quadratic(self.g, self.ag, hermitian=self.problem.hermitian)
        return _with_basis_grown(self.q, self.z, self.g, self.ag, hermitian=self.problem.hermitian)


@program
def _factored(y: Array) -> tuple[Array, Array]:
    q, r = xp.linalg.qr(y)
    return q, r


@program
def _basis(y: Array, g: Array) -> tuple[Array]:
    """Return (an orthonormal basis of the columns of y, g without its component in that space)."""
    q = xp.linalg.qr(y)[0]
    return (xp.concat([q, g - q @ (adjoint(q) @ g)], axis=1),)


@program
def _extended_basis(q: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return orthonormal columns p for the part of y outside the range of q: y = q a + p b. It is projected twice,
    because the remainder after once may be rounding errors."""
    a = adjoint(q) @ y
    rest = y - q @ a
    correction = adjoint(q) @ rest
    p, b = xp.linalg.qr(rest - q @ correction)
    p = p - q @ (adjoint(q) @ p)
    p, r = xp.linalg.qr(p)
    return p, a + correction, r @ b


@program
def _with_basis(qg: Array, z: Array, *, m: int, hermitian: bool) -> Pair:
    return _plus_mean(inner(qg[:, :m], z[:, :m]), dots(qg[:, m:], z[:, m:]), hermitian)


@program
def _with_basis_grown(q: Array, z: Array, g: Array, ag: Array, *, hermitian: bool) -> Pair:
    """Return the estimate for a basis that has grown since A g was computed."""
    c = adjoint(q) @ g
    return _plus_mean(inner(q, z), dots(g - q @ c, ag - z @ c), hermitian)


def _plus_mean(known: Array, t: Array, hermitian: bool) -> Pair:
    mean, error = _sample_mean(real(t) if hermitian else t)
    return (real(known) if hermitian else known) + mean, error


class NAHutchPlusPlus(GrowingEstimator):
    """Hutch++ whose products are all known from the start, so that they are one batch (arXiv 2010.09649, algorithm 2):
    of `k` a quarter in S, a quarter in G, the rest in R; A is replaced by A R (S* A R)^+ S* A.

    Operators that are not tagged hermitian are multiplied with their adjoint for S.
    """

    least = 3

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.s: Array | None = None
        self.w: Array | None = None  # A* S
        self.g: Array | None = None
        self.ag: Array | None = None
        self.ar: Array | None = None

    @staticmethod
    def columns(k: int) -> int:
        return k

    def grow(self, k: int) -> None:
        had = [0 if x is None else x.shape[1] for x in (self.s, self.g, self.ar)]
        s = g = max(1, k // 4)
        s, g, r = (total - part for total, part in zip((s, g, k - s - g), had, strict=True))
        parts = self.problem.draw(s, g, r)
        if self.problem.hermitian:
            y = self.problem.times(xp.concat(list(parts), axis=1))
            w, y = y[:, :s], y[:, s:]
        else:
            w, y = self.problem.adjoint_times(parts[0]), self.problem.times(xp.concat(list(parts[1:]), axis=1))
        self.s, self.w = joined(self.s, parts[0]), joined(self.w, w)
        self.g, self.ag = joined(self.g, parts[1]), joined(self.ag, y[:, :g])
        self.ar = joined(self.ar, y[:, g:])

    def estimate(self) -> Pair:
        assert self.s is not None and self.w is not None and self.g is not None
        assert self.ag is not None and self.ar is not None
        return _not_adaptive(self.s, self.w, self.g, self.ag, self.ar, hermitian=self.problem.hermitian)


@program
def _not_adaptive(s: Array, w: Array, g: Array, ag: Array, z: Array, *, hermitian: bool) -> Pair:
    # the order keeps numbers of the size of A: A R (S* A R)^+ S* A
    left = xp.linalg.pinv(adjoint(s) @ z) @ adjoint(w)
    known = xp.sum(left * z.mT)
    return _plus_mean(known, dots(g, ag) - dots(adjoint(z) @ g, left @ g), hermitian)


class NystromPlusPlus(GrowingEstimator):
    """The trace of a Nystrom approximation and the mean of quadratic forms of the rest (Persson, Cortinovis, Kressner,
    "Improved variants of the Hutch++ algorithm", arXiv 2201.10684, algorithm 3 there), half of `k` for each. For
    positive semidefinite operators."""

    least = 2
    definite = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.q: Array | None = None
        self.y: Array | None = None
        self.g: Array | None = None
        self.ag: Array | None = None

    @staticmethod
    def columns(k: int) -> int:
        return k

    def grow(self, k: int) -> None:
        m = k // 2 - (0 if self.q is None else self.q.shape[1])
        w, g = self.problem.draw(m, k - k // 2 - (0 if self.g is None else self.g.shape[1]))
        q = _factored(w)[0] if self.q is None else _extended_basis(self.q, w)[0]
        y = self.problem.times(xp.concat([q, g], axis=1))
        self.q, self.y = joined(self.q, q), joined(self.y, y[:, :m])
        self.g, self.ag = joined(self.g, g), joined(self.ag, y[:, m:])

    def estimate(self) -> Pair:
        assert self.q is not None and self.y is not None and self.g is not None and self.ag is not None
        return _with_nystrom(self.q, self.y, self.g, self.ag)


@program
def _with_nystrom(q: Array, y: Array, g: Array, ag: Array) -> Pair:
    f, _ = approximation(q, y, orthonormal=True)
    known = real(inner(f.factor, f.factor)) - f.shift * q.shape[0]
    # samples are of A plus the shift, as the approximation is
    t = real(dots(g, ag)) + f.shift * squares(g) - squares(adjoint(f.factor) @ g)
    mean, error = _sample_mean(t)
    return f.checked(known + mean), f.checked(error)
