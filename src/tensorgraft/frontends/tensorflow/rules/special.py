"""Special functions of mathematics. Computed in double precision where TensorFlow's own approximations are others."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub import dtypes, integrals, pathwise, special
from tensorgraft.hub.backend import Backend

Array = Any

FUNCTIONS = {
    "BesselI0": special.i0,
    "BesselI1": special.i1,
    "BesselJ0": functools.partial(special.j0, monic=True),
    "BesselJ1": functools.partial(special.j1, monic=True),
    "BesselY0": functools.partial(special.y0, monic=True),
    "BesselY1": functools.partial(special.y1, monic=True),
    "BesselK0": special.modified_k(0, False),
    "BesselK1": special.modified_k(1, False),
    "BesselK0e": special.modified_k(0, True),
    "BesselK1e": special.modified_k(1, True),
    "Ndtri": special.ndtri,
    "Dawsn": integrals.dawson,
    "Expint": lambda xp, x: xp.where(xp.less(x, 0), xp.full_like(x, math.nan), integrals.exponential(xp, x)),
    "FresnelSin": lambda xp, x: integrals.fresnel(xp, x)[0],
    "FresnelCos": lambda xp, x: integrals.fresnel(xp, x)[1],
    "Spence": integrals.spence,
}


def _in_double(fn: Callable[..., Array]) -> Callable[..., Array]:
    def run(xp: Backend, x: Array) -> Array:
        return xp.astype(fn(xp, xp.astype(x, dtypes.float64)), xp.dtype_of(x))

    return run


for _name, _fn in FUNCTIONS.items():
    rule(_name)(_in_double(_fn))


@rule("Betainc")
def betainc(xp: Backend, a: Array, b: Array, x: Array) -> Array:
    return xp.astype(integrals.incomplete_beta(xp, *integrals.as_doubles(xp, a, b, x)), xp.dtype_of(x))


@rule("IgammaGradA")
def igamma_grad_a(xp: Backend, a: Array, x: Array) -> Array:
    """The distribution function moves as a sample does, times the density."""
    dtype = xp.dtype_of(x)
    a, x = integrals.as_doubles(xp, a, x)
    moved = xp.multiply(pathwise.gamma(xp, a, x), xp.exp(integrals.log_density(xp, a, x)))
    return xp.astype(xp.where(xp.equal(x, 0), xp.zeros_like(x), xp.negative(moved)), dtype)


@rule("RandomGammaGrad")
def random_gamma_grad(xp: Backend, alpha: Array, sample: Array) -> Array:
    a, x = integrals.as_doubles(xp, alpha, sample)
    return xp.astype(pathwise.gamma(xp, a, x), xp.dtype_of(sample))


@rule("PopulationCount")
def population_count(xp: Backend, x: Array) -> Array:
    dtype = xp.dtype_of(x)
    total, one = xp.zeros_like(x), xp.ones_like(x)
    for bit in range(dtype.itemsize * 8):
        shifted = xp.bitwise_right_shift(x, xp.full_like(x, bit)) if bit else x
        total = xp.add(total, xp.bitwise_and(shifted, one))
    return xp.astype(total, dtypes.uint8)
