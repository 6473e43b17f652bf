"""Compiled writes stay in the memory of what they write, unless somebody else holds it."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
from tests.updates.cells import BACKENDS

import tensorgraft as tg
import tensorgraft.array_api as xp

LARGE = 1 << 19  # float32 of 2 MiB: on TensorFlow small arrays are copied
COMPILED = [name for name in BACKENDS if name in ("jax", "tensorflow")]


def place(x: xp.Array) -> int:
    """Where the memory of an array is; `.native` would say that others know it."""
    array: Any = x._cell.array
    return array.unsafe_buffer_pointer() if hasattr(array, "unsafe_buffer_pointer") else array.numpy().ctypes.data


@tg.jit
def write(x: xp.Array, v: xp.Array, y: xp.Array) -> xp.Array:
    x[3] = v
    y += x[3]
    x[:, 1] = x[0, 2] * v
    return v + 1


def arguments(backend: str) -> tuple[xp.Array, xp.Array, xp.Array]:
    x = xp.zeros((LARGE // 4, 4), dtype=xp.float32, device=backend)
    return x, xp.asarray(2.0, dtype=xp.float32, device=backend), xp.zeros((4,), dtype=xp.float32, device=backend)


@pytest.mark.parametrize("backend", COMPILED)
def test_it_stays(backend: str) -> None:
    x, v, y = arguments(backend)
    x[0, 2] = 5.0
    for _ in range(2):  # the first call finds the array held by the trace, and moves it
        write(x, v, y)
    gc.collect()  # what a cycle of an earlier test holds keeps its memory
    before = place(x)
    for k in range(3):
        assert float(write(x, v * (k + 1), y)) == 2 * k + 3
    assert place(x) == before
    assert (x[3].tolist(), x[0].tolist(), y.tolist()) == ([6, 30, 6, 6], [0, 30, 5, 0], [16, 16, 16, 16])


@pytest.mark.parametrize("backend", COMPILED)
def test_what_others_hold_is_left_alone(backend: str) -> None:
    x, v, y = arguments(backend)
    write(x, v, y)
    known, values = x.native, np.array(x)
    write(x, v + 5, y)
    assert np.array_equal(np.asarray(known), values) and float(x[3, 0]) == 7
    if backend == "tensorflow":  # counted by TensorFlow, though nobody has said so
        held, values = x._cell.array, np.array(x)
        write(x, v + 7, y)
        assert np.array_equal(held.numpy(), values) and float(x[3, 0]) == 9


@pytest.mark.skipif("tensorflow" not in BACKENDS, reason="no TensorFlow")
def test_an_exception_gives_the_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorgraft.backends.tensorflow import owning

    x, v, y = arguments("tensorflow")
    write(x, v, y)
    values = np.array(x)

    def fail(*args: Any) -> Any:
        raise error

    monkeypatch.setattr(owning, "call_by_name", fail)
    error: BaseException = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        write(x, v + 1, y)
    assert np.array_equal(x, values)
    error = owning.tf.errors.UnimplementedError(None, None, "not by XLA")  # then it is run as any other program
    write(x, v + 1, y)
    assert float(x[3, 0]) == 3
