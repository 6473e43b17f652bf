"""The rules of TensorFlow's raw operations, by area. Importing a module registers its rules (see `rule`)."""

from tensorgraft.frontends.tensorflow.rules.arrays import indexing, segments, sets, shape, strided
from tensorgraft.frontends.tensorflow.rules.flow import by_tensorflow, control, counted, hosted
from tensorgraft.frontends.tensorflow.rules.images import boxes, colours, resizing
from tensorgraft.frontends.tensorflow.rules.mathematics import (
    decompositions,
    elementwise,
    linalg,
    products,
    reduction,
    signal,
    special,
)
from tensorgraft.frontends.tensorflow.rules.neural import (
    activations,
    convolution,
    ctc,
    neighbours,
    normalisation,
    pooling,
    recurrent,
)
from tensorgraft.frontends.tensorflow.rules.quantized import fused, kernels, rounding, uniform
from tensorgraft.frontends.tensorflow.rules.random import candidates, drawn, rejection, seeded
from tensorgraft.frontends.tensorflow.rules.sparse import compressed, coordinates
from tensorgraft.frontends.tensorflow.rules.state import lists, optimizers, optionals, tables, variables, variants

__all__ = [
    "activations",
    "boxes",
    "by_tensorflow",
    "candidates",
    "colours",
    "compressed",
    "control",
    "convolution",
    "coordinates",
    "counted",
    "ctc",
    "decompositions",
    "drawn",
    "elementwise",
    "fused",
    "hosted",
    "indexing",
    "kernels",
    "linalg",
    "lists",
    "neighbours",
    "normalisation",
    "optimizers",
    "optionals",
    "pooling",
    "products",
    "recurrent",
    "reduction",
    "rejection",
    "resizing",
    "rounding",
    "seeded",
    "segments",
    "sets",
    "shape",
    "signal",
    "special",
    "strided",
    "tables",
    "uniform",
    "variables",
    "variants",
]
