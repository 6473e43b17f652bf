"""Compiled functions whose arguments are also reached in another way, and what they leave where they raise."""

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp

ON = pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
EACH = pytest.mark.parametrize("wrap", [tg.jit, lambda fn: fn], ids=["compiled", "eager"])


def array(values, backend):
    return xp.asarray(np.asarray(values, np.float64), device=backend)


@ON
def test_an_argument_that_the_function_also_captures(backend):
    held = array([1, 2, 3], backend)

    def f(x):
        held[0] = 50.0
        return x * 1

    f = tg.jit(f)
    for x in (held, array([1, 2, 3], backend), held, held[:], array([1, 2, 3], backend)):
        held[0] = 1.0
        first = 50.0 if x._cell is held._cell else 1.0
        np.testing.assert_array_equal(np.asarray(f(x)), [first, 2, 3])
        np.testing.assert_array_equal(np.asarray(held), [50, 2, 3])


@ON
def test_identity_of_an_argument(backend):
    held = [array([1, 2], backend), array([1, 2], backend)]
    f = tg.jit(lambda x: [k for k, other in enumerate(held) if other is x])
    same = tg.jit(lambda x, y: x is y)
    x = array([1, 2], backend)
    for _ in range(2):
        assert [f(held[0]), f(held[1]), f(x)] == [[0], [1], []]
        assert same(x, x) and not same(x, x[:])


@ON
def test_arguments_that_are_captured_too_need_one_program(backend):
    class Model:
        def __init__(self):
            self.weights = [array([k, k], backend) for k in range(40)]

        def scaled(self, weight):
            return weight * len(self.weights)

    model = Model()
    f = tg.jit(model.scaled)
    for k, weight in enumerate(model.weights):
        np.testing.assert_array_equal(np.asarray(f(weight)), [40 * k, 40 * k])
    assert f.report.traces == 1


@ON
@EACH
def test_containers_that_are_given_and_reached(backend, wrap):
    kept = [array([1, 2], backend)]

    def append(values, factor):
        values.append(array([5], backend))
        return len(kept) * factor

    f = wrap(append)
    assert float(f(kept, 2.0)) == 4.0 and float(f(kept, 3.0)) == 9.0
    assert float(f([array([1], backend)], 3.0)) == 9.0 and len(kept) == 3

    def scale(x, y, factor):
        x[0] = x[0] * factor
        return y[0] * 1

    f, one = wrap(scale), [array([1, 2], backend)]
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(f([array([1, 2], backend)], [array([1, 2], backend)], 2.0)), [1, 2])
    np.testing.assert_array_equal(np.asarray(f(one, one, 2.0)), [2, 4])
    np.testing.assert_array_equal(np.asarray(f(one, one, 3.0)), [6, 12])


@ON
@EACH
def test_an_exception_leaves_the_effects_before_it(backend, wrap):
    held, calls = array([0, 0], backend), []

    def f(x, index):
        held[0] += 1.0
        calls.append(index)
        y = x[index]
        held[1] += 1.0
        return y * len(calls)

    f, x = wrap(f), array([1, 2], backend)
    assert float(f(x, 1)) == 2.0
    for _ in range(2):
        with pytest.raises(IndexError):
            f(x, 5)
    np.testing.assert_array_equal(np.asarray(held), [3, 1])
    assert calls == [1, 5, 5] and float(f(x, 1)) == 8.0
