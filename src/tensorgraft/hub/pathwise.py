"""Derivatives of samples of gamma and Dirichlet distributions by their parameters: implicit reparametrisation.

A sample x with distribution function F(x; a) and density f moves by -(dF/da) / f (M. Figurnov et al., Implicit
Reparameterization Gradients, 2018). That is -1/f(x) times the integral of f(t) s(t) for t < x, or +1/f(x) times that
for t > x, where the score s is the derivative of log f by a: the integral over the side on which f falls away from x
has no cancellation. It is summed by double exponential quadrature, which takes singularities at the ends
(H. Takahasi and M. Mori, 1974).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

_STEP = 0.0625
_GRID = np.arange(-72, 73) * _STEP


def _unit_nodes() -> np.ndarray:
    """Rows (log v, log(1 - v), weight) for integrals over v in (0, 1): v = 1 / (1 + exp(-pi sinh u))."""
    z = math.pi * np.sinh(_GRID)
    low, high = -np.logaddexp(0, -z), -np.logaddexp(0, z)
    return np.stack([low, high, _STEP * math.pi * np.cosh(_GRID) * np.exp(low + high)], axis=1)


def _half_line_nodes() -> np.ndarray:
    """Rows (y, weight) for integrals over y > 0 of what falls off like exp(-y): y = exp(u - exp(-u))."""
    y = np.exp(_GRID - np.exp(-_GRID))
    return np.stack([y, _STEP * y * (1 + np.exp(-_GRID))], axis=1)


def _integral(xp: Any, nodes: np.ndarray, like: Array, term: Callable[..., Array]) -> Array:
    """The sum of `term(*node) * weight` over the rows (*node, weight) of `nodes`."""

    def body(total: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        return xp.add(total, xp.multiply(term(*row[:-1]), row[-1])), row[-1]

    columns = tuple(xp.asarray(np.ascontiguousarray(c)) for c in nodes.T)
    return xp.scan(body, xp.zeros_like(like), columns, length=len(nodes))[0]


def _doubles(xp: Any, *arrays: Array) -> list[Array]:
    shape = np.broadcast_shapes(*(xp.shape(a) for a in arrays))
    return [xp.broadcast_to(xp.astype(a, dtypes.float64), shape) for a in arrays]


def _towards_zero(
    xp: Any, x: Array, a: Array, others: Callable[[Array], Array], score: Callable[[Array], Array]
) -> Array:
    """The integral over t in (0, x) of (t / x)^(a - 1) exp(others) score / x. Both functions take log(t / x).

    With t = x v^p, p = 1 / min(a, 1), nothing but a logarithm is singular at 0.
    """
    p = xp.reciprocal(xp.minimum(a, 1.0))

    def term(log_v: Array, _: Array) -> Array:
        log_ratio = xp.multiply(p, log_v)
        density = xp.add(xp.multiply(xp.subtract(xp.multiply(a, p), 1), log_v), others(log_ratio))
        return xp.multiply(xp.exp(density), score(log_ratio))

    return xp.multiply(p, _integral(xp, _unit_nodes(), x, term))


def gamma(xp: Any, alpha: Array, x: Array) -> Array:
    dtype = xp.dtype_of(x)
    alpha, x = _doubles(xp, alpha, x)
    log_x, digamma, scale = xp.log(x), xp.digamma(alpha), xp.maximum(xp.sqrt(alpha), 1.0)
    score_at_x = xp.subtract(log_x, digamma)

    def above(y: Array) -> Array:
        away = xp.multiply(scale, y)
        log_ratio = xp.log1p(xp.divide(away, x))
        density = xp.subtract(xp.multiply(xp.subtract(alpha, 1), log_ratio), away)
        return xp.multiply(xp.exp(density), xp.add(score_at_x, log_ratio))

    high = xp.multiply(scale, _integral(xp, _half_line_nodes(), x, above))
    low = _towards_zero(
        xp,
        x,
        alpha,
        lambda log_ratio: xp.negative(xp.multiply(x, xp.expm1(log_ratio))),
        lambda log_ratio: xp.add(score_at_x, log_ratio),
    )
    out = xp.where(xp.less(x, alpha), xp.negative(xp.multiply(x, low)), high)
    return xp.astype(xp.where(xp.isnan(out), xp.zeros_like(out), out), dtype)


def dirichlet(xp: Any, x: Array, alpha: Array, total: Array) -> Array:
    """Return the derivative by alpha of one component of a sample, from Beta(alpha, total - alpha), divided by 1 -
    x."""
    dtype = xp.dtype_of(x)
    x, alpha, total = _doubles(xp, x, alpha, total)
    beta, rest = xp.subtract(total, alpha), xp.subtract(1, x)
    score_at_x = xp.add(xp.subtract(xp.log(x), xp.digamma(alpha)), xp.digamma(total))
    odds = xp.divide(x, rest)

    def drift(log_ratio: Array, odds: Array) -> Array:
        """log of (1 - t) / (1 - x) where log(t / x) is given: the logarithm for the other end of the interval."""
        return xp.log1p(xp.negative(xp.multiply(odds, xp.expm1(log_ratio))))

    low = _towards_zero(
        xp,
        x,
        alpha,
        lambda r: xp.multiply(xp.subtract(beta, 1), drift(r, odds)),
        lambda r: xp.add(score_at_x, r),
    )
    inverse = xp.divide(rest, x)
    high = _towards_zero(
        xp,
        rest,
        beta,
        lambda r: xp.multiply(xp.subtract(alpha, 1), drift(r, inverse)),
        lambda r: xp.add(score_at_x, drift(r, inverse)),
    )
    out = xp.where(xp.less(xp.multiply(x, total), alpha), xp.negative(xp.multiply(odds, low)), high)
    return xp.astype(xp.where(xp.isnan(out), xp.zeros_like(out), out), dtype)
