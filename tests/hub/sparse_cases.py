"""Operands and references of the products with sparse matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.hub.cases import Case, of
from tests.hub.draw import Draw

from tensorgraft.hub import dtypes


def _pattern(d: Draw) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Starts, columns, and the extents of a matrix: rows without values, repeated columns, now and then no value."""
    m, n, count = d.int(1, 6), d.int(1, 5), d.one_of((0, 1, 3, 17))
    dtype = d.one_of((dtypes.int32, dtypes.int64))
    cuts = np.sort(d.indices(count + 1, (m - 1,)))
    starts = np.concatenate([[0], cuts, [count]]).astype(dtype)
    return starts, d.indices(n, (count,), dtype), m, n


def _multiplied(transposed: bool) -> Any:
    def operands(d: Draw) -> tuple[Any, ...]:
        starts, columns, m, n = _pattern(d)
        dense = d.array((m if transposed else n, d.one_of((1, 3, 85))))
        return starts, columns, d.array(columns.shape), dense, *((n,) if transposed else ())

    return operands


def _sampled(d: Draw) -> tuple[Any, ...]:
    starts, columns, m, n = _pattern(d)
    k = d.one_of((1, 3, 37))
    return starts, columns, d.array((m, k)), d.array((n, k))


def _segments(d: Draw) -> tuple[Any, ...]:
    starts, columns, _, _ = _pattern(d)
    return d.array((len(columns), *d.shape(0, 2, smallest=1))), starts


def _rows(starts: Any) -> Any:
    return np.repeat(np.arange(len(starts) - 1), np.diff(starts))


def _dense(starts: Any, columns: Any, values: Any, n: int) -> Any:
    matrix = np.zeros((len(starts) - 1, n), values.dtype)
    np.add.at(matrix, (_rows(starts), columns), values)
    return matrix


def _segment_sum(x: Any, starts: Any) -> Any:
    out = np.zeros((len(starts) - 1, *x.shape[1:]), x.dtype)
    np.add.at(out, _rows(starts), x)
    return out


SPARSE = {
    "csr_matmul": Case(
        of("ifc"), _multiplied(False), lambda s, c, values, dense: _dense(s, c, values, len(dense)) @ dense, 256
    ),
    "csr_transposed_matmul": Case(
        of("ifc"), _multiplied(True), lambda s, c, values, dense, n: _dense(s, c, values, n).T @ dense, 256
    ),
    "csr_sampled_matmul": Case(of("ifc"), _sampled, lambda s, c, a, b: (a[_rows(s)] * b[c]).sum(-1, a.dtype), 256),
    "csr_rows": Case((dtypes.int64,), lambda d: (s := _pattern(d)[0], int(s[-1])), lambda starts, count: _rows(starts)),
    "segment_sum": Case(of("ifc"), _segments, _segment_sum, 256),
}
