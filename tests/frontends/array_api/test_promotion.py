"""The promotion tables of the standard ("Type Promotion Rules"), and what mixes with Python scalars."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tensorgraft.array_api as xp
from tensorgraft.frontends.array_api.core.promotion import STANDARD

SIGNED = "i1 i2 i4 i8 / i1 i1 i2 i4 i8 / i2 i2 i2 i4 i8 / i4 i4 i4 i4 i8 / i8 i8 i8 i8 i8"
UNSIGNED = "u1 u2 u4 u8 / u1 u1 u2 u4 u8 / u2 u2 u2 u4 u8 / u4 u4 u4 u4 u8 / u8 u8 u8 u8 u8"
MIXED = "u1 u2 u4 / i1 i2 i4 i8 / i2 i2 i4 i8 / i4 i4 i4 i8 / i8 i8 i8 i8"
FLOATING = "f4 f8 c8 c16 / f4 f4 f8 c8 c16 / f8 f8 f8 c16 c16 / c8 c8 c16 c8 c16 / c16 c16 c16 c16 c16"
BOOLEAN = "b1 / b1 b1"


def table() -> dict[tuple[np.dtype, np.dtype], np.dtype]:
    found = {}
    for text in (SIGNED, UNSIGNED, MIXED, FLOATING, BOOLEAN):
        head, *rows = (row.split() for row in text.split("/"))
        for first, *results in rows:
            for second, result in zip(head, results, strict=True):
                found[np.dtype(first), np.dtype(second)] = found[np.dtype(second), np.dtype(first)] = np.dtype(result)
    return found


TABLE = table()


@pytest.mark.parametrize(("a", "b"), list(itertools.product(STANDARD, STANDARD)))
def test_table(a: np.dtype, b: np.dtype) -> None:
    expected = TABLE.get((a, b))
    assert xp.can_cast(a, b) == (expected is not None and expected == b)
    x, y = xp.ones(2, dtype=a, device="numpy"), xp.ones(2, dtype=b, device="numpy")
    if expected is None:
        for call in (xp.result_type, xp.equal):
            with pytest.raises(TypeError, match=f"there is no common dtype of {a} and {b}"):
                call(x, y)
        return
    assert xp.result_type(a, b) == xp.result_type(x, b) == xp.result_type(a, y) == expected
    assert xp.where(x == x, x, y).dtype == expected
    if a.kind != "b":
        assert (x + y).dtype == expected


def test_on_every_device(device: str) -> None:
    for (a, b), expected in TABLE.items():
        if a.kind != "b" and a.itemsize <= b.itemsize:
            assert (xp.ones(2, dtype=a) * xp.ones(2, dtype=b)).dtype == expected


@pytest.mark.parametrize("dtype", STANDARD)
def test_scalars(dtype: np.dtype) -> None:
    x = xp.ones(2, dtype=dtype, device="numpy")
    wide = {"f": {np.dtype("f4"): np.dtype("c8"), np.dtype("f8"): np.dtype("c16")}.get(dtype), "c": dtype}
    expected = [
        (True, dtype if dtype.kind == "b" else None),
        (1, dtype if dtype.kind != "b" else None),
        (1.5, dtype if dtype.kind in "fc" else None),
        (1j, wide.get(dtype.kind)),
    ]
    for value, result in expected:
        if result is None:
            with pytest.raises(TypeError, match="cannot be combined"):
                xp.result_type(x, value)
        else:
            assert xp.result_type(x, value) == xp.result_type(value, dtype) == result


def test_narrow_floats() -> None:
    assert xp.result_type(xp.float16, xp.bfloat16) == xp.float32
    assert xp.result_type(xp.bfloat16, xp.float64) == xp.float64
    assert xp.result_type(xp.float16, xp.complex64) == xp.complex64
    assert xp.result_type(xp.bfloat16, 1.0) == xp.bfloat16


def test_kinds() -> None:
    assert xp.isdtype(xp.int8, "signed integer") and xp.isdtype(xp.uint8, ("bool", "integral"))
    assert xp.isdtype(xp.float32, xp.float32) and xp.isdtype(xp.bfloat16, "real floating")
    assert not xp.isdtype(xp.bool, "numeric") and not xp.isdtype(xp.complex64, "real floating")
    with pytest.raises(ValueError, match="'float' is not a kind of dtype"):
        xp.isdtype(xp.float32, "float")
    assert xp.finfo(xp.complex64).bits == 32 and xp.iinfo(xp.int8).min == -128
    assert xp.finfo(xp.zeros(1, dtype=xp.float32, device="numpy")).dtype == xp.float32
    with pytest.raises(TypeError, match="expected a integer dtype"):
        xp.iinfo(xp.float32)
