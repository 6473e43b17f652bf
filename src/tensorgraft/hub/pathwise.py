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
from tensorgraft.hub.value import AnyArray, Value, with_operators


def _unit_nodes(step: float, last: float) -> np.ndarray:
    """Rows (log v, log(1 - v), weight) for integrals over v in (0, 1): v = 1 / (1 + exp(-pi sinh u))."""
    u = np.arange(-round(last / step), round(last / step) + 1) * step
    z = math.pi * np.sinh(u)
    low, high = -np.logaddexp(0, -z), -np.logaddexp(0, z)
    return np.stack([low, high, step * math.pi * np.cosh(u) * np.exp(low + high)], axis=1)


def _half_line_nodes(step: float, last: float) -> np.ndarray:
    """Return rows (y, weight) for integrals over y > 0 of functions that decrease like exp(-y): y = exp(u -
    exp(-u))."""
    u = np.arange(-round(last / step), round(last / step) + 1) * step
    y = np.exp(u - np.exp(-u))
    return np.stack([y, step * y * (1 + np.exp(-u))], axis=1)


# {dtype of the result: (distance of nodes, the last one)}; for others as many as single precision shows
_NODES = {dtypes.float64: (0.0625, 4.5)}
_FEWER = (0.07, 3.0)


def _integral(xp: Any, nodes: np.ndarray, like: Value, term: Callable[..., Value]) -> Value:
    """Return the sum of `term(*node) * weight` over the rows (*node, weight) of `nodes`."""

    def body(total: Value, row: tuple[Value, ...]) -> tuple[Value, Value]:
        return total + term(*row[:-1]) * row[-1], row[-1]

    columns = tuple(xp.asarray(np.ascontiguousarray(c)) for c in nodes.T)
    return xp.scan(body, xp.zeros_like(like), columns, length=len(nodes))[0]


def _doubles(xp: Any, *arrays: AnyArray) -> list[AnyArray]:
    shape = np.broadcast_shapes(*(xp.shape(a) for a in arrays))
    return [xp.broadcast_to(xp.astype(a, dtypes.float64), shape) for a in arrays]


def _towards_zero(
    xp: Any,
    x: Value,
    a: Value,
    log_density: Callable[[Value], Value],
    score: Callable[[Value], Value],
    nodes: tuple[float, float],
) -> Value:
    """Return the integral over t in (0, x) of (t / x)^(a - 1) exp(others) score / x. Both functions take log(t / x).

    With t = x v^p, p = 1 / min(a, 1), nothing but a logarithm is singular at 0.
    """
    p = xp.reciprocal(xp.minimum(a, 1.0))

    def term(log_v: Value, _: Value) -> Value:
        log_ratio = p * log_v
        density = (a * p - 1) * log_v + log_density(log_ratio)
        return xp.exp(density) * score(log_ratio)

    return p * _integral(xp, _unit_nodes(*nodes), x, term)


@with_operators
def gamma(xp: Any, alpha: Value, x: Value) -> Value:
    dtype = x.dtype
    nodes = _NODES.get(dtype, _FEWER)
    alpha, x = _doubles(xp, alpha, x)
    log_x, digamma, scale = xp.log(x), xp.digamma(alpha), xp.maximum(xp.sqrt(alpha), 1.0)
    score_at_x = log_x - digamma

    def above(y: Value) -> Value:
        step_size = scale * y
        log_ratio = xp.log1p(step_size / x)
        density = (alpha - 1) * log_ratio - step_size
        return xp.exp(density) * (score_at_x + log_ratio)

    high = scale * _integral(xp, _half_line_nodes(*nodes), x, above)
    low = _towards_zero(
        xp, x, alpha, lambda log_ratio: -(x * xp.expm1(log_ratio)), lambda log_ratio: score_at_x + log_ratio, nodes
    )
    out = xp.where(x < alpha, -(x * low), high)
    return xp.astype(xp.where(xp.isnan(out), xp.zeros_like(out), out), dtype)


@with_operators
def dirichlet(xp: Any, x: Value, alpha: Value, total: Value) -> Value:
    """Return the derivative by alpha of one component of a sample, from Beta(alpha, total - alpha), divided by 1 -
    x."""
    dtype = x.dtype
    x, alpha, total = _doubles(xp, x, alpha, total)
    score_at_x = xp.log(x) - xp.digamma(alpha) + xp.digamma(total)
    # the integral goes from x to the end of (0, 1) towards which the density falls: from `near` to 0, where the
    # distance to the other end is `far`
    is_low = x * total < alpha
    near, far = xp.where(is_low, x, 1 - x), xp.where(is_low, 1 - x, x)
    exponent = xp.where(is_low, alpha, total - alpha)
    other, ratio = total - exponent, near / far

    def drift(log_ratio: Value) -> Value:
        """Compute the logarithm of the distance to the other end, divided by `far`."""
        return xp.log1p(-(ratio * xp.expm1(log_ratio)))

    integral = _towards_zero(
        xp,
        near,
        exponent,
        lambda r: (other - 1) * drift(r),
        lambda r: score_at_x + xp.where(is_low, r, drift(r)),
        _NODES.get(dtype, _FEWER),
    )
    out = xp.where(is_low, -(ratio * integral), integral)
    return xp.astype(xp.where(xp.isnan(out), xp.zeros_like(out), out), dtype)
