"""Python numbers among the arguments of `tg.jit`: inputs of the program, unless its value is looked at."""

from __future__ import annotations

import copy
import json
import math
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.array_api.core.traced_numbers import Use, stand_for
from tensorgraft.hub import registry

ON = pytest.mark.parametrize("backend", [name for name in registry.backends() if name != "numpy"])
ONE = pytest.mark.parametrize("backend", ["jax"])


def counted(fn: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[[], int]]:
    compiled: Any = tg.jit(fn)
    return compiled, lambda: compiled.report.traces


def array(values: Any, backend: str, dtype: Any = None) -> xp.Array:
    return xp.asarray(np.asarray(values, dtype), device=backend, copy=True)


@ON
def test_one_program_for_all_numbers(backend: str) -> None:
    def fn(x: Any, rate: float, n: int) -> Any:
        y = xp.where(x > 0, x, rate), xp.clip(x, 0, rate), xp.full((2,), rate, device=backend)
        return x - rate * x, *y, xp.asarray(n, device=backend), x + n, n, {"rate": rate}

    compiled, traces = counted(fn)
    x = array([1.0, -2.0], backend)
    for rate, n in ((0.1, 1), (3.5, 7), (math.nan, -2), (-0.0, 2**60)):
        got, want = compiled(x, rate, n), fn(x, rate, n)
        for a, b in zip(got[:-2], want[:-2], strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        assert got[-2] is n and got[-1]["rate"] is rate
    assert traces() == 1


@ON
def test_numbers_are_written(backend: str) -> None:
    def fn(x: Any, s: float) -> Any:
        x[0] = s
        x *= s
        tg.inplace_update(x[1:], s)

    compiled, traces = counted(fn)
    for s in (1.5, 2.5):
        x = array([1.0, 2.0], backend)
        compiled(x, s)
        assert np.asarray(x).tolist() == [s * s, s]
    assert traces() <= 2


@ON
def test_derivatives(backend: str) -> None:
    compiled, traces = counted(lambda x, s: tg.hessian(lambda x: xp.sum(x * x * x * s + s))(x))
    x = array([1.0, 2.0], backend)
    for s in (1.0, 2.0):
        assert np.allclose(np.asarray(compiled(x, s)), np.diag([6 * s, 12 * s]))
    assert traces() == 1


LOOKS: dict[str, Callable[[Any, Any], Any]] = {
    "shape": lambda x, n: xp.zeros((n,), device=x.device) + x[0],
    "index": lambda x, n: x[n],
    "loop": lambda x, n: sum((x for _ in range(n)), x),
    "branch": lambda x, n: x if n > 2 else -x,
    "text": lambda x, n: (x, f"{n}"),
    "key": lambda x, n: x * {1: 5.0, 2: 6.0, 3: 7.0}[n],
    "arithmetic": lambda x, n: x * (n + 1),
    "power": lambda x, n: x**n,
    "numpy": lambda x, n: x * float(np.arange(5)[n]),
    "C": lambda x, n: x * math.sqrt(n),
    "json": lambda x, n: (x * n, json.dumps([n])),  # of which C code takes Python's own numbers only
    "object": lambda x, n: (x, Held(n)),
    "copy": lambda x, n: x * copy.deepcopy(n),
    "pickle": lambda x, n: x * pickle.loads(pickle.dumps(n)),
    "max": lambda x, n: x * max(n, 2),
}


class Held:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


@ONE
@pytest.mark.parametrize("name", LOOKS)
def test_a_look_is_one_program_for_each_value(backend: str, name: str) -> None:
    fn = LOOKS[name]
    compiled = tg.jit(fn)
    x = array([1.0, 2.0, 3.0, 4.0, 5.0], backend)
    for n in (1, 3, 2, 1, 3):
        got, want = compiled(x, n), fn(x, n)
        if isinstance(got, tuple):
            assert got[1] == want[1] and type(got[1]) is type(want[1])
            got, want = got[0], want[0]
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))


@ONE
def test_what_a_dtype_holds(backend: str) -> None:
    compiled, traces = counted(lambda x, n: x + n)
    x = array([1, 2], backend, np.int8)
    for n in (2, 100, -5):
        assert np.asarray(compiled(x, n)).tolist() == np.asarray(x + n).tolist()
    with pytest.raises(OverflowError, match="300 is out of bounds for int8"):
        compiled(x, 300)
    assert np.asarray(compiled(x, 7)).tolist() == [8, 9] and traces() == 1  # of what failed none is left
    with pytest.raises(TypeError):
        compiled(x, 1.5)
    wide, traces = counted(lambda x, n: x * n)
    for n in (2**70, 2**70 + 2**60):  # beyond 64 bits: a constant
        assert np.asarray(wide(array([1.0], backend), n)).tolist() == [float(n)]
    assert traces() == 2


@ONE
def test_kinds_and_zeros(backend: str) -> None:
    compiled, traces = counted(lambda x, s: x * s)
    x = array([1.0], backend)
    for s in (1, 2, 1.0, 2.0, 1j, 2j):
        got, want = compiled(x, s), x * s
        assert got.dtype == want.dtype and np.asarray(got).tolist() == np.asarray(want).tolist()
    assert traces() == 3
    sign = tg.jit(lambda x, s: x * math.copysign(1.0, s))
    assert [float(sign(x, s)[0]) for s in (0.0, -0.0, 0.0)] == [1, -1, 1]
    known = tg.jit(lambda x, s: x * (1 if s == s else 2))
    assert [float(known(x, s)[0]) for s in (math.nan, 1.0, math.nan)] == [2, 1, 2]


def test_a_number_is_what_it_stands_for() -> None:
    for value in (3, 2.5, 2.5 + 1j):
        use = Use(value, None, None)  # type: ignore[arg-type]
        number = stand_for(use)
        assert isinstance(number, type(value)) and not isinstance(number, bool) and not hasattr(number, "shape")
        assert not use.looked_at
        for fn in (lambda n: n + 1, lambda n: 2 * n, hash, repr, str, bool, abs, lambda n: n == 3, lambda n: n.real,
                   complex, lambda n: f"{n}", np.asarray, np.sqrt, lambda n: np.float64(2) * n,
                   lambda n: np.array([1, n])[1], copy.copy, lambda n: n**2, lambda n: 1 / n):  # fmt: skip
            use.looked_at = False
            assert fn(number) == fn(value) and use.looked_at


@ON
def test_inputs_have_no_value_in_a_trace(backend: str) -> None:
    rate, x = array(2.0, backend), array([1.0], backend)
    for fn in (lambda r, x: x * float(r), lambda r, x: x * r.item(), lambda r, x: x * np.asarray(r)[()]):
        with pytest.raises(TracedValueError):
            tg.jit(fn)(rate, x)
    outside = tg.jit(lambda x: x * float(rate))
    with pytest.raises(TracedValueError):
        outside(x)
    constant = tg.jit(lambda x: x * float(xp.asarray(3.0, device=backend)))  # which no call can change
    assert float(constant(x)[0]) == 3


@ON
def test_numbers_are_inputs_beside_other_threads(backend: str) -> None:
    done = threading.Event()
    threading.Thread(target=done.wait, daemon=True).start()
    run, traces = counted(lambda x, n: x * n)
    for n in (2.0, 3.0):
        assert np.asarray(run(array([1.0, 1.0], backend), n)).tolist() == [n, n]
    done.set()
    assert traces() == 1
