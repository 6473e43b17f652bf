"""What Python asks of a number or a container: formats, rounding, membership; and numbers of NumPy as operands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from tests.frontends.array_api.conftest import BACKENDS

import tensorgraft as tg
import tensorgraft.array_api as xp


def test_formats(device: str) -> None:
    x = xp.asarray(2.567)
    assert (f"{x:.3f}", f"{x}", f"{xp.asarray(3):04d}", f"{xp.asarray(True)}") == ("2.567", "2.567", "0003", "True")
    assert f"{xp.asarray(1.5, dtype=xp.bfloat16):.2f}" == "1.50"
    assert f"{xp.ones(2)}" == repr(xp.ones(2))
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{xp.ones(2):.2f}"


def test_a_traced_number_has_no_format() -> None:
    pytest.importorskip("jax")
    seen: list[str] = []
    tg.jit(lambda x: seen.append(f"{x}") or x)(xp.asarray(1.0, device="jax"))
    assert "traced" in seen[0]
    with pytest.raises(tg.TracedValueError):
        tg.jit(lambda x: f"{x:.2f}")(xp.asarray(1.0, device="jax"))


def test_rounding(device: str) -> None:
    x = xp.asarray([2.5, -1.567, 12.25])
    for found, expected in (
        (round(x), [2, -2, 12]),
        (round(x, 1), [2.5, -1.6, 12.2]),
        (round(x, -1), [0.0, -0.0, 10.0]),
    ):
        assert found.tolist() == expected
    assert round(x).dtype == xp.int64 and round(x, 0).dtype == xp.float64
    assert list(range(round(xp.asarray(2.6)))) == [0, 1, 2]
    assert round(xp.asarray([3, 4], dtype=xp.int8)).dtype == xp.int8
    y = xp.asarray(-2.5)
    assert (math.floor(y), math.ceil(y), math.trunc(y)) == (-3, -2, -2)
    assert all(type(f(y)) is int for f in (math.floor, math.ceil, math.trunc))
    with pytest.raises(TypeError, match=r"floor\(\) requires a 0-dimensional array"):
        math.floor(x)


def test_quotients_powers_and_membership(device: str) -> None:
    x = xp.asarray([7.0, -7.0])
    for found, expected in ((divmod(x, 2), divmod(np.asarray(x), 2)), (divmod(9, x), divmod(9, np.asarray(x)))):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), b)
    assert 7 in x and 8 not in x and "a" not in x
    assert xp.asarray(7) in xp.asarray([[1, 7]])
    with pytest.raises(TypeError, match=r"unsupported operand"):
        pow(x, 2, 3)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)


@pytest.mark.parametrize(
    ("scalar", "dtype", "result"),
    [
        (np.float32(2), "float64", "float64"),
        (np.float64(2), "float32", "float32"),  # numbers, which have no dtype to promote to
        (np.float32(2), "float16", "float16"),
        (np.int64(2), "int8", "int8"),
        (np.int32(2), "float32", "float32"),
        (np.complex64(2j), "float32", "complex64"),
        (np.longdouble(2), "float32", "float32"),
        (np.bool_(True), "bool", "bool"),
    ],
)
def test_numbers_of_numpy(device: str, scalar: Any, dtype: str, result: str) -> None:
    x = xp.ones(2, dtype=getattr(xp, dtype))
    left, right = (scalar & x, x & scalar) if dtype == "bool" else (scalar * x, x * scalar)
    for found in (left, right, xp.where(x == x, x, scalar), xp.where(x == x, scalar, x)):
        assert isinstance(found, xp.Array) and found.dtype == getattr(xp, result)
    assert isinstance(scalar == x, xp.Array) and isinstance(x != scalar, xp.Array)


def test_numbers_of_numpy_in_functions(device: str) -> None:
    x = xp.asarray([1.0, 5.0])
    assert xp.clip(x, np.float32(2), np.int64(4)).tolist() == [2.0, 4.0]
    assert xp.arange(np.int64(3)).tolist() == [0, 1, 2] and xp.linspace(np.float32(0), 1, np.int64(2)).tolist() == [
        0,
        1,
    ]
    assert xp.full(2, np.float64(3)).tolist() == [3.0, 3.0] and xp.isin(x, np.float64(5)).tolist() == [False, True]
    assert xp.result_type(x, np.float32(1)) == xp.float64 and xp.result_type(np.float32(1)) == xp.float32
    x += np.float32(1)
    x[0] = np.float64(0)
    assert x.tolist() == [0.0, 6.0]
    with pytest.raises(OverflowError):
        xp.ones(1, dtype=xp.int8) + np.int64(300)


def others() -> dict[str, Any]:
    """Arrays of frameworks, by their package."""
    out: dict[str, Any] = {}
    if "jax" in BACKENDS:
        import jax.numpy as jnp

        out["jax"] = jnp.ones(2)
    if "torch" in BACKENDS:
        import torch

        out["torch"] = torch.ones(2)
    if "tensorflow" in BACKENDS:
        import tensorflow as tf

        out["tensorflow"] = tf.ones(2)
    return out


def test_arrays_of_frameworks_do_not_mix(device: str) -> None:
    x = xp.ones(2, dtype=xp.float32)
    for package, other in others().items():
        with pytest.raises(TypeError, match=r"unsupported operand of add: .*asarray\(it, device="):
            x + other
        with pytest.raises(TypeError):
            x += other
        if package == "tensorflow" == device:
            assert type(other + x).__module__.startswith("tensorflow")  # it is a tensor of TensorFlow
            continue
        for call in (lambda: other + x, lambda: other < x, lambda: divmod(other, x)):  # noqa: B023
            with pytest.raises(TypeError):
                call()
