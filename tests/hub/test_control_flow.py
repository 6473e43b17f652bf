"""`cond`, `while_loop`, `scan` and `map` on every backend, alone and compiled, and on the abstract one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.hub.checks import ABSTRACT, BACKENDS, backend, to_host

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.backend import Backend


def running_sum(xp: Backend, xs: Any, length: int, reverse: bool = False) -> Any:
    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        total = xp.add(carry["total"], x["value"])
        return {"total": total}, (total, xp.multiply(x["value"], 2))

    return xp.scan(body, {"total": xp.zeros((2,), dtypes.float32)}, {"value": xs}, length=length, reverse=reverse)


def powers(xp: Backend, limit: Any) -> Any:
    """The first power of two that is not below `limit`, and how many doublings it takes."""
    one, zero = xp.full((), 1, dtypes.int32), xp.full((), 0, dtypes.int32)
    return xp.while_loop(lambda s: xp.less(s[0], limit), lambda s: (xp.multiply(s[0], 2), xp.add(s[1], 1)), (one, zero))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_scan(name: str, length: int, reverse: bool) -> None:
    xp = backend(name)
    xs = np.arange(2 * length, dtype=np.float32).reshape(length, 2)
    with xp.scope():
        carry, (sums, doubles) = to_host(xp, running_sum(xp, xp.asarray(xs), length, reverse))
    step = -1 if reverse else 1
    np.testing.assert_array_equal(carry["total"], xs.sum(0))
    np.testing.assert_array_equal(sums, np.cumsum(xs[::step], 0)[::step])
    np.testing.assert_array_equal(doubles, 2 * xs)
    assert sums.dtype == doubles.dtype == np.float32 and sums.shape == (length, 2)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("limit", [0, 1, 100])
def test_while_loop(name: str, limit: int) -> None:
    xp = backend(name)
    with xp.scope():
        power, count = to_host(xp, powers(xp, xp.full((), limit, dtypes.int32)))
    assert (int(power), int(count)) == {0: (1, 0), 1: (1, 0), 100: (128, 7)}[limit]
    assert power.dtype == np.int32


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("holds", [False, True])
def test_cond(name: str, holds: bool) -> None:
    xp = backend(name)
    with xp.scope():
        x = xp.full((3,), 4, dtypes.float32)
        out = xp.cond(
            xp.full((), holds, dtypes.bool_), lambda x, y: {"out": xp.add(x, y)}, lambda x, y: {"out": y}, x, x
        )
        np.testing.assert_array_equal(xp.to_numpy(out["out"]), np.full(3, 8 if holds else 4, np.float32))


@pytest.mark.parametrize("name", BACKENDS)
def test_map(name: str) -> None:
    xp = backend(name)
    with xp.scope():
        out = xp.map(lambda x: (xp.sum(x), xp.negative(x)), xp.asarray(np.arange(6.0).reshape(2, 3)), 2)
        sums, negatives = to_host(xp, out)
    np.testing.assert_array_equal(sums, [3, 12])
    np.testing.assert_array_equal(negatives, -np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize("name", BACKENDS)
def test_compiled(name: str) -> None:
    xp = backend(name)

    def program(xs: Any, limit: Any) -> tuple[Any, ...]:
        carry, (sums, _) = running_sum(xp, xs, 3)
        return carry["total"], sums, *powers(xp, limit)

    with xp.scope():
        xs, limit = xp.asarray(np.ones((3, 2), np.float32)), xp.full((), 9, dtypes.int32)
    total, sums, power, count = to_host(xp, xp.compile(program)(xs, limit))
    assert total.tolist() == [3, 3] and sums[:, 0].tolist() == [1, 2, 3] and (int(power), int(count)) == (16, 4)


def test_abstract() -> None:
    xp, scalar = ABSTRACT, ShapeDtype((), dtypes.int32)
    carry, ys = running_sum(xp, ShapeDtype((5, 2), dtypes.float32), 5)
    assert carry == {"total": ShapeDtype((2,), dtypes.float32)}
    assert ys == (ShapeDtype((5, 2), dtypes.float32),) * 2
    assert powers(xp, scalar) == (scalar, scalar)
    predicate = ShapeDtype((), dtypes.bool_)
    assert xp.cond(predicate, lambda x: x, lambda x: xp.add(x, 1), scalar) == scalar


def test_abstract_refuses_results_that_differ() -> None:
    xp, x = ABSTRACT, ShapeDtype((2,), dtypes.float32)
    predicate = ShapeDtype((), dtypes.bool_)
    with pytest.raises(TypeError, match=r"^cond\(.*float32\[1\].*float32\[2\].*\): expected results of both branches"):
        xp.cond(predicate, lambda x: x, lambda x: xp.slice(x, (0,), (1,), (1,)), x)
    with pytest.raises(TypeError, match=r"^while_loop\(.*\): expected a state before and after a step"):
        xp.while_loop(lambda x: predicate, lambda x: xp.astype(x, dtypes.int32), x)
    with pytest.raises(TypeError, match=r"^scan\(.*\): expected a carry before and after a step"):
        xp.scan(lambda c, x: (x, x), x, ShapeDtype((3, 4), dtypes.float32), length=3)
    with pytest.raises(ValueError, match=r"^scan\(.*\): expected leaves with a first axis of 3"):
        xp.scan(lambda c, x: (c, x), x, x, length=3)
