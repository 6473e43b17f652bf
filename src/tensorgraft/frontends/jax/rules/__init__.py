"""The rules of JAX's primitives, by area. Importing a module registers its rules."""

from tensorgraft.frontends.jax.rules import (
    callbacks,
    control,
    elementwise,
    fft,
    indexing,
    linalg,
    random,
    reduction,
    scatter,
    select_and_scatter,
    sorting,
    structural,
    windowed,
    zeta,
)

__all__ = [
    "callbacks",
    "control",
    "elementwise",
    "fft",
    "indexing",
    "linalg",
    "random",
    "reduction",
    "scatter",
    "select_and_scatter",
    "sorting",
    "structural",
    "windowed",
    "zeta",
]
