"""The cold tier of the hub's operations on JAX: the same values as compiled, without a compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import cold, registry, tiers

jax = pytest.importorskip("jax")

Fn = Callable[..., Any]
# Data moved, rounded once, compared or counted: the same bits.
EXACT: dict[str, Fn] = {
    "add": lambda x, y: xp.add(x, y),
    "multiply": lambda x, y: x * y,
    "maximum": lambda x, y: xp.maximum(x, y),
    "less": lambda x, y: x < y,
    "negative": lambda x, y: -x,
    "astype": lambda x, y: xp.astype(x, xp.float64),
    "reshape": lambda x, y: xp.reshape(x, (-1,)),
    "transposed": lambda x, y: xp.matrix_transpose(x),
    "view": lambda x, y: x[1:, ::2],
    "element": lambda x, y: x[2, 1],
    "taken": lambda x, y: xp.take(x, xp.asarray([2, 0, 2]), axis=0),
    "by indices": lambda x, y: x[xp.asarray([1, 0]), xp.asarray([2, 2])],
    "concat": lambda x, y: xp.concat([x, y], axis=1),
    "stack": lambda x, y: xp.stack([x, y]),
    "where": lambda x, y: xp.where(x < y, x, y),
    "roll": lambda x, y: xp.roll(x, 1, axis=1),
    "flip": lambda x, y: xp.flip(x),
    "sort": lambda x, y: xp.sort(x, axis=0),
    "argsort": lambda x, y: xp.argsort(x, axis=1),
    "max": lambda x, y: xp.max(x, axis=1),
    "argmin": lambda x, y: xp.argmin(x),
    "unique": lambda x, y: xp.unique_values(x),
    "nonzero": lambda x, y: xp.stack(xp.nonzero(x > y)),
    "tril": lambda x, y: xp.tril(x, k=1),
    "full": lambda x, y: xp.full_like(x, 3),
    "arange": lambda x, y: xp.arange(2, 17, 3),
    "random": lambda x, y: tg.random.bits(tg.random.key(3), (5,)),
}
# Rounded more than once: the last bits may differ.
ROUNDED: dict[str, Fn] = {
    "sum": lambda x, y: xp.sum(x, axis=0),
    "mean": lambda x, y: xp.mean(x),
    "std": lambda x, y: xp.std(x, axis=1),
    "cumulative_sum": lambda x, y: xp.cumulative_sum(x, axis=1),
    "matmul": lambda x, y: x @ xp.matrix_transpose(y),
    "exp": lambda x, y: xp.exp(x),
    "tanh": lambda x, y: xp.tanh(x),
    "divide": lambda x, y: x / y,
    "expm1": lambda x, y: xp.expm1(x),
    "hypot": lambda x, y: xp.hypot(x, y),
}
LARGE_ONLY: dict[str, Fn] = {
    "solve": lambda x, y: xp.linalg.solve(x @ x.T + 9 * xp.eye(x.shape[0], dtype=x.dtype), x),
    "svdvals": lambda x, y: xp.linalg.svdvals(x),
    "fft": lambda x, y: xp.fft.rfft(x),
}


@pytest.fixture
def tiered() -> Iterator[list[str]]:
    """The default device is JAX's, eager operations are tiered, and the names of what XLA compiles are noted."""
    from jax._src import monitoring

    compiled: list[str] = []

    def listen(event: str, _: float, **about: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(str(about.get("fun_name")))

    before = registry.default()
    tg.set_default_device("jax")
    monitoring.register_event_duration_secs_listener(listen)
    with tiers.eager("tiered"):
        yield compiled
    monitoring.unregister_event_duration_listener(listen)
    tg.set_default_device(before)


def operands(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 9, (4, 6)).astype(dtype), rng.integers(1, 9, (4, 6)).astype(dtype)
    return rng.normal(size=(4, 6)).astype(dtype), rng.normal(size=(4, 6)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint8, np.float16, ml_dtypes.bfloat16])
def test_values_are_those_of_compiled_programs(dtype: Any, tiered: list[str]) -> None:
    x, y = map(xp.asarray, operands(dtype))
    functions = dict(EXACT)
    if np.dtype(dtype).kind not in "iu":
        functions |= ROUNDED
    if dtype in (np.float32, np.float64):
        functions |= LARGE_ONLY
    made = {name: fn(x, y) for name, fn in functions.items()}
    assert not tiered, "compiled"
    few = dict(EXACT) if dtype is np.float32 else {}  # compiling is what takes the time
    few |= {n: f for n, f in functions.items() if n in ("sum", "multiply", "matmul", "exp", "solve")}
    with tiers.eager("compiled"):
        for name, fn in few.items():
            expected, found = np.asarray(fn(x, y)), np.asarray(made[name])
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
            if name in EXACT:
                assert found.tobytes() == expected.tobytes(), name
            else:
                eps = float(ml_dtypes.finfo(expected.dtype).eps)
                np.testing.assert_allclose(
                    found.astype(np.float64), expected.astype(np.float64), rtol=16 * eps, atol=16 * eps, err_msg=name
                )


def test_what_recurs_and_what_is_large_is_compiled(tiered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "CALLS", 2)
    x = xp.asarray(np.arange(35, dtype=np.float32).reshape(5, 7))
    values = [np.asarray(xp.multiply(x, x)) for _ in range(4)]
    assert len(tiered) == 1 and all((v == values[0]).all() for v in values)
    monkeypatch.setattr(tiers, "ELEMENTS", 100)
    wide = xp.asarray(np.ones((11, 13), np.float32))
    np.testing.assert_array_equal(np.asarray(wide + wide), 2)
    assert len(tiered) == 2


def test_memory_that_is_lent_is_never_written(tiered: list[str]) -> None:
    native = jax.numpy.arange(12.0).reshape(3, 4)
    before = np.array(native)
    x = xp.asarray(native)
    view = x[1, :]
    y = xp.permute_dims(x, (1, 0))
    y += 1
    x[0, :] = 7
    view *= 2
    np.testing.assert_array_equal(np.asarray(native), before)
    expected = before + 1
    expected[0], expected[1] = 7, expected[1] * 2
    np.testing.assert_array_equal(np.asarray(x), expected)
    np.testing.assert_array_equal(np.asarray(y), expected.T)


def test_a_trace_is_one_program_of_what_it_reads(tiered: list[str]) -> None:
    """Constants of a traced function stay operands, and are not computed while it is traced."""
    w = xp.asarray(np.ones(3, np.float32))
    f = tg.jit(lambda x: xp.sum(x * (w + 1)))
    assert float(f(w)) == 6
    w += 1
    assert float(f(w)) == 18
    g = tg.grad(lambda x: xp.sum(x * x * xp.sum(w + 0)))
    np.testing.assert_array_equal(np.asarray(g(w)), [24, 24, 24])
    backend = registry.get("jax")
    seen = []

    def traced(x: Any) -> Any:
        with backend.scope():
            seen.append(cold.attempt(backend, "add", lambda host, a: host.add(a, a), (w.native,)))
        return x

    jax.jit(traced)(1.0)
    assert seen == [None]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: xp.linalg.cholesky(-(x @ x.T)),
        lambda x: xp.reshape(x, (7, 7)),
        lambda x: x @ x,
        lambda x: xp.linalg.inv(xp.zeros((2, 2))),
        lambda x: xp.take(x, xp.asarray([9]), axis=0),
        lambda x: xp.concat([x, x.T]),
    ],
)
def test_errors_are_the_same(call: Fn, tiered: list[str]) -> None:
    x = xp.asarray(operands(np.float32)[0])
    said = []
    for mode in ("tiered", "compiled"):
        with tiers.eager(mode):
            try:
                said.append(np.asarray(call(x)).tolist())
            except Exception as error:
                said.append((type(error), str(error)))
    assert repr(said[0]) == repr(said[1])
