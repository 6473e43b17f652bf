"""Steps of optimizers, and writes to rows of variables, against TensorFlow's own kernels."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import tensorflow as tf
from tests.frontends.tensorflow.common import difference
from tests.frontends.tensorflow.samples import numbers

import tensorgraft as tg
from tensorgraft.frontends.tensorflow.rules.state.optimizers import UPDATES

NAMES = [f"Resource{kind}{name}" for name, row in UPDATES.items() for kind in ("Apply", "SparseApply")[: 1 + row[3]]]
SLOTS = [
    "var",
    "accum",
    "accum_update",
    "m",
    "v",
    "vhat",
    "ms",
    "mom",
    "mg",
    "linear",
    "gradient_accumulator",
    "gradient_squared_accumulator",
]


def step(name: str, indices: list[int], **attributes: bool) -> tuple[list[tf.Variable], tf.types.experimental.Callable]:
    op = getattr(tf.raw_ops, name)
    given, variables = {}, []
    for i, p in enumerate(inspect.signature(op).parameters):
        if p in SLOTS:
            variables.append(tf.Variable(numbers((4, 3), low=0.3, high=1, seed=i)))
            given[p] = variables[-1]
        elif p in ("grad", "delta"):
            rows = len(indices) if "Sparse" in name else 4
            given[p] = tf.constant(numbers((rows, 3), seed=i))
        elif p == "indices":
            given[p] = tf.constant(indices)
        elif p == "global_step":
            given[p] = tf.constant(3, tf.int64)
        elif p == "lr_power":
            given[p] = tf.constant(-0.5)
        elif p not in ("use_locking", "use_nesterov", "update_slots", "multiply_linear_by_lr", "name"):
            given[p] = tf.constant(np.float32(0.1 + 0.05 * i))

    def once() -> tf.Tensor:
        for v in variables:
            v.read_value()  # or the graph takes its handle for no variable's
        operands = {p: x.handle if isinstance(x, tf.Variable) else x for p, x in given.items()}
        op(**operands, **attributes)
        return tf.constant(0)

    return variables, tf.function(once)


def check(name: str, onto: str, indices: list[int], **attributes: bool) -> None:
    variables, fn = step(name, indices, **attributes)
    start = [v.numpy() for v in variables]
    fn()
    wanted = [v.numpy() for v in variables]
    for v, x in zip(variables, start, strict=True):
        v.assign(x)
    tg.graft(fn, onto=onto)()
    assert [difference(v.numpy(), x) for v, x in zip(variables, wanted, strict=True)] == [""] * len(variables)


@pytest.mark.slow_with(*sorted(set(NAMES))[::2])
@pytest.mark.parametrize("name", sorted(set(NAMES)))
def test_step(name: str) -> None:
    check(name, "numpy", [2, 0])
    if "Sparse" in name:
        check(name, "numpy", [2, 0, 2])  # one after the other
    arguments = inspect.signature(getattr(tf.raw_ops, name)).parameters
    for flag in ("use_nesterov", "multiply_linear_by_lr"):
        if flag in arguments:
            check(name, "numpy", [1, 3], **{flag: True})


@pytest.mark.parametrize("onto", ["jax", "torch"])
@pytest.mark.parametrize("name", ["ResourceSparseApplyAdagradV2", "ResourceApplyFtrl"])
def test_step_elsewhere(name: str, onto: str) -> None:
    check(name, onto, [2, 0, 2])
