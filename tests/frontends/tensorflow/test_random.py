"""Random operations with seeds: TensorFlow's own bits, call by call, as its kernels' states go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import BACKENDS, agree, difference, native, on_host

import tensorgraft as tg


def states() -> Any:
    @tf.function
    def inner() -> tf.Tensor:
        return tf.random.uniform([3], seed=7)

    def program(x: tf.Tensor) -> Any:
        steps = tf.TensorArray(tf.float32, 3)
        for i in tf.range(3):
            steps = steps.write(i, tf.random.uniform([], seed=9))
        if tf.reduce_sum(x) > 0:  # noqa: SIM108  (a branch of the graph)
            branch = tf.random.uniform([], seed=4)
        else:
            branch = tf.random.uniform([], seed=5) * 2
        return (
            tf.random.normal([5], seed=2),
            tf.random.truncated_normal([5], seed=3, dtype=tf.float64),
            tf.random.uniform([4], maxval=100, dtype=tf.int32, seed=5),
            (inner(), inner()),
            tf.random.shuffle(tf.reshape(tf.range(12), (6, 2)), seed=3),
            steps.stack(),
            branch,
            tf.nn.dropout(x, 0.5),
        )

    return program


def rejected() -> Any:
    raw = tf.raw_ops

    def program(x: tf.Tensor) -> Any:
        logits = [[0.0, 1.0, 2.0, -3.0], [5.0, 0.0, 0.0, 0.5]]
        return (
            raw.RandomGamma(shape=[7], alpha=[0.3, 1.0, 2.5, 7.0], seed=3, seed2=4),
            tf.random.stateless_gamma([7, 2], [1, 2], alpha=tf.constant([0.4, 3.0], tf.float64), dtype=tf.float64),
            raw.RandomPoissonV2(shape=[20], rate=[0.5, 9.9, 10.0, 300.0], seed=3, seed2=4),
            tf.random.stateless_binomial([20, 5], [3, 4], counts=30.0, probs=[0.0, 0.1, 0.4, 0.7, 1.0]),
            raw.Multinomial(logits=logits, num_samples=9, seed=5, seed2=3),
            tf.random.stateless_categorical(logits, 9, seed=[5, 3]),
            tf.random.experimental.stateless_shuffle(tf.range(9), [1, 2]),
        )

    return program


def in_turn() -> Any:
    raw = tf.raw_ops
    truth = np.asarray([[1, 5], [2, 0], [7, 7]], np.int64)
    how: dict[str, Any] = {"true_classes": truth, "num_true": 2, "num_sampled": 5, "seed": 3, "seed2": 4}
    boxes = [[[0.1, 0.2, 0.7, 0.8], [0.0, 0.0, 0.3, 0.2]]]
    bounds: dict[str, Any] = {
        "means": [0.0, 3.0, -9.0], "minvals": [-1.0, 1.0, -1.0], "maxvals": [0.5, np.inf, 1.0],
    }  # fmt: skip

    def program(x: tf.Tensor) -> Any:
        image = tf.reshape(tf.range(2 * 11 * 13 * 2, dtype=tf.float32), (2, 11, 13, 2)) * x[0, 0]
        pools = []
        for pseudo in (True, False):
            for name in ("FractionalMaxPool", "FractionalAvgPool"):
                pools.append(
                    getattr(raw, name)(
                        value=image,
                        pooling_ratio=[1.0, 1.7, 1.35, 1.0],
                        pseudo_random=pseudo,
                        overlapping=pseudo,
                        deterministic=True,
                        seed=5,
                        seed2=6,
                    )
                )
        return (
            raw.UniformCandidateSampler(**how, unique=True, range_max=11),
            raw.UniformCandidateSampler(**how, unique=False, range_max=16),
            raw.LogUniformCandidateSampler(**how, unique=True, range_max=1000),
            raw.FixedUnigramCandidateSampler(
                **how, unique=True, range_max=8, unigrams=[1.0, 2, 3, 4, 5, 1, 1], num_reserved_ids=1, distortion=0.7
            ),
            raw.AllCandidateSampler(**{**how, "num_sampled": 8}, unique=True),
            tf.image.sample_distorted_bounding_box([50, 40, 3], boxes, seed=4, min_object_covered=0.3),
            raw.SampleDistortedBoundingBox(image_size=[50, 40, 3], bounding_boxes=boxes, seed=4, max_attempts=9),
            tf.image.stateless_sample_distorted_bounding_box([50, 40, 3], boxes, [1, 2], 0.9, [0.5, 2.0]),
            raw.ParameterizedTruncatedNormal(shape=[3, 5], stdevs=[1.0, 2.0, 0.5], seed=7, seed2=1, **bounds),
            raw.ParameterizedTruncatedNormal(
                shape=[4, 5], means=0.5, stdevs=1.5, minvals=0.0, maxvals=np.inf, seed=7, seed2=1
            ),
            tf.random.stateless_parameterized_truncated_normal(
                [4, 3], [3, 9], bounds["means"], [1.0, 2.0, 0.5], bounds["minvals"], bounds["maxvals"]
            ),
            pools,
            tf.random.experimental.index_shuffle(tf.range(6), [1, 2], 5),
            tf.nn.sampled_softmax_loss(
                x, tf.zeros(4), truth[:, :1] % 4, x[:3], 2, 4, seed=3, remove_accidental_hits=False
            ),
        )  # fmt: skip

    return program


CASES = [
    pytest.param(make, b, marks=[pytest.mark.slow] if make is rejected and b in ("jax", "tensorflow") else [])
    for make in (states, rejected, in_turn)
    for b in BACKENDS
]


@pytest.mark.parametrize("make, backend", CASES)
def test_bits(backend: str, make: Any) -> None:
    x = np.ones((4, 4), np.float32)
    tf.random.set_seed(3)
    judge, mine = tf.function(make()), tg.graft(tf.function(make()), onto=backend)
    if backend == "jax" and make is not rejected:
        mine = tg.jit(mine)
    for k in range(4):
        if k == 3:
            tf.random.set_seed(3)
        want, got = judge(x), mine(native(backend, x))
        pairs = zip(tf.nest.flatten(got), tf.nest.flatten(want), strict=True)
        off = [difference(on_host(backend, g), w.numpy()) for g, w in pairs]
        assert off == [""] * len(off)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_step_with_dropout(backend: str) -> None:
    def make() -> Any:
        v = tf.Variable(np.ones((4, 4), np.float32))

        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.nn.dropout(x @ v, 0.5, seed=2) ** 2)
            v.assign_sub(0.1 * tape.gradient(loss, v))
            return loss

        return step, [v]

    agree(make, [np.ones((2, 4), np.float32)], backend, calls=3)
