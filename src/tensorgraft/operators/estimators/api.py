"""`trace`, `diagonal`, `logdet`, `frobenius_norm` of linear operators."""

from __future__ import annotations

import operator as python
import warnings
from collections.abc import Callable
from typing import Any

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.composed import TaggedLinearOperator
from tensorgraft.operators.estimators import samplers
from tensorgraft.operators.estimators.adaptive import grow_until
from tensorgraft.operators.estimators.diagonals import DiagonalHutchinson
from tensorgraft.operators.estimators.hutchinson import (
    GrowingEstimator,
    Hutchinson,
    HutchPlusPlus,
    NAHutchPlusPlus,
    NystromPlusPlus,
    Pair,
    _sample_mean,
)
from tensorgraft.operators.estimators.lanczos import Quadrature
from tensorgraft.operators.estimators.leave_one_out import XDiag, XTrace
from tensorgraft.operators.estimators.problem import Problem
from tensorgraft.operators.estimators.programs import program, squares
from tensorgraft.operators.estimators.result import Estimate
from tensorgraft.operators.estimators.xnystrace import XNysDiag, XNysTrace

# name -> (class, the sampler that suits it); the lengths of test vectors do not count in XTrace and XNysTrace
TRACE: dict[str, tuple[type[GrowingEstimator], str]] = {
    "hutchinson": (Hutchinson, "rademacher"),
    "hutch++": (HutchPlusPlus, "rademacher"),
    "na_hutch++": (NAHutchPlusPlus, "normal"),
    "nystrom++": (NystromPlusPlus, "normal"),
    "xtrace": (XTrace, "normal"),
    "xnystrace": (XNysTrace, "normal"),
    "slq": (Quadrature, "sphere"),
}
DIAGONAL: dict[str, tuple[type[GrowingEstimator], str]] = {
    "hutchinson": (DiagonalHutchinson, "rademacher"),
    "xdiag": (XDiag, "rademacher"),
    "xnysdiag": (XNysDiag, "rademacher"),
}
_DEFAULT_BUDGET = 100


def trace(
    operator: LinearOperator,
    method: str = "auto",
    k: int | None = None,
    *,
    rtol: float | None = None,
    seed: Any = 0,
    sampler: str | None = None,
    test_matrix: Any = None,
    function: Callable[[Array], Array] | None = None,
    progress: bool = False,
) -> Estimate:
    """Return an estimate of the trace of a square operator, from products with random vectors.

    Arguments:
        method: "hutchinson"; "hutch++" and "na_hutch++" (Meyer, Musco, Musco, Woodruff, arXiv 2010.09649); "nystrom++"
            (Persson, Cortinovis, Kressner, arXiv 2201.10684), "xtrace" and "xnystrace" (Epperly, Tropp, Webber, arXiv
            2301.07825); "slq", stochastic Lanczos quadrature (Ubaru, Chen, Saad 2017). "auto" takes "xnystrace" for
            operators tagged positive or negative semidefinite, else "xtrace", and "slq" with a `function`.
            "nystrom++" and "xnystrace" are for semidefinite operators only, "slq" for hermitian ones.
        k: how many products with the operator, all of which are used; 100 where neither `k` nor `rtol` is given. From
            k = n on the result is exact.
        rtol: more products until the standard error is at most this part of the estimate (at most `k` products, or n).
            Not inside `tg.jit`.
        seed: an int, a 0-d integer array, or a key of `tensorgraft.random`. The same seed gives the same test vectors
            on every backend.
        sampler: of the test vectors: "rademacher", "normal" or "sphere" (of radius sqrt(n)); complex for complex
            operators. None: the one that suits the method.
        test_matrix: (n, columns) to use in place of random vectors: for "hutchinson", "na_hutch++", "nystrom++" and
            "xnystrace" k columns, for "hutch++" k - k // 3, for "xtrace" half of k, rounded up.
        function: of a real array, element by element: the trace of this function of a hermitian operator ("slq").
        progress: show a bar while a tolerance is reached (needs the package rich).

    Returns:
        An `Estimate`. The value is real for operators that are real or tagged hermitian.

    Raises:
        ValueError: for an operator that is not square, a budget below what the method needs, an unknown method or
            sampler, a test matrix of another shape, tags that the method needs and the operator has not.
        TypeError: for a budget that is no int.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> matrix = tg.operators.MatrixLinearOperator(xp.eye(1000, device="numpy"), tags=("positive_semidefinite",))
    >>> round(float(tg.operators.trace(matrix, k=20).value), 6)
    1000.0
    """
    if function is not None and method not in ("auto", "slq"):
        raise ValueError(f"trace: a function of the operator requires the method 'slq', got {method!r}")
    if method == "auto":
        method = "slq" if function is not None else "xnystrace" if _sign(operator) else "xtrace"
    run = _Run("trace", operator, TRACE, method, k, rtol, seed, sampler, test_matrix, progress)
    if run.is_exact:
        if function is not None:
            return run.exact(lambda o: xp.sum(function(xp.linalg.eigvalsh(o.as_matrix()))))
        return run.exact(lambda o: xp.sum(o.diagonal()))
    if method == "slq":
        return run.estimate(Quadrature.of(function))
    return run.estimate()


def diagonal(
    operator: LinearOperator,
    method: str = "auto",
    k: int | None = None,
    *,
    rtol: float | None = None,
    seed: Any = 0,
    sampler: str | None = None,
    test_matrix: Any = None,
    progress: bool = False,
) -> Estimate:
    """Return an estimate of the diagonal (n,) of a square operator; arguments and exceptions as of `trace`.

    Arguments:
        method: "hutchinson" (Bekas, Kokiopoulou, Saad 2007); "xdiag", "xnysdiag" (arXiv 2301.07825), the second for
            semidefinite operators. "auto" takes "xnysdiag" where the tags allow it, else "xdiag".
        rtol: the bound is for 2-norms.
        test_matrix: k columns, for "xdiag" half of k, rounded up.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> matrix = xp.asarray([[2.0, 1.0], [1.0, 3.0]], device="numpy")
    >>> tg.operators.diagonal(tg.operators.MatrixLinearOperator(matrix), k=2).value.tolist()
    [2.0, 3.0]
    """
    if method == "auto":
        method = "xnysdiag" if _sign(operator) else "xdiag"
    run = _Run("diagonal", operator, DIAGONAL, method, k, rtol, seed, sampler, test_matrix, progress)
    return run.exact(lambda o: o.diagonal()) if run.is_exact else run.estimate()


def logdet(
    operator: LinearOperator,
    k: int | None = None,
    *,
    rtol: float | None = None,
    seed: Any = 0,
    sampler: str | None = None,
    progress: bool = False,
) -> Estimate:
    """Return an estimate of the logarithm of the determinant of a positive definite operator, tagged
    positive_semidefinite: the trace of its logarithm by stochastic Lanczos quadrature (Ubaru, Chen, Saad, "Fast
    estimation of tr(f(A)) via stochastic Lanczos quadrature", 2017); arguments and exceptions as of `trace`. From k = n
    on it is exact.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> matrix = tg.operators.MatrixLinearOperator(xp.eye(1000, device="numpy") * 2.0, tags=("positive_semidefinite",))
    >>> round(float(tg.operators.logdet(matrix, k=20).value), 6)  # 1000 log(2)
    693.147181
    """
    if isinstance(operator, LinearOperator) and "positive_semidefinite" not in operator.tags:
        raise ValueError(
            "logdet: expected a positive definite operator, tagged positive_semidefinite, got tags"
            f" {_tags(operator)}. For other operators use linalg.slogdet(operator.as_matrix())"
        )
    run = _Run("logdet", operator, {"slq": TRACE["slq"]}, "slq", k, rtol, seed, sampler, None, progress)
    if run.is_exact:
        return run.exact(lambda o: xp.linalg.slogdet(o.as_matrix()).logabsdet)
    return run.estimate(Quadrature.of(_logarithm))


def frobenius_norm(
    operator: LinearOperator,
    method: str = "auto",
    k: int | None = None,
    *,
    rtol: float | None = None,
    seed: Any = 0,
    sampler: str | None = None,
    test_matrix: Any = None,
    progress: bool = False,
) -> Estimate:
    """Return an estimate of the Frobenius norm of an operator (m, n), square or not: the square root of the trace of A*
    A.

    Arguments and exceptions as of `trace`, whose methods it uses on A* A. A product with that is one with the operator
    and one with its adjoint, so k products are k // 2 of the method; "hutchinson", the mean of |A w|^2, needs no
    adjoint, and all k. "auto" is "xnystrace", and "hutchinson" where k is less than 4.
    """
    if method == "auto":
        method = "hutchinson" if k is not None and k < 4 else "xnystrace"
    least = 1 if method == "hutchinson" else 2 * _NORM[method][0].least if method in _NORM else 1
    run = _Run("frobenius_norm", operator, _NORM, method, k, rtol, seed, sampler, test_matrix, progress, least=least)
    if run.is_exact:
        return run.exact(lambda o: xp.linalg.vector_norm((o if o.in_size <= o.out_size else o.H).as_matrix()))
    if method == "hutchinson":
        estimate = run.estimate(SquaredNorms)
    else:
        gram = TaggedLinearOperator(operator.H @ operator, ("positive_semidefinite",))
        estimate = trace(gram, method, run.k // 2, rtol=None if rtol is None else 2 * rtol, seed=seed, sampler=sampler,
                      test_matrix=test_matrix, progress=progress)  # fmt: skip
    products = estimate.products if method == "hutchinson" else 2 * estimate.products
    value = xp.sqrt(xp.maximum(estimate.value, xp.zeros_like(estimate.value)))
    positive = xp.where(value > 0, value, xp.ones_like(value))
    return Estimate(value, estimate.standard_error / (2 * positive), products, estimate.method)


class SquaredNorms(Hutchinson):
    """The mean of |A w|^2."""

    def estimate(self) -> Pair:
        assert self.y is not None
        return _mean_square(self.y)


@program
def _mean_square(y: Array) -> Pair:
    return _sample_mean(squares(y))


def _logarithm(x: Array) -> Array:
    return xp.log(xp.maximum(x, xp.zeros_like(x)))


_NORM = {name: row for name, row in TRACE.items() if name != "slq"}


# ---- a call ----------------------------------------------------------------------------------------------------------


class _Run:
    """One call of an estimator: its checked arguments, and the computation with them."""

    def __init__(
        self,
        name: str,
        operator: LinearOperator,
        methods: dict[str, tuple[type[GrowingEstimator], str]],
        method: str,
        k: int | None,
        rtol: float | None,
        seed: Any,
        sampler: str | None,
        test_matrix: Any,
        progress: bool,
        least: int | None = None,
    ) -> None:
        if not isinstance(operator, LinearOperator):
            raise TypeError(f"{name}: expected a LinearOperator, got a {type(operator).__qualname__}")
        if operator.in_size != operator.out_size and name != "frobenius_norm":
            raise ValueError(f"{name}: expected a square operator, got one of shape {operator.shape}")
        if method not in methods:
            raise ValueError(f"{name}: unknown method {method!r}: expected auto, {', '.join(methods)}")
        self.cls, suits = methods[method]
        if sampler is not None and sampler not in samplers.NAMES:
            raise ValueError(f"{name}: unknown sampler {sampler!r}: expected {', '.join(samplers.NAMES)}")
        if rtol is not None and not rtol > 0:
            raise ValueError(f"{name}: expected a positive rtol, got {rtol}")
        self.name, self.operator, self.method, self.progress = name, operator, method, progress
        self.seed, self.sampler, self.rtol = seed, sampler or suits, rtol
        self.n = min(operator.shape)
        self.test_matrix = None if test_matrix is None else xp.asarray(test_matrix, device=operator.device)
        self.k = self._budget(k, self.cls.least if least is None else least)
        self.is_exact = self.k >= self.n and test_matrix is None and rtol is None
        self.flip = False
        if self.cls.definite and name != "frobenius_norm":
            self.flip = "negative_semidefinite" in operator.tags and "positive_semidefinite" not in operator.tags
            if not _sign(operator):
                raise ValueError(
                    f"{name}: {method!r} requires an operator that is tagged positive or negative semidefinite,"
                    f" this one has the tags {_tags(operator)}. Add tags=('positive_semidefinite',) if it is, else"
                    " use another method"
                )
        if method == "slq" and "hermitian" not in operator.tags:
            raise ValueError(
                f"{name}: 'slq' requires an operator that is tagged hermitian, this one has the tags {_tags(operator)}"
            )
        if test_matrix is not None and name != "frobenius_norm":
            self._check_test_matrix()

    def _budget(self, k: int | None, least: int) -> int:
        if k is None:
            if self.rtol is not None:
                return max(self.n, 1)
            if self.test_matrix is None:
                return _DEFAULT_BUDGET
            raise ValueError(f"{self.name}: a test matrix requires a budget k")
        if isinstance(k, bool):
            raise TypeError(f"{self.name}: expected an int k, the number of products, got {k}")
        try:
            budget = python.index(k)
        except TypeError:
            raise TypeError(f"{self.name}: expected an int k, the number of products, got {k!r}") from None
        if budget < 1:
            raise ValueError(f"{self.name}: expected k of at least 1, the number of products, got {budget}")
        if budget < least and budget < self.n:
            raise ValueError(f"{self.name}: {self.method!r} requires k of at least {least} products, got {budget}")
        return budget

    def _check_test_matrix(self) -> None:
        matrix = self.test_matrix
        assert matrix is not None
        shape = (self.operator.in_size, self.cls.columns(self.k))
        if matrix.shape != shape:
            raise ValueError(
                f"{self.name}: {self.method!r} with k = {self.k} expects a test matrix of shape {shape}, got one"
                f" of shape {matrix.shape}"
            )
        if not dtypes.is_inexact(matrix.dtype):
            self.test_matrix = xp.astype(matrix, self.operator.dtype)

    def exact(self, fn: Callable[[LinearOperator], Array]) -> Estimate:
        value = fn(self.operator)
        if "hermitian" in self.operator.tags and dtypes.is_complex(value.dtype):
            value = xp.real(value)
        not_exact = type(self.operator).diagonal is LinearOperator.diagonal or self.name in ("logdet", "frobenius_norm")
        error = xp.zeros_like(xp.real(value) if dtypes.is_complex(value.dtype) else value)
        return Estimate(value, error, self.n if not_exact else 0, "exact")

    def estimate(self, cls: Callable[[Problem], GrowingEstimator] | None = None) -> Estimate:
        problem = Problem(self.operator, self.seed, self.sampler, self.test_matrix, self.flip)
        method = (cls or self.cls)(problem)
        if self.rtol is None:
            method.grow(self.k)
            value, error = method.estimate()
        else:
            (value, error), converged = grow_until(method, self.rtol, min(self.k, self.n), self.progress)
            if not converged and self.k >= self.n and self.name in ("trace", "diagonal"):
                return self._exact_after(problem)
            if not converged:
                warnings.warn(
                    f"{self.name}: {problem.products} products did not reduce the standard error to rtol ="
                    f" {self.rtol:g}",
                    stacklevel=3,
                )
        return Estimate(-value if self.flip else value, error, problem.products, self.method)

    def _exact_after(self, problem: Problem) -> Estimate:
        """Return the exact estimate of n products, where as many did not reach the tolerance."""
        exact = self.exact(lambda o: xp.sum(o.diagonal()) if self.name == "trace" else o.diagonal())
        return Estimate(exact.value, exact.standard_error, problem.products + exact.products, "exact")


def _sign(operator: Any) -> bool:
    tags: frozenset[str] = getattr(operator, "tags", frozenset())
    return "positive_semidefinite" in tags or "negative_semidefinite" in tags


def _tags(operator: LinearOperator) -> str:
    return ", ".join(sorted(operator.tags)) or "none"
