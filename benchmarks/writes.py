"""`x[i] = v`, 1,000 times in one compiled loop, into arrays of several sizes: what is written is as much each time,
so that time which grows with the array is that of copies of it.

By hand it is a loop with a donated array (JAX) or a variable (TensorFlow), compiled by XLA.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from benchmarks.measure import Row, interleaved

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry
from tensorgraft.transforms import fori_loop

WRITES = 1000
SIZES = {"1 k": 1 << 10, "64 k": 1 << 16, "1 M": 1 << 20, "16 M": 1 << 24}
MOST_COPIES = 2  # of 1,000, had every write one
CALLS, ROUNDS = 4, 10
Subject = tuple[Callable[[], None], Callable[[], np.ndarray]]  # writes once, and what is there


def measure() -> Iterator[Row]:
    for name in BY_HAND:
        if name in registry.backends():
            yield from on(name)


def on(name: str) -> Iterator[Row]:
    ours, theirs, copies = {}, {}, {}
    for size, n in SIZES.items():
        values = np.arange(WRITES, dtype=np.float32)
        write, result = with_array(name, n, values)
        write_by_hand, result_by_hand = BY_HAND[name](n, values)
        subjects: dict[str, Callable[[], object]] = {"ours": write, "hand": write_by_hand, "copy": copying(name, n)}
        seconds = interleaved(subjects, CALLS, ROUNDS, time.process_time)
        ours[size], theirs[size], copies[size] = seconds["ours"], seconds["hand"], seconds["copy"]
        target = np.zeros(n, np.float32)
        target[: WRITES * (n // WRITES) : n // WRITES] = values
        assert np.array_equal(result(), target) and np.array_equal(result_by_hand(), target)
    least = next(iter(SIZES))
    for size in SIZES:
        what = f"{WRITES:,} writes in a compiled loop, into {size} elements, {name}"
        yield Row(what, ours[size], theirs[size], f"{name} by hand")
    for size in list(SIZES)[1:]:
        more = max(ours[size] - ours[least], 0.0)
        what = f"what they cost more than into {least}: into {size}, {name}"
        yield Row(what, more, copies[size], f"one copy of the array by {name}", MOST_COPIES)


def with_array(name: str, n: int, values: np.ndarray) -> Subject:
    x, v = xp.zeros((n,), dtype=xp.float32, device=name), xp.asarray(values, device=name, copy=True)
    step, backend = n // WRITES, registry.get(name)

    def body(i: xp.Array, x: xp.Array) -> xp.Array:
        x[i * step] = v[i]
        return x

    @tg.jit
    def write(x: xp.Array) -> None:
        x[...] = fori_loop(0, WRITES, body, x)

    def call() -> None:
        write(x)
        if name == "jax":  # as by hand: `synchronize` looks at every array that there is
            x._cell.array.block_until_ready()
        else:
            backend.synchronize()

    return call, lambda: np.asarray(x)


def copying(name: str, n: int) -> Callable[[], None]:
    backend = registry.get(name)
    with backend.scope():
        x = backend.full((n,), 1, np.dtype(np.float32))

    def call() -> None:
        with backend.scope():
            backend.copy(x)
        backend.synchronize()

    return call


def jax_by_hand(n: int, values: np.ndarray) -> Subject:
    jax = importlib.import_module("jax")
    held, v, step = [jax.numpy.zeros(n)], jax.numpy.asarray(values), n // WRITES

    def write(x: Any, v: Any) -> Any:
        return jax.lax.fori_loop(0, WRITES, lambda i, x: x.at[i * step].set(v[i]), x)

    compiled = jax.jit(write, donate_argnums=0)

    def call() -> None:
        held[0] = compiled(held[0], v)
        held[0].block_until_ready()

    return call, lambda: np.asarray(held[0])


def tensorflow_by_hand(n: int, values: np.ndarray) -> Subject:
    tf = importlib.import_module("tensorflow")
    x, v, step = tf.Variable(tf.zeros(n)), tf.constant(values), n // WRITES

    def body(i: Any, y: Any) -> tuple[Any, Any]:
        return i + 1, tf.tensor_scatter_nd_update(y, [[i * step]], tf.reshape(v[i], (1,)))

    @tf.function(jit_compile=True)
    def write() -> None:
        x.assign(tf.while_loop(lambda i, y: i < WRITES, body, (0, x.read_value()))[1])

    def call() -> None:
        write()
        tf.test.experimental.sync_devices()

    return call, x.numpy


BY_HAND: dict[str, Callable[[int, np.ndarray], Subject]] = {"jax": jax_by_hand, "tensorflow": tensorflow_by_hand}
