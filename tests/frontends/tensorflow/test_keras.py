"""Every class of Keras on every backend: results, gradients and variables are TensorFlow's.

A case is traced once, and its graph computed by TensorFlow and by the backends, twice each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import BACKENDS, difference, native, on_host
from tests.frontends.tensorflow.keras_cases import AREAS, UNTRIED, KerasCase, classes_of

import tensorgraft as tg

_QUICK = 5  # of so many cases one is in the short suite, on one backend
_ROUNDING = 4e-6  # of the largest element: what sums of terms of its size leave behind
# what waits for rules of others
_WAITING = {
    "layers.MixUp": "gamma numbers",
    "layers.CutMix": "gamma numbers",
    "layers.AugMix": "gamma numbers",
    "layers.IntegerLookup": "look-up tables",
}


def _differs(got: np.ndarray, want: np.ndarray) -> str:
    said = difference(got, want)
    if not said or (got.dtype, got.shape) != (want.dtype, want.shape) or want.dtype != np.float32:
        return said
    off = np.abs(got - want).max()
    return said if not off <= _ROUNDING * np.abs(want).max() else ""


def check(concrete: Any, arguments: Sequence[np.ndarray], backends: Sequence[str], calls: int = 2) -> dict[str, str]:
    """What is wrong, by backend, of a function that TensorFlow has traced, and its variables."""
    variables = list(concrete.graph.variables)
    before = [v.numpy() for v in variables]
    want = []
    for _ in range(calls):
        results = [x.numpy() for x in tf.nest.flatten(concrete(*map(tf.constant, arguments)))]
        want.append((results, [v.numpy() for v in variables]))
    wrong = {}
    for backend in backends:
        for v, x in zip(variables, before, strict=True):
            v.assign(x)
        grafted = tg.graft(concrete, onto=backend)
        for k, (results, held) in enumerate(want):
            with np.errstate(all="ignore"):
                got = tf.nest.flatten(grafted(*(native(backend, x) for x in arguments)))
            pairs = [(f"result {i}", on_host(backend, g), w) for i, (g, w) in enumerate(zip(got, results, strict=True))]
            pairs += [(v.name, v.numpy(), w) for v, w in zip(variables, held, strict=True)]
            wrong |= {f"{backend}, call {k}, {name}": said for name, g, w in pairs if (said := _differs(g, w))}
    return wrong


def _cases() -> Iterator[Any]:
    place = 0
    for cases in AREAS.values():
        for case in cases():
            waits = _WAITING.get(case.name)
            marks = [pytest.mark.xfail(reason=waits, strict=False)] if waits else []
            if place % _QUICK == 0:
                turn = BACKENDS[place // _QUICK % len(BACKENDS)]
                yield pytest.param(case, (turn,), id=f"{case}-{turn}", marks=marks)
            yield pytest.param(case, BACKENDS, id=f"{case}-all", marks=[*marks, pytest.mark.slow])
            place += 1


@pytest.mark.parametrize(("case", "backends"), list(_cases()))
def test_class(case: KerasCase, backends: Sequence[str]) -> None:
    program = tf.function(case.make(), autograph=False)
    specs = [tf.TensorSpec(x.shape, x.dtype) for x in case.arguments]
    assert not check(program.get_concrete_function(*specs), case.arguments, backends)


def test_every_class_has_a_case_or_a_reason() -> None:
    tried = {case.name.partition(" ")[0] for cases in AREAS.values() for case in cases()}
    public = {
        f"{namespace.rpartition('.')[2]}.{name}"
        for namespace in (
            "layers", "losses", "metrics", "optimizers", "optimizers.schedules", "constraints", "regularizers",
            "initializers",
        )
        for name in classes_of(namespace)
    }  # fmt: skip
    assert public <= tried | set(UNTRIED)
    assert not tried & set(UNTRIED)
