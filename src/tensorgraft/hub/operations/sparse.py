"""Products with matrices of compressed sparse rows (CSR), and sums over segments.

A matrix (m, n) is `starts` (m + 1,), where each row's values start and the last ends, `columns` (stored values,) and
`values` (stored values,). Columns of a row may be in any order and occur repeatedly: repeated values are added. Values
after the last start belong to no row: they count as 0, and so do their derivatives.
Compressed columns are the transposed matrix. A backend overrides the methods with a leading underscore, on dtypes in
which sums may be accumulated; their derivatives are declared here, each in terms of the other two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


class Sparse:
    custom_vjp: Any

    def csr_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array) -> Array:
        """Return the product (m, k) of a sparse matrix (m, n) and `dense` (n, k), of one dtype."""
        return _derived(self, _MATMUL, (starts, columns), values, dense)

    def csr_transposed_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array, n: int) -> Array:
        """Return the product (n, k) of the transpose of a sparse matrix (m, n) and `dense` (m, k), of one dtype."""
        return _derived(self, _transposed(n), (starts, columns), values, dense)

    def csr_sampled_matmul(self: Any, starts: Array, columns: Array, a: Array, b: Array) -> Array:
        """Return the elements of `a` (m, k) times the transpose of `b` (n, k) that a sparse matrix stores."""
        return _derived(self, _SAMPLED, (starts, columns), a, b)

    def csr_rows(self: Any, starts: Array, count: int) -> Array:
        """Return the int64 row of each of `count` stored values."""
        return self.subtract(self.searchsorted(starts, self.iota(count, self.dtype_of(starts)), right=True), 1)

    def segment_sum(self: Any, x: Array, starts: Array) -> Array:
        """Return the sums (m, ...) of consecutive rows of `x` (count, ...): segment `i` is from `starts[i]` to
        `starts[i + 1]`, of `starts` (m + 1,) from 0 to the count."""
        count, *rest = self.shape(x)
        numbers = self.iota(count, self.dtype_of(starts))
        rows = self.reshape(x, (count, self.size(x) // count if count else 0))
        if not count:
            return self.zeros((self.shape(starts)[0] - 1, *rest), self.dtype_of(x))
        sums = self.csr_matmul(starts, numbers, self.ones((count,), self.dtype_of(x)), rows)
        return self.reshape(sums, (self.shape(sums)[0], *rest))

    # ---- what backends override --------------------------------------------------------------------------------------

    def _csr_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array) -> Array:
        zeros = self.zeros((self.shape(starts)[0] - 1, self.shape(dense)[1]), self.dtype_of(dense))
        rows, values = _placed(self, starts, values)
        return _scaled_sum(self, zeros, rows, values, self.gather(dense, (columns,)))

    def _csr_transposed_matmul(self: Any, starts: Array, columns: Array, values: Array, dense: Array, n: int) -> Array:
        rows, values = _placed(self, starts, values)
        zeros = self.zeros((n, self.shape(dense)[1]), self.dtype_of(dense))
        return _scaled_sum(self, zeros, columns, values, self.gather(dense, (rows,)))

    def _csr_sampled_matmul(self: Any, starts: Array, columns: Array, a: Array, b: Array) -> Array:
        rows = self.minimum(self.csr_rows(starts, self.shape(columns)[0]), max(self.shape(a)[0] - 1, 0))
        products = self.dot_general(self.gather(a, (rows,)), self.gather(b, (columns,)), ((1,), (1,)), ((0,), (0,)))
        return _placed(self, starts, products)[1]


def _placed(xp: Any, starts: Array, values: Array) -> tuple[Array, Array]:
    """Return the row of each value, and the values, of which those that belong to no row are 0."""
    m, rows = xp.shape(starts)[0] - 1, xp.csr_rows(starts, xp.shape(values)[0])
    return xp.minimum(rows, max(m - 1, 0)), xp.where(xp.less(rows, m), values, xp.zeros_like(values))


def _scaled_sum(xp: Any, zeros: Array, at: Array, values: Array, rows: Array) -> Array:
    return xp.scatter(zeros, (at,), xp.multiply(xp.expand_dims(values, 1), rows), mode="add")


class _Product:
    """A bilinear product of two operands over the pattern of a sparse matrix."""

    def __init__(self, compute: Any, gradients: Any) -> None:
        self.compute = compute  # (backend, pattern, x, y) -> the product
        self.gradients = gradients  # (backend, pattern, x, y, cotangent) -> cotangents of x and y


_MATMUL = _Product(
    lambda xp, a, x, y: xp._csr_matmul(*a, x, y),
    lambda xp, a, x, y, g: (
        xp.csr_sampled_matmul(*a, g, y),
        xp.csr_transposed_matmul(*a, x, g, xp.shape(y)[0]),
    ),
)
_SAMPLED = _Product(
    lambda xp, a, x, y: xp._csr_sampled_matmul(*a, x, y),
    lambda xp, a, x, y, g: (xp.csr_matmul(*a, g, y), xp.csr_transposed_matmul(*a, g, x, xp.shape(y)[0])),
)


def _transposed(n: int) -> _Product:
    return _Product(
        lambda xp, a, x, y: xp._csr_transposed_matmul(*a, x, y, n),
        lambda xp, a, x, y, g: (xp.csr_sampled_matmul(*a, y, g), xp.csr_matmul(*a, x, g)),
    )


def _derived(xp: Any, product: _Product, pattern: Sequence[Array], x: Array, y: Array) -> Array:
    dtype = xp.dtype_of(x)
    wide = dtypes.accumulator(dtype)
    if wide != dtype:
        return xp.astype(_derived(xp, product, pattern, xp.astype(x, wide), xp.astype(y, wide)), dtype)

    starts, columns = pattern
    if xp.dtype_of(starts) != xp.dtype_of(columns):  # of which kernels take one dtype
        wider = dtypes.int64 if dtypes.int64 in (xp.dtype_of(starts), xp.dtype_of(columns)) else dtypes.int32
        pattern = [xp.astype(index, wider) for index in pattern]

    def compute(xp: Any, *arrays: Array) -> tuple[Array]:
        return (product.compute(xp, arrays[:2], *arrays[2:]),)

    def backward(xp: Any, arrays: Sequence[Array], results: Any, cotangents: Sequence[Array]) -> list[Array | None]:
        return [None, None, *product.gradients(xp, arrays[:2], *arrays[2:], cotangents[0])]

    def forward(xp: Any, arrays: Sequence[Array], results: Any, tangents: Sequence[Array]) -> tuple[Array]:
        x, y = arrays[2:]

        def moved(x: Array, y: Array) -> Array:
            return _derived(xp, product, arrays[:2], x, y)

        return (xp.add(moved(tangents[2], y), moved(x, tangents[3])),)

    (out,) = xp.custom_vjp(compute, backward, forward, *pattern, x, y)
    return out


__all__ = ["Sparse"]
