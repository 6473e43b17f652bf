"""Special functions where `lax` has no value at a pole or a limit, and SciPy has."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from tensorgraft.hub.array import NativeArray as Array


def digamma(x: Array) -> Array:
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x).astype(x.dtype), lax.digamma(x))


def igamma(a: Array, x: Array) -> Array:
    """Return the regularised lower incomplete gamma function; a step at 0 for `a` = 0, at infinity for `a` =
    infinity."""
    edge = ((a == 0) & (x > 0)) | (jnp.isinf(a) & (a > 0) & (x >= 0) & jnp.isfinite(x))
    safe = jnp.where(edge, 1, a)
    return jnp.where(edge, (a == 0).astype(x.dtype), lax.igamma(safe, x))


def igammac(a: Array, x: Array) -> Array:
    edge = jnp.isinf(a) & (a > 0) & (x >= 0) & jnp.isfinite(x)
    return jnp.where(edge, 1, lax.igammac(jnp.where(edge, 1, a), x)).astype(x.dtype)


_LONGEST = 100_000  # terms; below -_LONGEST the function is not summed


def _leading_terms(s: Array, q: Array) -> tuple[Array, Array]:
    """Return (the terms with q + n < 1, the first q + n that is not): `lax.zeta` is right from there on."""

    def below(a: Array) -> Array:
        return (a < 1) & (a > -_LONGEST)

    def step(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        total, a = carry
        return total + jnp.where(below(a), lax.pow(a, -s), 0), jnp.where(below(a), a + 1, a)

    s, q = jnp.broadcast_arrays(s, q)
    return lax.while_loop(lambda carry: jnp.any(below(carry[1])), step, (jnp.zeros_like(q), q))


def zeta(s: Array, q: Array) -> Array:
    """Hurwitz's zeta function, sum over n of (q + n)^-s: poles at s = 1 and at q = 0, -1, ..., NaN for s < 1."""
    is_integer = jnp.isfinite(q) & (q == lax.floor(q))
    head, shifted = _leading_terms(s, q)
    out = jnp.where(q == jnp.inf, 0, head + lax.zeta(s, shifted))
    out = jnp.where(s == jnp.inf, jnp.where(q < 1, jnp.inf, jnp.where(q == 1, 1, 0)), out)
    out = jnp.where((q <= 0) & is_integer, jnp.inf, out)
    out = jnp.where(s == 1, jnp.inf, jnp.where(s < 1, jnp.nan, out))
    return jnp.where(jnp.isnan(s) | jnp.isnan(q), jnp.nan, out).astype(q.dtype)
