"""The rules of TensorFlow's raw operations, by area. Importing a module registers its rules (see `rule`)."""

from tensorgraft.frontends.tensorflow.rules import (
    activations,
    control,
    convolution,
    elementwise,
    indexing,
    linalg,
    lists,
    normalisation,
    pooling,
    products,
    random,
    reduction,
    shape,
    strided,
    variables,
)

__all__ = [
    "activations",
    "control",
    "convolution",
    "elementwise",
    "indexing",
    "linalg",
    "lists",
    "normalisation",
    "pooling",
    "products",
    "random",
    "reduction",
    "shape",
    "strided",
    "variables",
]
