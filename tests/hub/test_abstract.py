"""What the abstract backend refuses, and what it says: the operation, its operands, and what was expected."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.hub.checks import ABSTRACT

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype


def f32(*shape: int) -> ShapeDtype:
    return ShapeDtype(shape, dtypes.float32)


def i64(*shape: int) -> ShapeDtype:
    return ShapeDtype(shape, dtypes.int64)


REFUSED: list[tuple[str, tuple[Any, ...], type[Exception], str]] = [
    ("add", (f32(2, 3), f32(4)), ValueError, "add(float32[2, 3], float32[4]): expected shapes that broadcast"),
    ("add", (f32(2), i64(2)), TypeError, "add(float32[2], int64[2]): expected operands of one dtype"),
    ("add", (i64(2), 1.5), TypeError, "add(int64[2], 1.5): expected arrays, or Python scalars that int64 can hold"),
    ("add", (1, 2), TypeError, "expected an array among the operands"),
    ("erf", (i64(2),), TypeError, "erf(int64[2]): expected a dtype that is floating"),
    ("where", (f32(2), f32(2), f32(2)), TypeError, "expected a dtype that is bool"),
    ("complex", (ShapeDtype((), dtypes.float16),) * 2, TypeError, "expected float32 or float64 parts"),
    ("bitcast", (f32(2, 2), dtypes.int8), ValueError, "expected one dimension"),
    ("bitcast", (f32(1), dtypes.float64), ValueError, "expected 4 bytes to be a multiple of 8"),
    ("sum", (f32(2, 3), 2), ValueError, "sum(float32[2, 3], 2): expected an axis between -2 and 1"),
    ("sum", (f32(2, 3), (0, -2)), ValueError, "expected axes that differ"),
    ("any", (f32(2),), TypeError, "expected a dtype that is bool"),
    ("argmax", (f32(2, 0), 1), ValueError, "expected an axis that is not empty"),
    ("cumsum", (f32(), 0), ValueError, "expected an array of some dimension"),
    ("full", ((-1,), 0, dtypes.float32), ValueError, "expected a shape: a tuple of ints that are not negative"),
    ("reshape", (f32(2, 3), (4,)), ValueError, "reshape(float32[2, 3], (4,)): expected a shape of 6 elements, not 4"),
    ("permute_dims", (f32(2, 3), (0, 0)), ValueError, "expected a permutation of 0 to 1"),
    ("broadcast_to", (f32(2, 3), (3,)), ValueError, "expected a shape that broadcasts to (3,), got (2, 3)"),
    ("concat", ([f32(2, 3), f32(3, 2)], 0), ValueError, "concat([float32[2, 3], float32[3, 2]], 0): expected arrays"),
    ("pad", (f32(2), 0, [(-3, 0, 0)]), ValueError, "expected no more to be cut off than there is"),
    ("slice", (f32(2), (0,), (3,), (1,)), ValueError, "expected 0 <= start <= stop <= extent"),
    ("slice_update", (f32(2), f32(3), (0,), (1,)), ValueError, "expected an update that fits"),
    ("dynamic_slice", (f32(2), [f32()], (1,)), TypeError, "expected indices that are integer arrays"),
    ("dynamic_slice", (f32(2), [i64()], (3,)), ValueError, "expected a window that fits"),
    ("gather", (f32(2), [i64(1), i64(1)]), ValueError, "expected at most 1 index arrays"),
    ("scatter", (f32(2), [i64(3)], f32(4)), ValueError, "expected a shape that broadcasts to (3,), got (4,)"),
    ("scatter", (f32(2), [i64(3)], f32(3), "mean"), ValueError, "expected a mode of set, add, multiply, min, max"),
    ("sort", ([f32(2), f32(3)],), ValueError, "expected operands of one shape"),
    ("searchsorted", (f32(2, 3), f32(3, 3)), ValueError, "or with the leading axes of the values"),
    ("dot_general", (f32(2, 3), f32(4, 3), ((1,), (0,))), ValueError, "expected contracted axes of equal extents"),
    ("cholesky", (f32(2, 3),), ValueError, "cholesky(float32[2, 3]): expected square matrices"),
    ("qr", (i64(2, 3),), TypeError, "expected a dtype that is floating or complex"),
    ("svd", (f32(3),), ValueError, "expected matrices: at least two dimensions"),
    ("triangular_solve", (f32(3, 3), f32(2, 1), True), ValueError, "expected 3 rows on the right-hand side"),
    (
        "convolution",
        (f32(1, 3, 5), f32(2, 2, 3), (1,), ((0, 0),), (1,), (1,)),
        ValueError,
        "expected 3 channels to be groups x 2",
    ),
    ("reduce_window", (f32(3), "mean", (1,), (1,), ((0, 0),), (1,)), ValueError, "expected a kind of sum, max, min"),
    ("rfft", (ShapeDtype((4,), dtypes.float16), 0), TypeError, "expected float32 or float64"),
    ("irfft", (ShapeDtype((4,), dtypes.complex64), 4, 0), ValueError, "expected 3 values along the axis"),
]


@pytest.mark.parametrize(("name", "operands", "error", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused(name: str, operands: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as raised:
        getattr(ABSTRACT, name)(*operands)
    assert str(raised.value).startswith(name)
