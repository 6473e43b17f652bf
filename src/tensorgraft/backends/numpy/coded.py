"""Products with matrices of codes: blocks of rows that fit in the CPU's cache are decoded, and BLAS multiplies them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.coded import Coded, Coding

_BLOCK = 1 << 17  # numbers decoded at a time
_MANY = 16  # BLAS needs larger blocks for more rows than these
_tables: dict[Coding, Array] = {}  # see `_table`


class NumpyCoded:
    def coded_matmul(
        self: Any,
        x: Array,
        codes: Array,
        scale: Array,
        zero: Array | None,
        coding: Coding,
        shape: tuple[int, int],
        axis: int = 1,
        dtype: np.dtype | None = None,
    ) -> Array:
        n, k = shape
        if not x.size or not n * k or k % 2 or k % coding.packed:
            return Coded.coded_matmul(self, x, codes, scale, zero, coding, shape, axis, dtype)
        rows = np.ascontiguousarray(codes).reshape(n, k // coding.packed)
        table = _table(self, coding) if coding.packed > 1 or coding.kind != "integer" else None
        if table is not None and coding.packed == 1:
            rows = rows.view(np.uint16)
        left = np.asarray(x, np.float32)
        scale, zero = (s if s is None or len(s) in (1, n) else np.repeat(s, n // len(s), 0) for s in (scale, zero))
        scale_after = scale.shape[axis] == 1 and zero is None  # all terms of a sum have the same scale
        out = np.zeros((len(left), n if axis == 1 else k), np.float32)
        step = max(1, (_BLOCK if len(left) <= _MANY else _BLOCK * 8) // k)
        for start in range(0, n, step):
            part = slice(start, min(start + step, n))
            if table is None:
                values = rows[part].astype(np.float32)
            else:
                values = np.take(table, rows[part], axis=0, mode="clip").view(np.float32).reshape(-1, k)
            if not scale_after:
                _scale(values, _rows_of(scale, part), None if zero is None else _rows_of(zero, part))
            if axis == 1:
                np.matmul(left, values.T, out=out[:, part])
            else:
                out += left[:, part] @ values
        if scale_after:
            out *= np.repeat(scale, out.shape[1] // scale.shape[1 - axis], 1 - axis).reshape(1, -1)
        return out.astype(x.dtype if dtype is None else dtype, copy=False)


def _rows_of(scale: Array, part: slice) -> Array:
    """Return some rows of scales or zero points, of which there may be one row for all."""
    return scale if len(scale) == 1 else scale[part]


def _scale(values: Array, scale: Array, zero: Array | None) -> None:
    """Subtract the zero points and scale, in place; each column of `scale` and `zero` is that of a group of columns."""
    if zero is not None:
        values.reshape(len(values), zero.shape[1], -1)[...] -= zero[:, :, None]
    values.reshape(len(values), scale.shape[1], -1)[...] *= scale[:, :, None]


def _table(xp: Any, coding: Coding) -> Array:
    """Return the numbers of each byte that packs several codes, or of each two bytes of one code each. The float32
    numbers of an entry are viewed as one float64 or complex128 if there are two or four, which is faster to look up."""
    table = _tables.get(coding)
    if table is None:
        codes: Array
        if coding.packed > 1:
            codes = coding.unpack(xp, np.arange(256, dtype=dtypes.uint8), (256 * coding.packed,))
        else:
            codes = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
        if coding.kind == "integer":
            numbers: Array = coding.decode(xp, codes)
        else:
            single = np.zeros(256, np.float32)  # 0 for bytes that are no code
            known = coding.all_codes()
            numbers = coding.decode(xp, known)
            single[known.view(np.uint8)] = numbers
            numbers = single[codes.view(np.uint8)]
        numbers = numbers.reshape(-1, max(coding.packed, 2))
        wide = {2: np.float64, 4: np.complex128}.get(numbers.shape[1])
        table = _tables[coding] = numbers if wide is None else numbers.view(wide).reshape(-1)
    return table
