"""Operators: in place they write the storage, and nothing where the result does not fit."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import tensorgraft.array_api as xp

A, B = np.array([[5.0, -2.0], [1.5, 4.0]]), np.array([2.0, -3.0])
N, M = np.array([[5, -2], [7, 4]]), np.array([2, 3])
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]
BITWISE = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]
CASES = [(op, A, B) for op in (*ARITHMETIC, *COMPARISONS, operator.matmul)] + [
    (op, N, M) for op in (*BITWISE, *COMPARISONS, operator.pow, operator.matmul, operator.mul, operator.floordiv)
]


def same(x: xp.Array, expected: Any) -> None:
    assert x.dtype == np.asarray(expected).dtype
    np.testing.assert_allclose(np.asarray(x), expected)


@pytest.mark.parametrize(("op", "a", "b"), CASES)
def test_as_numpy(device: str, op: Any, a: np.ndarray, b: np.ndarray) -> None:
    x, y = xp.asarray(a), xp.asarray(b)
    same(op(x, y), op(a, b))
    if op is operator.matmul:
        return
    scalar = b[0].item()
    same(op(x, scalar), op(a, scalar))
    same(op(scalar, xp.abs(x)), op(scalar, np.abs(a)))
    if op not in COMPARISONS and not (op is operator.truediv and a is N):
        place = getattr(operator, f"i{op.__name__.rstrip('_')}")
        target, view = xp.asarray(a, copy=True), None
        view = target[:, 1]
        assert place(target, y) is target
        same(target, op(a, b))
        same(view, op(a, b)[:, 1])


def test_unary(device: str) -> None:
    same(-xp.asarray(A), -A)
    same(abs(xp.asarray(A)), abs(A))
    same(~xp.asarray(N), ~N)
    same(+xp.asarray(N), N)


def test_in_place_through_views(device: str) -> None:
    x = xp.reshape(xp.arange(6.0), (2, 3))
    x.T[1:] *= 10
    x[0] += x[1]
    x[:, ::-1][:, 0] -= 1
    assert x.tolist() == [[3.0, 50.0, 69.0], [3.0, 40.0, 49.0]]
    m = xp.asarray([[1.0, 1.0], [0.0, 1.0]])
    alias = m
    m @= xp.asarray([[2.0, 0.0], [0.0, 2.0]])
    assert alias.tolist() == [[2.0, 2.0], [0.0, 2.0]]


@pytest.mark.parametrize(
    ("x", "other", "error"),
    [
        (xp.int64, 1.5, TypeError),
        (xp.int32, "int64", TypeError),  # a wider result does not fit
        (xp.float32, "float64", TypeError),
        (xp.float64, 1j, TypeError),
        (xp.float64, "wider", ValueError),
    ],
)
def test_what_does_not_fit_writes_nothing(device: str, x: Any, other: Any, error: type[Exception]) -> None:
    target = xp.ones(3, dtype=x)
    if other == "wider":
        other = xp.ones((2, 3))
    elif isinstance(other, str):
        other = xp.ones(3, dtype=getattr(xp, other))
    with pytest.raises(error):
        target += other
    assert target.tolist() == [1, 1, 1]


def test_unknown_operands(device: str) -> None:
    x = xp.ones(2)

    class Other:
        def __radd__(self, other: Any) -> str:
            return "theirs"

    assert x + Other() == "theirs"
    for other in (None, "a", [1, 2], object()):
        with pytest.raises(TypeError, match="unsupported operand"):
            x + other
        with pytest.raises(TypeError):
            other - x
    assert (x == None) is False  # noqa: E711


def test_scalars_of_python(device: str) -> None:
    assert (xp.ones(1, dtype=xp.float32) + 1.5).dtype == xp.float32
    assert (xp.ones(1, dtype=xp.float32) * 2j).dtype == xp.complex64
    assert (xp.ones(1, dtype=xp.uint64) + 2**63).tolist() == [2**63 + 1]
    with pytest.raises(OverflowError, match="300 is out of bounds for uint8"):
        xp.ones(1, dtype=xp.uint8) + 300


def test_floor_division_of_infinities(device: str) -> None:
    inf = float("inf")
    x, y = xp.asarray([inf, -inf, 1.0, -1.0, -0.0, 0.0]), xp.asarray([2.0, 2.0, -inf, inf, 3.0, -2.0])
    found = np.asarray(x // y)
    np.testing.assert_array_equal(found, [inf, -inf, 0, 0, 0, 0])
    assert np.signbit(found).tolist() == [False, True, True, True, True, True]
    assert np.signbit(np.asarray(x[4:] % y[4:])).tolist() == [False, True]
