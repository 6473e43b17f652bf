"""Samples of raw operations: sequences, candidates, counts, searches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from tests.frontends.tensorflow import samples_of_quantized
from tests.frontends.tensorflow.samples import Sample, numbers
from tests.frontends.tensorflow.samples_of_areas import case, f32, i32, i64

raw = tf.raw_ops


def recurrent() -> Iterator[Sample]:
    x, c, h, w, b = (numbers(s, seed=i) / 2 for i, s in enumerate([(2, 3), (2, 4), (2, 4), (7, 16), (16,)]))
    peep = [numbers((4,), seed=i) for i in range(3)]
    names = ("wci", "wcf", "wco")
    for peephole in (True, False):
        how: dict[str, Any] = {"use_peephole": peephole}
        own = dict(zip(names, peep, strict=True))
        cell = raw.LSTMBlockCell(x=x, cs_prev=c, h_prev=h, w=w, b=b, **own, **how, cell_clip=-1.0)
        d = [numbers((2, 4), seed=9), numbers((2, 4), seed=8)]
        yield case("LSTMBlockCellGrad", x, c, h, w, *peep, b, *(v.numpy() for v in cell[:6]), *d, **how)
        x3 = numbers((4, 2, 3))
        d3 = [numbers((4, 2, 4), seed=7), numbers((4, 2, 4), seed=6)]
        for suffix, steps in (("", 4), ("V2", 4), ("", 3)):
            rows = getattr(raw, f"BlockLSTM{suffix}")(
                seq_len_max=i64(steps), x=x3, cs_prev=c, h_prev=h, w=w, b=b, **own, **how, cell_clip=-1.0
            )
            states = [v.numpy() for v in rows]
            yield case(f"BlockLSTMGrad{suffix}", i64(steps), x3, c, h, w, *peep, b, *states, *d3, **how)


def ctc() -> Iterator[Sample]:
    labels = [[1, 1, 3], [0], [2, 2, 2]]
    places = i64([[b, i] for b, row in enumerate(labels) for i in range(len(row))])
    values = i32(list(itertools.chain(*labels)))
    for merges, collapses in ((True, False), (False, False), (True, True)):
        how = {"ctc_merge_repeated": merges, "preprocess_collapse_repeated": collapses}
        yield case("CTCLoss", numbers((7, 3, 5)), places, values, i32([7, 4, 6]), **how)
    ignores = {"ignore_longer_outputs_than_inputs": True}
    yield case("CTCLoss", numbers((7, 3, 5)), places, values, i32([2, 0, 5]), **ignores)
    yield case("CTCLoss", numbers((7, 3, 5), low=-90, high=90), places, values, i32([3, 1, 3]))
    yield case("CTCGreedyDecoder", numbers((7, 3, 5)), i32([7, 4, 6]), merge_repeated=True)
    yield case("CTCBeamSearchDecoder", numbers((7, 3, 5)), i32([7, 4, 6]), beam_width=5, top_paths=2)


def counts() -> Iterator[Sample]:
    values, weights = i32([[1, 4, 1], [9, 0, 1]]), numbers((2, 3))
    none = f32([])
    for how in ({}, {"maxlength": 5}, {"minlength": 12}):
        for binary in (True, False):
            yield case("DenseCountSparseOutput", values, none, binary_output=binary, **how)
        yield case("DenseCountSparseOutput", values, weights, binary_output=False, **how)
        yield case("DenseCountSparseOutput", values.ravel(), none, binary_output=False, **how)
        yield case("RaggedCountSparseOutput", i64([0, 2, 2, 6]), values.ravel(), none, binary_output=False, **how)
        at = i64([[0, 1], [0, 2], [2, 0]])
        three = values.ravel()[:3]
        yield case("SparseCountSparseOutput", at, three, i64([3, 4]), weights[0], binary_output=False, **how)
        yield case("SparseCountSparseOutput", at[:, 1:], three, i64([4]), none, binary_output=False, **how)
    yield case("ComputeAccidentalHits", i64([[1, 5], [2, 9]]), i64([9, 1, 4, 5]), num_true=2)
    yield case("IsotonicRegression", numbers((2, 9)))
    yield case("SobolSample", i32(3), i32(10), i32(4))
    yield case("SobolSample", i32(2), i32(5), i32(0), dtype="float64")
    yield case("RandomIndexShuffle", i32(np.arange(20)), i32([3, 4, 5]), i32(19))
    yield case("RandomIndexShuffle", i64([3, 2**33, 7]), i64([[3, 4, 5]] * 3), i64([2**35, 2**41, 9]), rounds=6)
    for noise in ("zero", "uniform"):
        inside = noise == "uniform"
        where = f32([[0, 0], [0.1, -0.2]]) if inside else f32([[0.9, -0.4], [2, 0]])
        for op in ("ExtractGlimpse", "ExtractGlimpseV2"):
            how = {"noise": noise, "uniform_noise": False}
            yield case(op, numbers((2, 9, 8, 3)), i32([3, 4]), where, **how)
    for dtype in ("float32", "float64", "float16", "int32"):
        x, w = numbers((2, 5, 6, 3), dtype), numbers((3, 2, 3, 4), dtype)
        yield case("Conv", x, w, strides=[1, 2, 1, 1], padding="SAME")
    yield case("Conv", numbers((2, 4, 5, 6, 3)), numbers((2, 3, 2, 3, 4)), strides=[1, 1, 2, 1, 1], padding="VALID")
    spectrum = numbers((2, 4, 129), low=0, high=9)
    yield case("Mfcc", spectrum, i32(16000))
    yield case(
        "Mfcc", spectrum, i32(16000), upper_frequency_limit=7000.0, filterbank_channel_count=12, dct_coefficient_count=8
    )


AREAS = {**samples_of_quantized.AREAS, "recurrent": recurrent, "ctc": ctc, "counts": counts}
