"""Stochastic Lanczos quadrature (Ubaru, Chen, Saad, "Fast estimation of tr(f(A)) via stochastic Lanczos quadrature",
SIAM J. Matrix Anal. Appl. 38, 2017): w* f(A) w by the Gauss rule that the Lanczos process of w gives."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators.estimators.hutchinson import GrowingEstimator, Pair, _sample_mean
from tensorgraft.operators.estimators.problem import Problem
from tensorgraft.operators.estimators.programs import conj, dots, program, real, squares

Function = Callable[[Array], Array]
_MOST_STEPS = 30


class Quadrature(GrowingEstimator):
    """The mean over test vectors of |w|^2 sum_j tau_j f(theta_j): theta are the eigenvalues of the tridiagonal matrix
    of the Lanczos process, with full reorthogonalisation, and tau the squared first components of its eigenvectors.

    Of k products each vector gets as many as there are vectors, at most 30; where k does not divide, the first vectors
    get one more. A tolerance brings more vectors of 30 products: what a Gauss rule of those leaves is not measured.
    """

    first = 4 * _MOST_STEPS

    def __init__(self, problem: Problem, function: Function | None = None) -> None:
        super().__init__(problem)
        self.function = function or (lambda x: x)
        self.samples: list[Array] = []

    @classmethod
    def of(cls, function: Function | None) -> Callable[[Problem], GrowingEstimator]:
        return functools.partial(cls, function=function)

    @staticmethod
    def columns(k: int) -> int:
        return k // min(_MOST_STEPS, math.isqrt(k))

    def grow(self, k: int) -> None:
        if not self.adaptive:
            count = self.columns(k)
            steps, extra = divmod(k, count)
            self._sample(count, steps, extra)
            return
        steps = min(_MOST_STEPS, self.problem.n)
        count = (k - self.problem.products) // steps
        if count or not self.samples:
            self._sample(max(count, 1), steps, 0)

    def estimate(self) -> Pair:
        return _average(*self.samples)

    def _sample(self, count: int, steps: int, extra: int) -> None:
        """Vectors of `steps` products, of which the first `extra` get one more."""
        (w,) = self.problem.draw(count)
        v, size = _normalised(w)
        positions = xp.eye(steps + bool(extra), dtype=v.dtype, device=v.device)
        basis = xp.zeros((positions.shape[0], *v.shape), dtype=v.dtype, device=v.device)
        rows: list[tuple[Array, Array]] = []
        for j in range(steps):
            basis, v, alpha, beta = _step(basis, v, self.problem.times(v), positions[j, :])
            rows.append((alpha, beta))
        self._add(rows, size, slice(extra, None))
        if extra:
            v = v[:, :extra]
            last = _step(basis[:, :, :extra], v, self.problem.times(v), positions[steps, :])
            self._add([*((a[:extra], b[:extra]) for a, b in rows), (last[2], last[3])], size, slice(None, extra))

    def _add(self, rows: list[tuple[Array, Array]], size: Array, columns: slice) -> None:
        if len(range(*columns.indices(size.shape[0]))) == 0:
            return
        count = rows[-1][0].shape[0]
        take = columns if count == size.shape[0] else slice(None)
        alpha = xp.stack([a[take] for a, _ in rows], axis=1)
        beta = xp.stack([b[take] for _, b in rows], axis=1)
        theta, tau = _gauss(alpha, beta)
        self.samples.append(_forms(self.function(theta), tau, size[columns])[0])


@program
def _normalised(w: Array) -> Pair:
    size = squares(w)
    return w / xp.sqrt(size), size


@program
def _step(basis: Array, v: Array, u: Array, place: Array) -> tuple[Array, Array, Array, Array]:
    """One more vector v (columns) in the basis (steps, n, vectors), whose product is u: the basis with it, the next one
    (zero where the process has ended), and the entries of the tridiagonal matrices."""
    basis = basis + xp.reshape(place, (-1, 1, 1)) * v
    alpha = real(dots(v, u))
    before = squares(u)
    for _ in range(2):
        c = xp.sum(conj(basis) * u, axis=1, keepdims=True)
        u = u - xp.sum(basis * c, axis=0)
    next_norm = squares(u)
    has_ended = next_norm <= before * (100 * float(xp.finfo(next_norm.dtype).eps)) ** 2
    beta = xp.where(has_ended, xp.zeros_like(next_norm), xp.sqrt(next_norm))
    u = u / xp.where(has_ended, xp.ones_like(next_norm), beta)
    return basis, xp.where(has_ended, xp.zeros_like(u), u), alpha, beta


@program
def _gauss(alpha: Array, beta: Array) -> Pair:
    """Return nodes and weights (vectors, steps) from diagonals and off-diagonals."""
    steps = alpha.shape[1]
    first = alpha[:, :1]
    has_ended = xp.concat([xp.zeros_like(first), beta[:, :-1]], axis=1) == 0
    position = xp.expand_dims(xp.arange(steps, device=alpha.device), axis=0)
    # after its end a process has nodes of weight 0, at a point where the function is evaluated anyway
    alpha = xp.where(xp.logical_and(has_ended, position > 0), first, alpha)
    identity = xp.eye(steps, dtype=alpha.dtype, device=alpha.device)
    below = xp.eye(steps, k=-1, dtype=alpha.dtype, device=alpha.device)  # eigh reads the lower triangle
    t = identity * xp.expand_dims(alpha, axis=1) + below * xp.expand_dims(beta, axis=1)
    t = t + (t * below).mT
    theta, vectors = xp.linalg.eigh(t)
    return theta, vectors[:, 0, :] ** 2


@program
def _forms(values: Array, tau: Array, size: Array) -> tuple[Array]:
    return (size * xp.sum(values * tau, axis=1),)


@program
def _average(*samples: Array) -> Pair:
    return _sample_mean(samples[0] if len(samples) == 1 else xp.concat(list(samples)))
