"""Rules for operators, by area. Importing a module registers its rules."""

from __future__ import annotations

from tensorgraft.frontends.onnx.rules import (  # noqa: F401
    convolution,
    elementwise,
    flow,
    host,
    indexing,
    learners,
    microsoft,
    microsoft_attention,
    normalisation,
    products,
    quantized,
    random,
    recurrent,
    reduction,
    resize,
    shape,
    signal,
    training,
    trees,
)
