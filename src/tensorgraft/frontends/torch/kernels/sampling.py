"""Distributions that are sampled by rejection: every element draws until one of its proposals is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import require
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


def _wide(xp: Any, x: Array) -> Array:
    dtype = xp.dtype_of(x)
    return xp.astype(x, dtypes.accumulator(dtype) if dtypes.is_floating(dtype) else dtypes.float64)


def _child(xp: Any, key: Array, round_: Array, which: int) -> Array:
    """A key of its own for one draw of one round (0-d uint32)."""
    return xp.fold_in(key, xp.full((), which, dtypes.uint32), round_)


def _until_accepted(
    xp: Any, key: Array, like: Array, propose: Callable[[Callable[[int], Array]], tuple[Array, Array]]
) -> Array:
    """`propose(keys) -> (values, accepted)`, repeated until every element has an accepted value."""

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        n, drawn, done = state
        values, accepted = propose(lambda which: _child(xp, key, n, which))
        drawn = xp.where(done, drawn, values)
        return xp.add(n, xp.full((), 1, dtypes.uint32)), drawn, xp.logical_or(done, accepted)

    start = (xp.zeros((), dtypes.uint32), xp.zeros_like(like), xp.zeros(xp.shape(like), dtypes.bool_))
    return xp.while_loop(lambda state: xp.logical_not(xp.all(state[2])), body, start)[1]


def _gamma(xp: Any, key: Array, alpha: Array) -> Array:
    """Marsaglia and Tsang 2000; below 1 by the gamma of alpha + 1 times a power of a uniform number."""
    shape, dtype = xp.shape(alpha), xp.dtype_of(alpha)
    small = xp.less(alpha, 1)
    d = xp.subtract(xp.where(small, xp.add(alpha, 1), alpha), 1 / 3)
    c = xp.divide(1 / 3, xp.sqrt(d))

    def propose(keys: Callable[[int], Array]) -> tuple[Array, Array]:
        z = xp.normal(keys(0), shape, dtype)
        v = xp.add(xp.multiply(c, z), 1)
        positive = xp.greater(v, 0)
        v = xp.where(positive, v, xp.ones_like(v))
        v = xp.multiply(xp.multiply(v, v), v)
        bound = xp.add(xp.multiply(xp.multiply(z, z), 0.5), xp.multiply(d, xp.add(xp.subtract(1, v), xp.log(v))))
        log_u = xp.log1p(xp.negative(xp.uniform(keys(1), shape, dtype)))
        bad = xp.logical_not(xp.greater(alpha, 0))  # no such distribution: do not search for ever
        return xp.multiply(d, v), xp.logical_or(bad, xp.logical_and(positive, xp.less(log_u, bound)))

    drawn = _until_accepted(xp, key, alpha, propose)
    boost = xp.fold_in(key, xp.full((), 1 << 31, dtypes.uint32), xp.zeros((), dtypes.uint32))
    power = xp.divide(xp.exponential(boost, shape, dtype), xp.where(small, alpha, xp.ones_like(alpha)))
    return xp.where(small, xp.multiply(drawn, xp.exp(xp.negative(power))), drawn)


@kernel("_standard_gamma", random=True)
def _standard_gamma(xp: Any, alpha: Array, *, key: Array) -> Array:
    wide = _wide(xp, alpha)
    tiny = float(dtypes.finfo(xp.dtype_of(alpha)).tiny)
    return xp.maximum(_gamma(xp, key, wide), tiny)


@kernel("_sample_dirichlet", random=True, meta=False)
def _sample_dirichlet(xp: Any, alpha: Array, *, key: Array) -> Array:
    wide = _wide(xp, alpha)
    tiny = float(dtypes.finfo(xp.dtype_of(alpha)).tiny)
    gammas = xp.maximum(_gamma(xp, key, wide), tiny)
    return xp.astype(xp.divide(gammas, xp.sum(gammas, axis=-1, keepdims=True)), xp.dtype_of(alpha))


def _inverse(xp: Any, key: Array, shape: tuple[int, ...], first: Array, ratio: Callable[[Array], Array]) -> Array:
    """Sample by inversion: count the masses, from `first` on, that fit into a uniform number. For means of about 10."""
    u = xp.uniform(key, shape, xp.dtype_of(first))

    def body(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, mass, total = state
        more = xp.greater_equal(u, total)
        k = xp.where(more, xp.add(k, 1), k)
        mass = xp.where(more, xp.multiply(mass, ratio(k)), mass)
        return k, mass, xp.where(more, xp.add(total, mass), total)

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        k, mass, total = state
        return xp.any(xp.logical_and(xp.greater_equal(u, total), xp.logical_and(xp.greater(mass, 0), xp.less(k, 1000))))

    return xp.while_loop(
        unfinished, body, (xp.zeros_like(u), xp.broadcast_to(first, shape), xp.broadcast_to(first, shape))
    )[0]


def _rejection(xp: Any, key: Array, mean: Array, deviation: Array, log_mass: Callable[[Array], Array]) -> Array:
    """Rejection from a Cauchy hat (Devroye 1986, section X.4.3: a mass function with one mode, of known mean and
    deviation); needs about 3 rounds."""
    shape, dtype = xp.shape(mean), xp.dtype_of(mean)
    width = xp.add(xp.multiply(deviation, math.sqrt(2)), 1)
    top = log_mass(xp.floor(mean))

    def propose(keys: Callable[[int], Array]) -> tuple[Array, Array]:
        y = xp.tan(xp.multiply(xp.subtract(xp.uniform(keys(0), shape, dtype), 0.5), math.pi))
        k = xp.floor(xp.add(xp.multiply(width, y), mean))
        possible = xp.logical_and(xp.greater_equal(k, 0), xp.less(xp.abs(k), 2.0**60))
        held = xp.where(possible, k, xp.zeros_like(k))
        hat = xp.add(xp.log1p(xp.multiply(y, y)), xp.subtract(log_mass(held), top))
        log_u = xp.log1p(xp.negative(xp.uniform(keys(1), shape, dtype)))
        return held, xp.logical_and(possible, xp.less(xp.add(log_u, math.log(1.2)), hat))

    return _until_accepted(xp, key, mean, propose)


def _keys(xp: Any, key: Array) -> tuple[Array, Array]:
    zero = xp.zeros((), dtypes.uint32)
    return tuple(xp.fold_in(key, xp.full((), n, dtypes.uint32), zero) for n in (1 << 30, 1 << 29))


@kernel("poisson", random=True)
def _poisson(xp: Any, rate: Array, *, key: Array) -> Array:
    require(xp, (xp.greater_equal(rate, 0), "invalid Poisson rate, expected rate to be non-negative"))
    lam = xp.astype(rate, dtypes.float64)
    small_key, large_key = _keys(xp, key)
    large = xp.greater_equal(lam, 10)
    low = xp.where(large, xp.full_like(lam, 1.0), xp.maximum(lam, 0))
    few = _inverse(xp, small_key, xp.shape(lam), xp.exp(xp.negative(low)), lambda k: xp.divide(low, k))
    high = xp.where(large, lam, xp.full_like(lam, 10.0))

    def log_mass(k: Array) -> Array:
        return xp.subtract(xp.subtract(xp.multiply(k, xp.log(high)), high), xp.lgamma(xp.add(k, 1)))

    many = _rejection(xp, large_key, high, xp.sqrt(high), log_mass)
    return xp.where(large, many, few)


@kernel("binomial", random=True, meta=False)
def _binomial(xp: Any, count: Array, prob: Array, *, key: Array) -> Array:
    dtype = xp.dtype_of(count)
    n, p = xp.astype(count, dtypes.float64), xp.astype(prob, dtypes.float64)
    n, p = xp.add(n, xp.multiply(p, 0)), xp.add(p, xp.multiply(n, 0))  # one shape
    flip = xp.greater(p, 0.5)
    q = xp.where(flip, xp.subtract(1, p), p)
    small_key, large_key = _keys(xp, key)
    large = xp.greater_equal(xp.multiply(n, q), 10)
    q_low = xp.where(large, xp.zeros_like(q), q)
    odds = xp.divide(q_low, xp.subtract(1, q_low))
    first = xp.exp(xp.multiply(n, xp.log1p(xp.negative(q_low))))
    few = _inverse(
        xp,
        small_key,
        xp.shape(n),
        first,
        lambda k: xp.multiply(odds, xp.divide(xp.maximum(xp.add(xp.subtract(n, k), 1), 0), k)),
    )
    n_high = xp.where(large, n, xp.full_like(n, 40.0))
    q_high = xp.where(large, q, xp.full_like(q, 0.5))
    mean = xp.multiply(n_high, q_high)
    deviation = xp.sqrt(xp.multiply(mean, xp.subtract(1, q_high)))

    def log_mass(k: Array) -> Array:
        rest = xp.subtract(n_high, k)
        inside = xp.greater_equal(rest, 0)
        rest = xp.maximum(rest, 0)
        ways = xp.subtract(xp.lgamma(xp.add(n_high, 1)), xp.add(xp.lgamma(xp.add(k, 1)), xp.lgamma(xp.add(rest, 1))))
        log_p = xp.add(xp.multiply(k, xp.log(q_high)), xp.multiply(rest, xp.log1p(xp.negative(q_high))))
        return xp.where(inside, xp.add(ways, log_p), xp.full_like(k, -math.inf))

    many = _rejection(xp, large_key, mean, deviation, log_mass)
    drawn = xp.where(large, many, few)
    drawn = xp.where(flip, xp.subtract(n, drawn), drawn)
    return xp.astype(drawn, dtype)
