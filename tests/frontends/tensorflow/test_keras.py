"""Every class of Keras on every backend: results, gradients and variables are TensorFlow's.

A case is traced once, and its graph computed by TensorFlow and by the backends, twice each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import BACKENDS
from tests.frontends.tensorflow.keras_cases import AREAS, UNTRIED, KerasCase, classes_of
from tests.frontends.tensorflow.keras_functions import functions, traced
from tests.frontends.tensorflow.traced import check

_QUICK = 7  # of so many cases one is in the short suite, on one backend


def _cases() -> Iterator[Any]:
    place = 0
    for cases in AREAS.values():
        for case in cases():
            if place % _QUICK == 0:
                turn = BACKENDS[place // _QUICK % len(BACKENDS)]
                yield pytest.param(case, (turn,), id=f"{case}-{turn}")
            yield pytest.param(case, BACKENDS, id=f"{case}-all", marks=pytest.mark.slow)
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


@pytest.mark.parametrize(
    ("backends", "part"),
    [*(((b,), BACKENDS.index(b)) for b in BACKENDS), pytest.param(BACKENDS, None, marks=pytest.mark.slow)],
)
def test_functions(backends: Sequence[str], part: int | None) -> None:
    """All of `keras.ops`, or a few on one backend."""
    wrong, tried = {}, 0
    for place, (name, fn) in enumerate(functions().items()):
        if part is not None and place % 24 != part * 6:
            continue
        found = traced(fn)
        if found is not None:
            tried += 1
            wrong |= {f"{name}, {where}": said for where, said in check(*found, backends, calls=1).items()}
    assert not wrong
    assert part is not None or tried > 300
