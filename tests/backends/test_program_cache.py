"""Compiled programs in memory: those that are in use stay, the least recently used ones go, and come back."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorgraft.backends.jax.compilation import effort, program_cache
from tensorgraft.hub import registry


@pytest.fixture
def shelf(monkeypatch):
    monkeypatch.setattr(program_cache, "LEAST", 8)
    monkeypatch.setattr(program_cache, "_EVERY", 4)
    monkeypatch.setattr(program_cache, "_OFTEN", 2)
    shelf = program_cache._ProgramList()
    monkeypatch.setattr(program_cache, "_shelf", shelf)
    return shelf


@pytest.fixture
def xp():
    return registry.get("jax")


def programs(n):
    return [program_cache.KeptProgram(lambda x, k=k: x + k) for k in range(n)]


def test_as_many_as_there_is_room_for(shelf):
    made = programs(20)
    x = jnp.ones(3)
    assert [float(p(x)[0]) for p in made] == [1.0 + k for k in range(20)]
    assert shelf.count() <= 8 + 4
    assert [float(p(x)[0]) for p in made] == [1.0 + k for k in range(20)]


def test_what_is_in_use_stays(shelf):
    first, *others = programs(20)
    x = jnp.ones(3)
    first(x)
    compiled = first.jitted
    for program in others:
        program(x)
        first(x)
    assert first.jitted is compiled


def test_more_stay_where_programs_come_back(shelf):
    made = programs(20)
    x = jnp.ones(3)
    for _ in range(6):
        for program in made:
            program(x)
    assert shelf.room >= 16
    compiled = [p.jitted for p in made]
    for program in made:
        program(x)
    assert [p.jitted for p in made] == compiled


def test_a_function_of_many_signatures(shelf, monkeypatch):
    monkeypatch.setattr(program_cache, "_OF_ONE", 6)
    double = program_cache.KeptProgram(lambda x: x * 2)
    for n in range(1, 25):
        assert double(np.ones(n, np.float32)).shape == (n,)
        assert len(double.signatures) <= 8 + 4


@pytest.mark.parametrize("fn", [lambda x: x - 1, lambda x: jnp.tanh(x) * x], ids=["light", "full"])
def test_nothing_of_a_program_that_went_stays(shelf, fn):
    x = jnp.ones(3)
    program = program_cache.KeptProgram(fn)
    client = x.device.client
    before = len(client.live_executables())
    gc.disable()
    try:
        first = program(x)
        assert len(client.live_executables()) == before + 1
        program.drop()
        assert len(client.live_executables()) == before
    finally:
        gc.enable()
    assert np.array_equal(program(x), first)


def test_of_the_backend(shelf, xp):
    compiled = [xp.compile(lambda x, k=k: (x * k,)) for k in range(20)]
    donating = xp.compile(lambda x: (x + 1,), donate=(0,))
    for _ in range(2):
        for _ in range(12):  # often enough to be called without `jax.jit`
            assert xp.to_numpy(compiled[0](xp.asarray(np.ones(2, np.float32)))[0]).tolist() == [0, 0]
        for k, fn in enumerate(compiled):
            assert xp.to_numpy(fn(xp.asarray(np.ones(2, np.float32)))[0]).tolist() == [k, k]
        assert xp.to_numpy(donating(xp.asarray(np.ones(2, np.float32)))[0]).tolist() == [2, 2]
    assert len(jax.tree.leaves(compiled[0](xp.asarray(np.ones(2, np.float32))))) == 1


def test_a_program_in_a_trace_is_no_program_of_its_own(shelf):
    program = program_cache.KeptProgram(lambda x: x + 1, inline=True)
    assert jax.jit(lambda x: program(x) * 2)(1.0) == 4.0
    assert shelf.count() == 0


# ---- how hard XLA works on them --------------------------------------------------------------------------------------

A = np.array([1.5, -0.0, np.nan, np.inf, 3.0, 1e-40, -7.25], np.float32)
EXACT = {
    "moves": lambda a, b: jnp.concatenate([a[::-1], b[1:]]).reshape(1, -1).T,
    "chooses": lambda a, b: jnp.where(jnp.isnan(a), jnp.maximum(a, b), -a),
    "integers": lambda a, b: a.astype(jnp.int32) * 3 + b.astype(jnp.int32),
    "adds": lambda a, b: a + b - 1,
    "multiplies": lambda a, b: a * b * 2,
    "divides": lambda a, b: jnp.sqrt(a / b),
    "converts": lambda a, b: (a.astype(jnp.bfloat16), b.astype(jnp.float16)),
}
ROUNDS_MORE = {
    "product and sum": lambda a, b: a * b + b,
    "transcendental": lambda a, b: jnp.tanh(a),
    "comparison and choice": lambda a, b: jnp.where(a > b, a, b),
    "sum of many": lambda a, b: jnp.sum(a),
    "product of matrices": lambda a, b: a @ b,
}


@pytest.mark.parametrize("case", EXACT)
def test_small_programs_with_the_same_bits_compile_with_the_least_options(case):
    fn = EXACT[case]
    traced = jax.jit(fn).trace(A, A[::-1].copy())
    assert effort.suits_least_effort(traced.jaxpr.jaxpr)
    made = traced.lower().compile(compiler_options=effort.options())(A, A[::-1].copy())
    for x, y in zip(jax.tree.leaves(made), jax.tree.leaves(jax.jit(fn)(A, A[::-1].copy())), strict=True):
        assert np.asarray(x).tobytes() == np.asarray(y).tobytes()


def test_options_are_those_that_the_compiler_has():
    assert "xla_backend_optimization_level" in effort.options()
    assert not effort._is_option("xla_no_such_option", 1)


@pytest.mark.parametrize("case", ROUNDS_MORE)
def test_what_may_differ_in_the_last_bit_compiles_as_it_always_does(case):
    assert not effort.suits_least_effort(jax.jit(ROUNDS_MORE[case]).trace(A, A).jaxpr.jaxpr)


def test_large_programs_compile_as_they_always_do():
    large = jnp.ones(effort.SIZE + 1)
    assert not effort.suits_least_effort(jax.make_jaxpr(lambda x: x + 1)(large).jaxpr)
    assert not effort.suits_least_effort(jax.make_jaxpr(lambda x: sum([x[0]] * effort.EQUATIONS, x))(A).jaxpr)


def test_one_program_small_and_large_in_a_trace_and_with_an_error(shelf):
    program = program_cache.KeptProgram(lambda x: x + x if x.ndim < 2 else x * x + x, inline=True)
    assert np.array_equal(program(A[:5]), A[:5] + A[:5], equal_nan=True)
    assert jax.jit(lambda x: program(x)[0])(A[:3]) == 3.0
    assert program(np.ones((2, 2), np.float32)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert program(np.ones(5000, np.float32)).sum() == 10000
    with pytest.raises(ValueError, match="this program"):
        program_cache.KeptProgram(lambda x: _raise())(A)


def _raise():
    raise ValueError("this program")
