"""Every rule against TensorFlow's kernel: value, dtype and shape, over the dtypes for which there is one."""

from __future__ import annotations

import functools
import re
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import BACKENDS, difference, native, on_host, saturates
from tests.frontends.tensorflow.samples import Sample
from tests.frontends.tensorflow.samples_of_areas import BY_VALUES
from tests.frontends.tensorflow.samples_of_more import AREAS

import tensorgraft as tg
from tensorgraft.frontends.tensorflow.grafted import GraftedGraph
from tensorgraft.frontends.tensorflow.rule import REASONS, RULES
from tensorgraft.frontends.tensorflow.rules.flow.by_tensorflow import BY_TENSORFLOW
from tensorgraft.frontends.tensorflow.states import OWN_STATE
from tensorgraft.hub import registry

_EACH = 16  # of the samples of an operation that several have, so many are left out between two on a backend
OF_VARIANTS = [
    op for op in RULES if re.match(r"(Empty)?TensorMap|Composite|CSR|.*CSRSparse|RaggedTensor|SparseMatrix", op)
]
# what runs in a program alone: tests of programs have it
IN_PROGRAMS = [
    "If",
    "StatelessIf",
    "Case",
    "StatelessCase",
    "While",
    "StatelessWhile",
    "Assert",
    "ReadVariableOp",
    "VarIsInitializedOp",
    "RngReadAndSkip",
    "EnsureShape",
    "CheckNumerics",
    "PlaceholderWithDefault",
    "DeepCopy",
    "Copy",
    "CopyHost",
    "Empty",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "OptionalFromValue",
    "OptionalNone",
    "OptionalGetValue",
    "OptionalHasValue",
    "XlaDynamicUpdateSlice",
    *BY_TENSORFLOW,
    *OF_VARIANTS,
    "FakeParam",
    "For",
    "MapDefun",
    "StatelessParameterizedTruncatedNormal",
    "StatelessSampleDistortedBoundingBox",
]


@functools.cache
def chosen(area: str, backend: str) -> list[Sample]:
    """The first sample of each operation, of which there are several kinds, by turns on the backends."""
    seen: Counter[str] = Counter()
    picked = []
    turn = BACKENDS.index(backend)
    for sample in AREAS[area]():
        if saturates(sample.op) or (sample.op in BY_VALUES and backend != "numpy"):
            continue
        n = seen[sample.op]
        seen[sample.op] += 1
        if n % _EACH == turn * 4 % _EACH or (n == 0 and backend == "numpy"):
            picked.append(sample)
    return picked


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("area", AREAS)
def test_samples(area: str, backend: str) -> None:
    samples = chosen(area, backend)
    flats = [sample.flat() for sample in samples]
    arguments = [x for flat in flats for x, is_argument in flat if is_argument]

    def call(*given: tf.Tensor) -> list[list[tf.Tensor]]:
        remaining = iter(given)
        return [
            sample.call([next(remaining) if is_argument else tf.constant(x) for x, is_argument in flat])
            for sample, flat in zip(samples, flats, strict=True)
        ]

    want = call(*map(tf.constant, arguments))
    with np.errstate(all="ignore"):
        got = GraftedGraph(tf.function(call), registry.get(backend))(*(native(backend, x) for x in arguments))
    wrong = {
        str(sample): off
        for sample, mine, theirs in zip(samples, got, want, strict=True)
        for g, w in zip(mine, theirs, strict=True)
        if (off := difference(on_host(backend, g), w.numpy()))
    }
    assert not wrong


@pytest.mark.parametrize("name", ["dawsn", "expint", "fresnel_cos", "fresnel_sin", "spence"])
def test_integrals_at_the_edges(name: str) -> None:
    function = tf.function(getattr(tf.math.special, name))
    x = np.array([np.nan, np.inf, 0, -0.0, 1, -1, 1e30], np.float32)
    grafted = tg.graft(function, onto="numpy")
    np.testing.assert_allclose(grafted(x), function(tf.constant(x)), rtol=1e-5, atol=1e-6)


def test_every_rule_has_a_sample_or_a_program() -> None:
    sampled = {sample.op for make in AREAS.values() for sample in make()}
    left = set(RULES) - sampled - set(IN_PROGRAMS)
    prefixes = ("Resource", "Assign", "TensorList", "EmptyTensorList", "Apply", "SparseApply")
    assert {op for op in left if not op.startswith(prefixes)} <= WITHOUT
    assert not set(RULES) & set(REASONS)


RANDOM = {
    *OWN_STATE, "StatefulUniform", "StatefulStandardNormalV2", "StatefulTruncatedNormal", "StatefulUniformFullInt",
    "StatefulUniformInt", "StatefulRandomBinomial", "RngSkip", "StatelessShuffle", "StatelessRandomGammaV2",
    "StatelessRandomGammaV3", "StatelessRandomPoisson", "StatelessRandomBinomial", "StatelessMultinomial",
}  # fmt: skip
# other names of an operation that has a sample, of older graphs
WITHOUT = {
    "BatchMatMul", "BatchMatMulV3", "AccumulateNV2", "BiasAddV1", "FusedBatchNorm", "FusedBatchNormV2",
    "FusedBatchNormGrad", "FusedBatchNormGradV2", "MatrixDiagV2", "MatrixDiagPartV2", "MatrixSetDiag",
    "MatrixSetDiagV2",
    "VariableShape", "MaxPoolV2", "ScatterNdNonAliasingAdd", "StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg",
    "StatelessRandomNormal", "StatelessTruncatedNormal", "StatelessRandomUniformFullInt", "StatelessRandomUniformInt",
    "Qr", "Einsum", "SelfAdjointEig", "AdjustContrast", "FFTND", "IFFTND", "RFFTND", "IRFFTND", "CheckNumericsV2",
    "ParallelConcat",
    # tests of random numbers have them
    *RANDOM,
}  # fmt: skip
