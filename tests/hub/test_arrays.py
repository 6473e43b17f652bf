"""Arrays, devices and compilation of every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.hub.checks import ABSTRACT, BACKENDS, backend, to_host, wide

from tensorgraft.errors import TracedValueError
from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.backend import Backend


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", [*dtypes.ALL, *dtypes.FLOAT8], ids=str)
def test_to_a_backend_and_back(name: str, dtype: np.dtype) -> None:
    xp = backend(name)
    host = np.arange(6).reshape(2, 3).T.astype(dtype)
    with xp.scope():
        x = xp.asarray(host)
        assert xp.is_array(x) and not xp.is_array(host.tolist()) and not xp.is_array(1.0)
        assert not xp.is_traced(x)
        assert xp.shape(x) == (3, 2) and xp.dtype_of(1, x) == dtype
        for back in (xp.to_numpy(x), xp.to_numpy(xp.copy(x))):
            assert back.dtype == dtype
            np.testing.assert_array_equal(wide(back), wide(host))


@pytest.mark.parametrize("name", BACKENDS)
def test_capsules_are_of_the_arrays_own_memory(name: str) -> None:
    xp, host = backend(name), np.arange(6, dtype=np.float32).reshape(2, 3)
    with xp.scope():
        capsules = xp.capsules([xp.asarray(host), xp.asarray(host + 1)])
        assert (capsules is not None) == (name == "jax")
        for capsule, expected in zip(capsules or [], (host, host + 1), strict=False):
            assert type(capsule).__name__ == "PyCapsule"
            holder = type(
                "Holder", (), {"__dlpack__": lambda self, c=capsule, **_: c, "__dlpack_device__": lambda _: (1, 0)}
            )
            np.testing.assert_array_equal(np.from_dlpack(holder()), expected)


@pytest.mark.parametrize("name", BACKENDS)
def test_memory_is_the_backends_own(name: str) -> None:
    xp, host = backend(name), np.zeros(1000, np.float32)
    with xp.scope():
        x = xp.asarray(host)
        xp.synchronize()
        host += 1
        assert not xp.to_numpy(x).any()
        assert not np.shares_memory(xp.to_numpy(xp.copy(x)), xp.to_numpy(x))


@pytest.mark.parametrize("name", BACKENDS)
def test_dlpack(name: str) -> None:
    xp, host = backend(name), np.arange(64, dtype=np.float32).reshape(8, 8)
    with xp.scope():
        x = xp.from_dlpack(host)
        assert xp.is_array(x)
        np.testing.assert_array_equal(xp.to_numpy(x), host)


@pytest.mark.parametrize("name", BACKENDS)
def test_compile(name: str) -> None:
    xp = backend(name)
    seen = []

    def program(x: Any, y: Any) -> tuple[Any, ...]:
        seen.append(xp.is_traced(x))
        return xp.add(x, y), xp.sum(x)

    with xp.scope():
        x = xp.asarray(np.arange(3.0))
    compiled = xp.compile(program)
    for _ in range(3):
        total, summed = to_host(xp, compiled(x, 2.0))
    np.testing.assert_array_equal(total, [2, 3, 4])
    assert float(summed) == 3 and total.dtype == np.float64
    assert seen == ([True] if xp.compiles else [False] * 3)


@pytest.mark.parametrize("name", [name for name in BACKENDS if type(backend(name)).compiles])
def test_a_trace_has_no_values(name: str) -> None:
    xp = backend(name)
    x = xp.asarray(np.arange(3.0))
    for ask in (xp.to_numpy, xp.nonzero):
        with pytest.raises(TracedValueError):
            xp.compile(lambda x, ask=ask: (ask(x),))(x)


@pytest.mark.parametrize("name", BACKENDS)
def test_device(name: str) -> None:
    xp = backend(name)
    assert xp.name == name and xp is registry.get(name)
    assert xp.device_name() and xp.device_name() != name
    assert set(xp.memory_stats()) <= {"allocated", "peak"}
    assert type(xp).device_count() >= 1
    with pytest.raises(ValueError):
        type(xp)(type(xp).device_count())


def test_a_backend_that_lacks_primitives_says_which() -> None:
    class Half(Backend):
        name = "half"

        def is_array(self, x: Any, /) -> bool:
            return False

    with pytest.raises(TypeError, match=r"Half lacks the primitives .*dot_general"):
        Half()


@pytest.mark.parametrize("name", [name for name in BACKENDS if type(backend(name)).mutable])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.bfloat16, dtypes.bool_], ids=str)
def test_views_and_writes(name: str, dtype: np.dtype) -> None:
    xp = backend(name)
    x = xp.zeros((4, 6), dtype)
    view = xp.strided_view(x, (2, 3), (6, 2), 1, dtype)
    xp.assign(view, xp.ones((2, 3), dtype))
    wanted = np.zeros((4, 6))
    wanted[:2, 1::2] = 1
    np.testing.assert_array_equal(xp.to_numpy(x).astype(np.float32), wanted)
    assert xp.strided_view(xp.zeros((0, 3), dtype), (0, 2), (3, 1), 0, dtype).shape == (0, 2)
    line = xp.strided_view(x, (24,), (1,), 0, dtype)
    before = xp.to_numpy(line).copy()
    xp.assign(line[1:], line[:-1])  # they overlap
    np.testing.assert_array_equal(xp.to_numpy(line)[1:], before[:-1])


def test_abstract_arrays() -> None:
    x = ABSTRACT.asarray(np.zeros((2, 3), np.int8))
    assert str(x) == "int8[2, 3]" and (x.ndim, x.size) == (2, 6)
    assert ABSTRACT.is_array(x) and ABSTRACT.is_traced(x) and not ABSTRACT.is_array(np.zeros(2))
    assert ABSTRACT.copy(x) == x == ABSTRACT.from_dlpack(np.zeros((2, 3), np.int8))
    with pytest.raises(TracedValueError, match=r"int8\[2, 3\]"):
        ABSTRACT.to_numpy(x)
    with pytest.raises(TracedValueError, match="nonzero"):
        ABSTRACT.nonzero(x)
