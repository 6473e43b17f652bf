"""Products with matrices of compressed sparse rows, given by their parts, which are `Array`s."""

from __future__ import annotations

from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import arrays_of, backend_of, converted, fail, operand


def csr_matmul(starts: Array, columns: Array, values: Array, dense: Array) -> Array:
    """Return the product (m, k) of a sparse matrix (m, n) and a matrix `dense` (n, k).

    Row `i` of the sparse matrix has `values[starts[i]:starts[i + 1]]` at `columns[starts[i]:starts[i + 1]]`; indices
    are integers, in bounds. Raises TypeError for operands that are no arrays or have no common dtype, ValueError for
    other shapes.
    """
    _check("csr_matmul", starts, columns, values)
    return _product("csr_matmul", starts, columns, values, dense)


def csr_transposed_matmul(starts: Array, columns: Array, values: Array, dense: Array, n: int) -> Array:
    """Return the product (n, k) of the transpose of a sparse matrix (m, n), as `csr_matmul` takes it, and a matrix
    `dense` (m, k). Raises TypeError and ValueError as `csr_matmul` does."""
    _check("csr_transposed_matmul", starts, columns, values)
    if dense.ndim == 2 and dense.shape[0] != starts.shape[0] - 1:
        fail("csr_transposed_matmul", (starts, columns, values, dense), "as many rows as the sparse matrix has")
    return _product("csr_transposed_matmul", starts, columns, values, dense, n)


def _check(name: str, starts: Array, columns: Array, values: Array) -> None:
    for x in (starts, columns):
        operand(name, x, "i")
    if starts.ndim != 1 or not starts.shape[0] or columns.ndim != 1 or values.shape != columns.shape:
        fail(name, (starts, columns, values), "starts (m + 1,), columns (values,) and values (values,)")


def _product(name: str, starts: Array, columns: Array, values: Array, dense: Array, *sizes: int) -> Array:
    xp, dtype = arrays_of(name, values, dense)
    if dense.ndim != 2:
        fail(name, (values, dense), "a matrix")
    backend_of(name, starts, columns, values)
    with xp.scope():
        operands = converted(xp, values, dtype), converted(xp, dense, dtype)
        return new_array(getattr(xp, name)(starts._value(), columns._value(), *operands, *sizes), xp)
