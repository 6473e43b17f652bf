"""The rules of TensorFlow's raw operations, by area. Importing a module registers its rules; `rule` says what they are."""

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
    reduction,
    segments,
    shape,
    special,
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
    "reduction",
    "segments",
    "shape",
    "special",
    "strided",
    "variables",
]
