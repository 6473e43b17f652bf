"""Errors: one type and one text on every backend, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.frontends.array_api.conftest import BACKENDS

import tensorgraft as tg
import tensorgraft.array_api as xp

# call -> the error and its text
CASES: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: xp.ones((2, 3)) + xp.ones(4),
        ValueError,
        "add(float64[2, 3], float64[4]): expected shapes that broadcast: on each axis, from the last, equal extents or"
        " 1",
    ),
    (
        lambda: xp.add(xp.ones(3, dtype=xp.int64), xp.ones(3)),
        TypeError,
        "add(int64[3], float64[3]): there is no common dtype of int64 and float64: the Array API standard"
        " promotes only within one kind of dtype. Convert one of them with astype",
    ),
    (
        lambda: xp.imag(xp.ones(3, dtype=xp.int64)),
        TypeError,
        "imag(int64[3]): expected a complex floating-point dtype",
    ),
    (
        lambda: xp.bitwise_and(xp.ones(3), 1),
        TypeError,
        "bitwise_and(float64[3], 1): expected a boolean or integer dtype",
    ),
    (
        lambda: xp.sin([1.0]),
        TypeError,
        "sin: expected an array of tensorgraft.array_api, got a builtins.list: convert it with asarray",
    ),
    (
        lambda: xp.sum(xp.ones((2, 3)), axis=2),
        IndexError,
        "sum(float64[2, 3]): axis 2 is out of bounds for 2 dimensions",
    ),
    (
        lambda: xp.max(xp.ones((0, 3)), axis=0),
        ValueError,
        "max(float64[0, 3]): expected at least one element along the axes (0,)",
    ),
    (
        lambda: xp.reshape(xp.ones((2, 3)), (4, -1)),
        ValueError,
        "reshape(float64[2, 3], (4, -1)): 6 elements do not fill the shape (4, -1)",
    ),
    (
        lambda: xp.matmul(xp.ones((2, 3)), xp.ones((2, 3))),
        ValueError,
        "matmul(float64[2, 3], float64[2, 3]): expected the last axis of the first as long as the last but one of the"
        " second",
    ),
    (
        lambda: xp.concat([xp.ones((2, 3)), xp.ones(4)]),
        ValueError,
        "concat(float64[2, 3], float64[4]): expected shapes that are equal but for axis 0",
    ),
    (
        lambda: xp.linalg.inv(xp.ones((2, 3))),
        ValueError,
        "inv(float64[2, 3]): expected square matrices",
    ),
    (lambda: xp.broadcast_to(xp.ones(4), (3,)), ValueError, "an array of shape (4,) does not broadcast to (3,)"),
    (lambda: xp.ones((2, 3))[2], IndexError, "index 2 is out of bounds for axis 0 of size 2"),
    (
        lambda: xp.ones((2, 3))[:, xp.asarray([0, 5])],
        IndexError,
        "index 5 is out of bounds for axis 1 of size 3",
    ),
    (lambda: xp.ones(3)[0, 0], IndexError, "2 indices for an array of 1 dimensions, of shape (3,)"),
    (lambda: xp.ones(3)[xp.ones(3)], IndexError, "expected an index array of integers or booleans, got float64"),
    (
        lambda: xp.ones(3)[xp.ones(2, dtype=xp.bool)],
        IndexError,
        "a mask of shape (2,) does not match axes of shape (3,)",
    ),
    (
        lambda: xp.full(3, 2**70, dtype=xp.int64),
        OverflowError,
        f"the Python integer {2**70} is out of bounds for int64",
    ),
    (lambda: bool(xp.ones(2)), TypeError, "bool() requires a 0-dimensional array, but this one has shape (2,)"),
    (lambda: xp.asarray([[1, 2], [3]]), ValueError, "asarray: the nested sequences have different lengths"),
    (lambda: xp.zeros(-1), ValueError, "zeros: the shape (-1,) has a negative extent"),
    (
        lambda: xp.fft.rfft(xp.ones(3, dtype=xp.complex64)),
        TypeError,
        "rfft(complex64[3]): expected a real floating-point dtype",
    ),
    (
        lambda: xp.astype(xp.ones(3, dtype=xp.complex64), xp.float32),
        TypeError,
        "astype(complex64[3], float32): complex numbers cannot be converted to a real dtype: use real, imag or abs",
    ),
]


@pytest.mark.parametrize(("call", "error", "text"), CASES)
def test_one_text_everywhere(device: str, call: Callable[[], object], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        (slice(1, 3), (1.0, 2.0, 3.0), ValueError),
        (5, 1.0, IndexError),
        (slice(None), 1j, TypeError),
        ([0, 7], 1.0, IndexError),
        ([0, 1], (1.0, 2.0, 3.0), ValueError),
        (slice(None), "text", TypeError),
    ],
)
def test_a_failing_write_changes_nothing(device: str, key: object, value: object, error: type[Exception]) -> None:
    x = xp.arange(4.0)
    index = xp.asarray(key) if isinstance(key, list) else key
    with pytest.raises(error):
        x[index] = xp.asarray(value) if isinstance(value, tuple) else value
    assert x.tolist() == [0, 1, 2, 3]


def test_devices_do_not_mix() -> None:
    if len(BACKENDS) < 2:
        pytest.skip("one backend is installed")
    a, b = (xp.ones(2, device=name) for name in BACKENDS[:2])
    text = rf"add: the arrays are on several devices \({BACKENDS[0]}, {BACKENDS[1]}\): move them with to_device"
    with pytest.raises(ValueError, match=text):
        a + b
    with pytest.raises(ValueError, match="cannot be written into one on"):
        a[0] = b[0]
    with pytest.raises(ValueError, match="move it with to_device"):
        a[b > 0]
    assert (a + b.to_device(a.device)).tolist() == [2.0, 2.0]


def test_unknown_devices() -> None:
    with pytest.raises(tg.BackendNotAvailableError, match=r"there is no backend 'abacus'\. Installed: .*numpy"):
        xp.ones(1, device="abacus")
    with pytest.raises(TypeError, match="expected a name such as 'jax'"):
        xp.ones(1, device=3)
    with pytest.raises(ValueError, match="NumPy has one"):
        xp.ones(1, device="numpy:1")
