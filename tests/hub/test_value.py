"""Operators on arrays are the operations of their names: what a formula records is what the calls record."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.recorded.tracing import record
from tensorgraft.hub.value import Value, ValueBackend, with_operators

BINARY = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
}
COMPARISONS = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
BITS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
SHIFTS = {"bitwise_left_shift": operator.lshift, "bitwise_right_shift": operator.rshift}
SIDES = {
    "arrays": lambda f: lambda xp, x, y: [f(x, y)],
    "number right": lambda f: lambda xp, x, y: [f(x, 3)],
    "number left": lambda f: lambda xp, x, y: [f(3, x)],
}


def _listing(fn: Callable[..., Any], dtype: np.dtype) -> str:
    return str(record(fn, [ShapeDtype((2, 3), dtype), ShapeDtype((), dtype)]))


ALL = {**BINARY, **COMPARISONS, **SHIFTS}
# Python turns 3 < x into x > 3
CASES = [(name, side) for name in ALL for side in SIDES if name not in COMPARISONS or side != "number left"]


@pytest.mark.parametrize(("name", "side"), CASES)
def test_an_operator_is_the_operation(name: str, side: str) -> None:
    op, dtype = ALL[name], dtypes.int32 if name in SHIFTS else dtypes.float16
    called = _listing(lambda xp, x, y: SIDES[side](getattr(xp, name))(xp, x, y), dtype)
    assert _listing(with_operators(SIDES[side](op)), dtype) == called


@pytest.mark.parametrize(("dtype", "kind"), [(dtypes.bool_, "logical"), (dtypes.uint8, "bitwise")])
@pytest.mark.parametrize("name", BITS)
def test_bits_of_booleans_are_logic(name: str, dtype: np.dtype, kind: str) -> None:
    called = _listing(lambda xp, x, y: [getattr(xp, f"{kind}_{name}")(x, y)], dtype)
    assert _listing(with_operators(lambda xp, x, y: [BITS[name](x, y)]), dtype) == called


def test_operators_of_one_operand() -> None:
    def called(xp: Any, x: Any, y: Any) -> list[Any]:
        return [xp.negative(x), xp.abs(x), xp.logical_not(xp.equal(x, y)), xp.matmul(x, y)]

    specs = [ShapeDtype((3, 3), dtypes.float32)] * 2
    formulas = with_operators(lambda xp, x, y: [-x, abs(x), ~(x == y), x @ y])
    assert str(record(formulas, specs)) == str(record(called, specs))


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch", "tensorflow"])
def test_numbers_take_the_arrays_dtype(backend: str) -> None:
    xp = registry.get(backend)

    @with_operators
    def formula(xp: ValueBackend, x: Value) -> tuple[Value, Value]:
        assert (x.shape, x.ndim, x.dtype) == ((2,), 1, dtypes.bfloat16)
        return 1 - x * 2.5, x < 3.0

    with xp.scope():
        y, small = formula(xp, xp.asarray(np.array([1, 2], dtypes.bfloat16)))
        assert xp.dtype_of(y) == dtypes.bfloat16
        assert xp.to_numpy(y).astype(float).tolist() == [-1.5, -4.0]
        assert xp.to_numpy(small).tolist() == [True, True]


def test_numpy_leaves_operators_to_values() -> None:
    formula = with_operators(lambda xp, x: [np.ones(2) + x, np.float64(2) * x, np.ones(2) < x])
    assert [type(r) for r in formula(registry.get("numpy"), np.ones(2))] == [np.ndarray] * 3


class Pair(NamedTuple):
    first: Any
    second: Any


def test_functions_that_a_backend_calls_have_values() -> None:
    xp = registry.get("numpy")

    @with_operators
    def formula(xp: ValueBackend, pair: Pair, count: Value) -> tuple[Pair, Value, Any]:
        total, _ = xp.while_loop(lambda s: s[1] < count, lambda s: (s[0] * 2, s[1] + 1), (pair.first, count * 0))
        (ruled,) = xp.custom_vjp(lambda xp, x: [x + 1], lambda xp, xs, ys, gs: [gs[0] * 3], None, pair.second)
        return Pair(total, ruled), xp.cond(count > 2, lambda x: x + 1, lambda x: x, count), None

    with xp.scope():
        (total, ruled), count, nothing = formula(xp, Pair(np.ones(2), np.zeros(2)), np.array(3))
        assert type(total) is np.ndarray
        assert (total.tolist(), ruled.tolist(), int(count), nothing) == ([8.0, 8.0], [1.0, 1.0], 4, None)
        _, pull = xp.vjp(
            lambda inner, x: [formula(inner, Pair(x, x), inner.asarray(np.array(1)))[0].second], np.ones(2)
        )
        assert pull([np.ones(2)])[0].tolist() == [3.0, 3.0]


def test_functions_of_values_call_each_other() -> None:
    @with_operators
    def inner(xp: ValueBackend, x: Value) -> Value:
        assert type(x) is Value
        return x + 1

    outer = with_operators(lambda xp, x: inner(xp, x) * 2)
    xp = registry.get("numpy")
    assert outer(xp, np.ones(2)).tolist() == [4.0, 4.0]


def test_a_value_has_no_truth() -> None:
    with pytest.raises(TypeError, match="no truth"):
        with_operators(lambda xp, x: 1 if x > 0 else 0)(registry.get("numpy"), np.ones(()))
