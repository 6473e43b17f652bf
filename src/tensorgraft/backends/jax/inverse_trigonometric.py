"""Inverse trigonometric functions of float32 in operations that XLA vectorises. For its own, XLA calls a function of
the C library for each element on a CPU.

The quotient of the smaller by the larger operand is in [0, 1], where atan(t) / t is a polynomial of t^2 (a minimax fit,
relative error 2.4e-9); the quadrant says which multiple of pi / 2 it is added to, or subtracted from. Results are off
by at most 1.6 units in the last place (arccosine and arcsine: 3). Denormal operands count as zero, as elsewhere in XLA
on a CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.operation import broadcast
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

# highest power first
_COEFFICIENTS = (-0.00175393015, 0.0107269441, -0.0308045973, 0.0575521024, -0.0837731549, 0.109420307, -0.142619331,
                 0.19998266, -0.333332836)  # fmt: skip
_QUARTER = np.float32(math.pi / 2)
_REST = np.float32(math.pi / 2 - float(_QUARTER))


def _of_quotient(t: Array) -> Array:
    u = t * t
    polynomial = jnp.full_like(t, _COEFFICIENTS[0])
    for c in _COEFFICIENTS[1:]:
        polynomial = polynomial * u + np.float32(c)
    return lax.select(t == 1, jnp.full_like(t, _QUARTER / 2), t + t * u * polynomial)  # a number that programs expect


@jax.custom_jvp
def _atan2(y: Array, x: Array) -> Array:
    y, x = broadcast(y, x)
    rise, run = lax.abs(y), lax.abs(x)
    larger, smaller = lax.max(rise, run), lax.min(rise, run)
    t = lax.select(larger == smaller, lax.convert_element_type(larger > 0, larger.dtype), smaller / larger)
    steep, left = rise > run, jnp.signbit(x)
    angle = _of_quotient(t)
    angle = lax.select(steep ^ left, -angle, angle)
    quarters = lax.select(steep, jnp.ones_like(t), 2 * lax.convert_element_type(left, t.dtype))
    out = jnp.copysign(quarters * _QUARTER + (angle + quarters * _REST), y)
    return lax.select(jnp.isnan(x) | jnp.isnan(y), jnp.full_like(out, np.nan), out)


@_atan2.defjvp
def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    return _atan2(*primals), jax.jvp(lax.atan2, primals, tangents)[1]


@jax.custom_jvp
def _atan(x: Array) -> Array:
    size = lax.abs(x)
    steep = size > 1
    angle = _of_quotient(lax.select(steep, 1 / size, size))
    return jnp.copysign(lax.select(steep, _QUARTER - (angle - _REST), angle), x)


@_atan.defjvp
def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    return _atan(*primals), jax.jvp(lax.atan, primals, tangents)[1]


@jax.custom_jvp
def _asin(x: Array) -> Array:
    return _atan2(x, lax.sqrt((1 - x) * (1 + x)))


@_asin.defjvp
def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    return _asin(*primals), jax.jvp(lax.asin, primals, tangents)[1]


@jax.custom_jvp
def _acos(x: Array) -> Array:
    return 2 * _atan2(lax.sqrt(1 - x), lax.sqrt(1 + x))


@_acos.defjvp
def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    return _acos(*primals), jax.jvp(lax.acos, primals, tangents)[1]


def asin(x: Array) -> Array:
    return _asin(x) if x.dtype == dtypes.float32 else lax.asin(x)


def acos(x: Array) -> Array:
    return _acos(x) if x.dtype == dtypes.float32 else lax.acos(x)


def atan(x: Array) -> Array:
    return _atan(x) if x.dtype == dtypes.float32 else lax.atan(x)


def atan2(y: Array, x: Array) -> Array:
    return _atan2(y, x) if y.dtype == dtypes.float32 else lax.atan2(y, x)
