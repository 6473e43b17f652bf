"""Writes in place, and the gradients that they cut, as TensorFlow has them, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import difference, on_host
from tests.frontends.tensorflow.inplace import ROWS, Row

import tensorgraft as tg

NOUGHT = np.float32(0)
REFUSED = (  # by TensorFlow, while it traces
    *("x[0]=.. on a tensor", "v[0]=.. on a variable", "w=v; w+=1 on a variable", "v[int array].assign"),
    *("v[bool mask].assign", "v[0][1].assign", "v.assign(scalar)", "x[0].assign on a tensor", "transpose(v).assign"),
    *("int variable, floats", "int variable, float tensor", "float32 variable, float64 tensor", "another shape"),
    *("InplaceUpdate: gradient", "InplaceAdd: gradient", "InplaceSub: gradient"),
    "a variable made in the function at each call",
)


def everything() -> tuple[Callable[[Any], Any], list[Row]]:
    rows = {title: Row(program) for title, program in ROWS.items() if title not in REFUSED}
    return lambda nought: {title: row(nought) for title, row in rows.items()}, list(rows.values())


@pytest.mark.parametrize(
    "backend", ["numpy", "torch", *(pytest.param(b, marks=pytest.mark.slow) for b in ("jax", "tensorflow"))]
)
def test_rows(backend: str) -> None:
    (reference, theirs), (program, ours) = everything(), everything()
    wanted, given = tf.function(reference)(tf.constant(NOUGHT)), tg.graft(tf.function(program), onto=backend)(NOUGHT)
    wrong = {}
    for title, mine, own in zip(wanted, theirs, ours, strict=True):
        want, got = tf.nest.flatten(wanted[title]), tf.nest.flatten(given[title])
        odd = [
            str(g) if w is None else difference(on_host(backend, g), w.numpy())
            for g, w in zip(got, want, strict=True)
            if g is not w
        ]
        odd += [difference(a.numpy(), b.numpy()) for a, b in zip(own.variables, mine.variables, strict=True)]
        if any(odd):
            wrong[title] = odd
    assert not wrong


@pytest.mark.parametrize("title", REFUSED)
def test_what_tensorflow_refuses(title: str) -> None:
    with pytest.raises(Exception) as theirs:
        tf.function(Row(ROWS[title]))(tf.constant(NOUGHT))
    row = Row(ROWS[title])
    with pytest.raises(theirs.type):
        tg.graft(tf.function(row), onto="numpy")(NOUGHT)
