"""What a compiled function compares of its calls: nothing that was constant in a trace may change unseen, however often
the same call was made before."""

import types
from dataclasses import dataclass

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp

FACTOR = 2.0


def array(values, backend="jax"):
    return xp.asarray(np.asarray(values, np.float32), device=backend)


def counted(fn):
    """Return (the compiled function, its report)."""
    compiled = tg.jit(fn)
    return compiled, lambda: compiled.report.traces


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_arguments_that_share_memory_are_another_call(backend):
    def add_into(a, b):
        a += 1
        return a * b

    f, traces = counted(add_into)
    for _ in range(2):
        x, y = array([1, 2], backend), array([3, 4], backend)
        np.testing.assert_array_equal(np.asarray(f(x, y)), [6, 12])
        x = array([1, 2], backend)
        np.testing.assert_array_equal(np.asarray(f(x, x)), [4, 9])
        np.testing.assert_array_equal(np.asarray(x), [2, 3])
    assert traces() == 2


def test_shapes_dtypes_views_and_structures_are_told_apart():
    f, traces = counted(lambda x: {k: v + v for k, v in x.items()})
    wide = array(np.arange(12).reshape(3, 4))
    square = array(np.arange(9).reshape(3, 3))
    calls = [{"a": wide}, {"b": wide}, {"a": wide[:, ::2]}, {"a": wide[:, 1:3]}, {"a": square}, {"a": square.T},
             {"a": xp.astype(square, xp.int32)}]  # fmt: skip
    for _ in range(3):
        for call in calls:
            for key, made in f(call).items():
                expected = np.asarray(call[key])
                assert made.dtype == call[key].dtype
                np.testing.assert_array_equal(np.asarray(made), expected + expected)
    assert traces() == len(calls)


def test_what_a_function_reaches_is_looked_at_in_every_call(monkeypatch):
    power = 1
    x, held = array([1, 2]), array([10, 20])

    def fn(x):
        return x**power * FACTOR + held

    f = tg.jit(fn)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(f(x)), [12, 24])
    power = 2
    np.testing.assert_array_equal(np.asarray(f(x)), [12, 28])
    monkeypatch.setitem(fn.__globals__, "FACTOR", 3.0)
    np.testing.assert_array_equal(np.asarray(f(x)), [13, 32])
    held += 1
    np.testing.assert_array_equal(np.asarray(f(x)), [14, 33])
    held = array([0, 0])
    np.testing.assert_array_equal(np.asarray(f(x)), [3, 12])
    power = 1
    np.testing.assert_array_equal(np.asarray(f(x)), [3, 6])


def test_arguments_that_are_no_arrays_are_told_apart_by_type_and_value():
    def fn(x, how):
        return x + 1 if how is True else x - 1 if how == "down" else x * how

    f, traces = counted(fn)
    x = array([3, 4])
    for _ in range(2):
        for how, expected in ((True, [4, 5]), ("down", [2, 3]), (2, [6, 8]), (2.0, [6, 8])):
            np.testing.assert_array_equal(np.asarray(f(x, how)), expected)
    assert traces() <= 6


def test_a_call_without_arrays_is_for_the_default_device_of_its_time():
    f = tg.jit(lambda n: xp.ones(3) * n)
    before = str(xp.ones(1).device)
    try:
        for name in ("jax", "torch", "jax"):
            tg.set_default_device(name)
            made = f(2.0)
            assert name in str(made.device)
            np.testing.assert_array_equal(np.asarray(made), [2, 2, 2])
    finally:
        tg.set_default_device(before)


def test_arrays_on_several_devices_are_refused_after_good_calls_too():
    f = tg.jit(lambda x, y: x + y)
    x, y = array([1]), array([1], "torch")
    for _ in range(2):
        f(x, x)
        f(y, y)
        with pytest.raises(ValueError, match="a program runs on one device"):
            f(x, y)


@pytest.mark.parametrize("backend", ["torch", "jax", "tensorflow"])
def test_results_are_arguments_views_of_them_constants_and_new_arrays(backend):
    fixed = array([7], backend)
    f = tg.jit(lambda x, n: (x, x[1:], n, "word", fixed, x + n, x * n))
    for n in (2, 3):
        x = array([1, 2, 3], backend)
        same, view, number, word, constant, added, multiplied = f(x, n)
        assert same is x
        assert number == n
        assert word == "word"
        view += 10
        np.testing.assert_array_equal(np.asarray(x), [1, 12, 13])
        np.testing.assert_array_equal(np.asarray(constant), [7])
        np.testing.assert_array_equal(np.asarray(added), np.array([1, 2, 3]) + n)
        np.testing.assert_array_equal(np.asarray(multiplied), np.array([1, 2, 3]) * n)


def test_an_array_that_somebody_else_holds_is_not_given_away():
    @tg.jit
    def step(x):
        x += 1

    x = array(np.zeros(1000))
    for k in range(3):
        held = x.native
        step(x)
        np.testing.assert_array_equal(np.asarray(held), np.full(1000, k))
        np.testing.assert_array_equal(np.asarray(x), np.full(1000, k + 1))


def test_what_is_held_without_its_array_knowing_is_not_given_away_either():
    @tg.jit
    def step(x):
        x += 1

    x = array(np.zeros(4)) * 1
    step(x)
    held = x._cell.array
    step(x)
    np.testing.assert_array_equal(np.asarray(held), np.ones(4))
    np.testing.assert_array_equal(np.asarray(x), np.full(4, 2))


def test_zeros_that_a_function_reaches_have_signs():
    sign = 0.0
    f = tg.jit(lambda x: xp.copysign(x, sign))
    assert f(array([1])).tolist() == [1]
    sign = -0.0
    assert f(array([1])).tolist() == [-1]


def test_a_view_that_is_returned_is_one_of_what_the_call_was_given(device):
    """Not of what the first call was given, nor a copy."""
    look = tg.jit(lambda x: (x[1:], xp.reshape(x, (1, 3))))
    for first in (1, 4, 7):
        x = xp.arange(first, first + 3, device=device)
        tail, row = look(x)
        assert tail.tolist() == [first + 1, first + 2]
        assert row.tolist() == [x.tolist()]
        tail[0] = 100
        assert x.tolist() == row[0, :].tolist() == [first, 100, first + 2]


def test_a_view_of_an_array_from_around_is_one_of_it_as_it_is(device):
    around = xp.asarray([1, 2, 3], device=device)
    held = [xp.asarray([1, 2, 3], device=device)]
    look = tg.jit(lambda x: (around[1:], held[0][:2], x + 1))
    x = xp.asarray(0, device=device)
    look(x)
    around[1], held[0][1] = 20, 30
    seen, of_held, _ = look(x)
    assert seen.tolist() == [20, 3] and of_held.tolist() == [1, 30]
    seen[1], of_held[0] = 40, 50
    assert around.tolist() == [1, 20, 40] and held[0].tolist() == [50, 30, 3]


def test_an_array_made_inside_of_known_values_is_a_new_one_in_each_call(device):
    def make(x):
        table = xp.asarray([1, 2], device=device)
        return table, table + x, table[:1]

    compiled = tg.jit(make)
    x = xp.asarray([10, 10], device=device)
    table, _, first = compiled(x)
    table[...] = 0
    assert first.tolist() == [0]  # they share memory, of this call alone
    assert [a.tolist() for a in compiled(x)] == [[1, 2], [11, 12], [1]]
    assert [a.tolist() for a in compiled(x)] == [a.tolist() for a in make(x)]


def test_a_compiled_function_inside_of_another_ends_nothing_of_it(device):
    inner = tg.jit(lambda x: x[1:])

    def make(x):
        seen = inner(x)
        table = xp.asarray([5, 6], device=device)
        return table, table + seen, seen

    outer = tg.jit(make)
    for first in (1, 10):
        x = xp.arange(first, first + 3, device=device)
        table, _, seen = outer(x)
        assert [a.tolist() for a in outer(x)] == [[5, 6], [first + 6, first + 8], [first + 1, first + 2]]
        table[0], seen[0] = 0, 0
        assert x.tolist() == [first, 0, first + 2]


@dataclass
class Pair:
    first: object
    parts: list


class Slotted:
    __slots__ = ("y",)

    def __init__(self, y):
        self.y = y


class Named(dict):
    pass


OBJECTS = {
    "dataclass": (lambda y: Pair(y, [y + 1]), lambda o: o.first),
    "namespace": (lambda y: types.SimpleNamespace(y=y), lambda o: o.y),
    "slots": (Slotted, lambda o: o.y),
    "dictionary": (lambda y: Named(y=y), lambda o: o["y"]),
    "function": (lambda y: lambda: y, lambda o: o()),
    "nested": (lambda y: [y, {"k": Named(z=Pair(y, []))}], lambda o: o[1]["k"]["z"].first),
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("backend", ["jax", "numpy", "torch", "tensorflow"])
def test_results_that_are_objects_are_made_anew(kind, backend):
    make, look = OBJECTS[kind]
    f = tg.jit(lambda x, factor: make(x * factor))
    first, second = f(array([1, 2], backend), 2.0), f(array([3, 4], backend), 5.0)
    assert type(first) is type(second) and first is not second
    assert look(first).tolist() == [2, 4] and look(second).tolist() == [15, 20]
    if kind == "dataclass":
        assert second.parts[0].tolist() == [16, 21] and second.parts is not first.parts
    if kind == "nested":
        assert second[0] is look(second)


def test_objects_from_outside_are_handed_out_as_they_are():
    kept = types.SimpleNamespace(n=3)
    f = tg.jit(lambda x: (x + 1, kept))
    assert f(array([1.0]))[1] is kept and f(array([2.0]))[1] is kept


@pytest.mark.parametrize("make", [lambda x: Pair(x, [3]), lambda x: [x, 3]], ids=["object", "list"])
@pytest.mark.parametrize("backend", ["jax", "numpy", "torch", "tensorflow"])
def test_an_argument_that_is_handed_back_is_the_one_of_the_call(make, backend):
    compiled = tg.jit(lambda x, held: {"sum": x + 1, "held": held})
    for start in range(3):
        x = xp.asarray([float(start)], device=backend)
        for _ in range(2):
            held = make(x)
            result = compiled(x, held)
            assert result["held"] is held
            assert result["sum"].tolist() == [start + 1]
