"""Random numbers from explicit keys on every backend: `tg.random.normal(tg.random.key(0), 3)`.

The same key gives the same numbers on every backend, and the same as `jax.random` with its default generator and 64-bit
types (`threefry2x32`, `jax_enable_x64`): keys, splits, bits, integers, uniform numbers of [0, 1), booleans and signs
are equal to the bit, others (which need logarithms and the like) to a few units in the last place.
"""

from tensorgraft.frontends.array_api.extensions.random import (
    bernoulli,
    bits,
    categorical,
    exponential,
    fold_in,
    gumbel,
    key,
    normal,
    permutation,
    rademacher,
    randint,
    split,
    truncated_normal,
    uniform,
)

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "normal",
    "permutation",
    "rademacher",
    "randint",
    "split",
    "truncated_normal",
    "uniform",
]
