"""Distributions that are sampled by rejection: every element draws until one of its proposals is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.dispatch.checks import require
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators


def _wide(xp: Any, x: Array) -> Array:
    dtype = xp.dtype_of(x)
    return xp.astype(x, dtypes.accumulator(dtype) if dtypes.is_floating(dtype) else dtypes.float64)


def _child(xp: Any, key: Any, round_: Any, number: int) -> Any:
    """Return a key of its own for one draw of one round (0-d uint32)."""
    return xp.fold_in(key, xp.full((), number, dtypes.uint32), round_)


def _until_accepted(
    xp: Any,
    key: AnyArray,
    like: AnyArray,
    propose: Callable[[Callable[[int], AnyArray]], tuple[AnyArray, AnyArray]],
    is_wanted: AnyArray | None = None,
) -> AnyArray:
    """Repeat `propose(keys) -> (values, accepted)` until every element (where `is_wanted`) has an accepted value."""

    def body(state: tuple[AnyArray, AnyArray, AnyArray]) -> tuple[AnyArray, AnyArray, AnyArray]:
        n, samples, is_done = state
        values, accepted = propose(lambda number: _child(xp, key, n, number))
        samples = xp.where(is_done, samples, values)
        return xp.add(n, xp.full((), 1, dtypes.uint32)), samples, xp.logical_or(is_done, accepted)

    is_done = xp.zeros(xp.shape(like), dtypes.bool_) if is_wanted is None else xp.logical_not(is_wanted)
    start = (xp.zeros((), dtypes.uint32), xp.zeros_like(like), is_done)
    return xp.while_loop(lambda state: xp.logical_not(xp.all(state[2])), body, start)[1]


@with_operators
def _gamma(xp: Any, key: Value, alpha: Value) -> Value:
    """Marsaglia and Tsang 2000; below 1 by the gamma of alpha + 1 times a power of a uniform number."""
    shape, dtype = alpha.shape, alpha.dtype
    small = alpha < 1
    d = xp.where(small, alpha + 1, alpha) - 1 / 3
    c = 1 / 3 / xp.sqrt(d)

    def propose(keys: Callable[[int], Value]) -> tuple[Value, Value]:
        z = xp.normal(keys(0), shape, dtype)
        v = c * z + 1
        positive = v > 0
        v = xp.where(positive, v, xp.ones_like(v))
        v = v * v * v
        bound = z * z * 0.5 + d * (1 - v + xp.log(v))
        log_u = xp.log1p(-xp.uniform(keys(1), shape, dtype))
        is_invalid = ~(alpha > 0)  # no such distribution: do not search for ever
        return d * v, is_invalid | (positive & (log_u < bound))

    samples = _until_accepted(xp, key, alpha, propose)
    boost = xp.fold_in(key, xp.full((), 1 << 31, dtypes.uint32), xp.zeros((), dtypes.uint32))
    power = xp.exponential(boost, shape, dtype) / xp.where(small, alpha, xp.ones_like(alpha))
    return xp.where(small, samples * xp.exp(-power), samples)


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


def _inverse(xp: Any, key: Value, shape: tuple[int, ...], first: Value, ratio: Callable[[Value], Value]) -> Value:
    """Sample by inversion: count the masses, from `first` on, that fit into a uniform number. For means of about 10."""
    u = xp.uniform(key, shape, first.dtype)

    def body(state: tuple[Value, Value, Value]) -> tuple[Value, Value, Value]:
        k, mass, total = state
        continues = u >= total
        k = xp.where(continues, k + 1, k)
        mass = xp.where(continues, mass * ratio(k), mass)
        return k, mass, xp.where(continues, total + mass, total)

    def unfinished(state: tuple[Value, Value, Value]) -> Value:
        k, mass, total = state
        return xp.any((u >= total) & ((mass > 0) & (k < 1000)))

    return xp.while_loop(
        unfinished, body, (xp.zeros_like(u), xp.broadcast_to(first, shape), xp.broadcast_to(first, shape))
    )[0]


class Hat(NamedTuple):
    """The parameters of a transformed rejection, in the letters of the papers, arrays of one shape."""

    a: Value
    b: Value
    c: Value  # the centre
    v: Value  # proposals below are accepted without a look at their mass
    alpha: Value


def _rejection(xp: Any, key: Value, hat: Hat, log_mass: Callable[[Value], Value], is_wanted: Value) -> Value:
    """Sample by transformed rejection, where `is_wanted`; nine of ten proposals are accepted (W. Hormann, "The
    transformed rejection method for generating Poisson random variables", 1993; "The generation of binomial random
    variates", 1993). `log_mass`: the logarithm of the mass of a number, up to what is in `hat.alpha`."""
    shape, dtype = hat.c.shape, hat.c.dtype

    def propose(keys: Callable[[int], Value]) -> tuple[Value, Value]:
        u = xp.uniform(keys(0), shape, dtype) - 0.5
        v = 1 - xp.uniform(keys(1), shape, dtype)
        edge = xp.maximum(0.5 - abs(u), 2.0**-54)
        k = xp.floor((2 * hat.a / edge + hat.b) * u + hat.c)
        possible = (k >= 0) & (k < 2.0**60)
        candidate = xp.where(possible, k, xp.zeros_like(k))
        bound = xp.log(v * hat.alpha / (hat.a / (edge * edge) + hat.b))
        is_squeezed = (edge >= 0.07) & (v <= hat.v)
        return candidate, possible & (is_squeezed | (bound <= log_mass(candidate)))

    return _until_accepted(xp, key, hat.c, propose, is_wanted)


def _keys(xp: Any, key: AnyArray) -> tuple[AnyArray, AnyArray]:
    zero = xp.zeros((), dtypes.uint32)
    return tuple(xp.fold_in(key, xp.full((), n, dtypes.uint32), zero) for n in (1 << 30, 1 << 29))


@kernel("poisson", random=True)
@with_operators
def _poisson(xp: Any, rate: Value, *, key: Value) -> Value:
    require(xp, (rate >= 0, "invalid Poisson rate, expected rate to be non-negative"))
    lam = xp.astype(rate, dtypes.float64)
    small_key, large_key = _keys(xp, key)
    large = lam >= 10
    low = xp.where(large, xp.full_like(lam, 1.0), xp.maximum(lam, 0))
    small_samples = _inverse(xp, small_key, lam.shape, xp.exp(-low), lambda k: low / k)
    high = xp.where(large, lam, xp.full_like(lam, 10.0))

    def log_mass(k: Value) -> Value:
        return k * xp.log(high) - high - xp.lgamma(k + 1)

    b = 0.931 + 2.53 * xp.sqrt(high)
    hat = Hat(0.02483 * b - 0.059, b, high + 0.43, 0.9277 - 3.6224 / (b - 2), 1.1239 + 1.1328 / (b - 3.4))
    large_samples = _rejection(xp, large_key, hat, log_mass, large)
    return xp.where(large, large_samples, small_samples)


@kernel("binomial", random=True, meta=False)
@with_operators
def _binomial(xp: Any, count: Value, prob: Value, *, key: Value) -> Value:
    dtype = count.dtype
    n, p = xp.astype(count, dtypes.float64), xp.astype(prob, dtypes.float64)
    n, p = n + p * 0, p + n * 0  # one shape
    flip = p > 0.5
    q = xp.where(flip, 1 - p, p)
    small_key, large_key = _keys(xp, key)
    large = n * q >= 10
    q_low = xp.where(large, xp.zeros_like(q), q)
    odds_low = q_low / (1 - q_low)
    first = xp.exp(n * xp.log1p(-q_low))
    small_samples = _inverse(xp, small_key, n.shape, first, lambda k: odds_low * (xp.maximum(n - k + 1, 0) / k))
    n_high = xp.where(large, n, xp.full_like(n, 40.0))
    q_high = xp.where(large, q, xp.full_like(q, 0.5))
    mode = xp.floor((n_high + 1) * q_high)
    log_odds = xp.log(q_high) - xp.log1p(-q_high)
    log_ways_of_mode = xp.lgamma(mode + 1) + xp.lgamma(n_high - mode + 1)

    def log_mass(k: Value) -> Value:
        rest = n_high - k
        in_support = rest >= 0
        rest = xp.maximum(rest, 0)
        log_ways = log_ways_of_mode - (xp.lgamma(k + 1) + xp.lgamma(rest + 1))
        return xp.where(in_support, log_ways + (k - mode) * log_odds, xp.full_like(k, -math.inf))

    deviation = xp.sqrt(n_high * q_high * (1 - q_high))
    b = 1.15 + 2.53 * deviation
    a = 0.0248 * b + 0.01 * q_high - 0.0873
    hat = Hat(a, b, n_high * q_high + 0.5, 0.92 - 4.2 / b, (2.83 + 5.1 / b) * deviation)
    large_samples = _rejection(xp, large_key, hat, log_mass, large)
    samples = xp.where(large, large_samples, small_samples)
    samples = xp.where(flip, n - samples, samples)
    return xp.astype(samples, dtype)
