"""The LDL factorisation of symmetric and Hermitian matrices, with Bunch and Kaufman's pivots as LAPACK's sytrf and
hetrf choose them in the lower triangle (J. Bunch and L. Kaufman, Math. Comp. 31, 1977)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.math.factorization import adjoint, refuse_narrow
from tensorgraft.frontends.torch.kernels.math.factorization import check_errors as refuse_failed
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import AnyArray, Value, with_operators

_ALPHA = (1 + math.sqrt(17)) / 8


def _for_each_matrix(xp: Any, fn: Callable[..., Any], *arrays: Array, axes: tuple[int, ...]) -> Any:
    """Apply `fn` to every matrix or vector of a batch. `axes`: the number of axes of each array without the batch."""
    batch = xp.shape(arrays[0])[: xp.ndim(arrays[0]) - axes[0]]
    if not batch:
        return fn(*arrays)
    n = math.prod(batch)
    flat = tuple(xp.reshape(a, (n, *xp.shape(a)[len(batch) :])) for a in arrays)
    outputs = xp.map(lambda parts: fn(*parts), flat, n)
    in_batch = tuple(
        xp.reshape(a, (*batch, *xp.shape(a)[1:])) for a in (outputs if isinstance(outputs, tuple) else (outputs,))
    )
    return in_batch if isinstance(outputs, tuple) else in_batch[0]


def _column(xp: Any, a: AnyArray, k: AnyArray) -> AnyArray:
    return xp.squeeze(xp.take(a, xp.reshape(k, (1,)), 1), 1)


def _entry(xp: Any, v: AnyArray, k: AnyArray) -> AnyArray:
    return xp.gather(v, (k,))


def _pivot(xp: Any, a: Value, k: Value, at: Value) -> tuple[Value, Value, Value]:
    """Return (column k is zero below the diagonal, the pivot is a block of two rows, the row to swap with), as in the
    method of Bunch and Kaufman."""
    dtype = a.dtype

    def size(v: Value) -> Value:  # LAPACK compares complex numbers by the sum of their parts' moduli
        return abs(xp.real(v)) + abs(xp.imag(v)) if dtypes.is_complex(dtype) else abs(v)

    def greatest(v: Value, where: Value) -> tuple[Value, Value]:
        sizes = xp.where(where, size(v), xp.full((), -1.0, dtypes.real_dtype(dtype)))
        return xp.argmax(sizes, axis=0), xp.maximum(xp.max(sizes), 0)

    column = _column(xp, a, k)
    diagonal_size = size(_entry(xp, column, k))
    greatest_row, column_max = greatest(column, at > k)
    other = _column(xp, a, greatest_row)
    _, row_max = greatest(other, (at >= k) & (at != greatest_row))
    zero = (xp.maximum(diagonal_size, column_max) == 0) | xp.isnan(diagonal_size)
    ratio = column_max / xp.where(row_max == 0, xp.ones_like(row_max), row_max)
    large = diagonal_size >= column_max * _ALPHA * xp.minimum(ratio, 1)
    keeps_column = zero | large
    single = size(_entry(xp, other, greatest_row)) >= row_max * _ALPHA
    return zero, ~(keeps_column | single), xp.where(keeps_column, k, greatest_row)


def _factor(xp: Any, a: Value, hermitian: bool) -> tuple[Value, Value, Value]:
    """Return (L below D, pivots from 1, info) of a matrix (n, n) that equals its transpose (conjugate transpose)."""
    n, dtype = a.shape[-1], a.dtype
    at = xp.iota(n, dtypes.int64)
    rows, columns = xp.expand_dims(at, 1), xp.expand_dims(at, 0)
    conj = xp.conj if hermitian else lambda v: v

    def step(state: tuple[Value, ...]) -> tuple[Value, ...]:
        k, a, pivots, info = state
        zero, pair, pivot = _pivot(xp, a, k, at)
        next_ = xp.minimum(k + 1, n - 1)
        last = xp.where(pair, next_, k)

        # swap rows and columns `last` and `pivot` of the remaining matrix
        order = xp.where(at == last, pivot, xp.where(at == pivot, last, at))
        left = (rows >= k) & (columns >= k)
        a = xp.where(left, xp.take(xp.take(a, order, 0), order, 1), a)

        below = at > last
        x, y = (xp.where(below, _column(xp, a, i), xp.zeros((), dtype)) for i in (k, next_))
        d, e = (_entry(xp, _column(xp, a, k), i) for i in (k, next_))
        f = _entry(xp, _column(xp, a, next_), next_)
        one_value = xp.ones((), dtype)
        e, divisor = xp.where(pair, e, one_value), xp.where(zero, one_value, d)
        low, high = d / conj(e), f / e
        scale = xp.where(pair, low * high - 1, one_value)
        # (x y) times the inverse of ((d, e'), (e, f))
        v = (x * high - y) / (conj(e) * scale)
        w = (y * low - x) / (e * scale)
        v = xp.where(pair, v, x / divisor)
        w = xp.where(pair, w, xp.zeros((), dtype))
        outer = xp.expand_dims(v, 1) * xp.expand_dims(conj(x), 0)
        outer = outer + xp.expand_dims(w, 1) * xp.expand_dims(conj(y), 0)
        a = xp.where(zero, a, a - outer)
        below = xp.expand_dims(below, 1)
        a = xp.where(below & (columns == k), xp.expand_dims(v, 1), a)
        second = pair & (columns == next_)
        a = xp.where(below & second, xp.expand_dims(w, 1), a)

        number = xp.astype(pivot + 1, dtypes.int32)
        number = xp.where(pair, -number, number)
        pivots = xp.where((at == k) | (at == last), number, pivots)
        failed = zero & (info == 0)
        info = xp.where(failed, xp.astype(k + 1, dtypes.int32), info)
        return last + 1, a, pivots, info

    start = (xp.zeros((), dtypes.int64), a, xp.zeros((n,), dtypes.int32), xp.zeros((), dtypes.int32))
    _, a, pivots, info = xp.while_loop(lambda state: state[0] < n, step, start)
    return xp.tril(a), pivots, info


@kernel("linalg_ldl_factor_ex")
@with_operators
def _ldl_factor(
    xp: Any, x: Value, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Value, Value, Value]:
    refuse_narrow(xp, x)
    batch, dtype = x.shape[:-2], x.dtype
    hermitian = hermitian and dtypes.is_complex(dtype)
    if not xp.size(x):
        return x, xp.zeros(x.shape[:-1], dtypes.int32), xp.zeros(batch, dtypes.int32)
    strict = xp.tril(x, -1)
    upper = adjoint(xp, strict) if hermitian else xp.matrix_transpose(strict)
    diagonal = xp.tril(x) - strict
    diagonal = xp.astype(xp.real(diagonal), dtype) if hermitian else diagonal
    symmetric = strict + diagonal + upper
    packed, pivots, info = _for_each_matrix(xp, lambda a: _factor(xp, a, hermitian), symmetric, axes=(2,))
    if check_errors:
        refuse_failed(xp, info, "torch.linalg.ldl_factor_ex", is_matrix=not batch)
    return packed, pivots, info


@with_operators
def _forward(xp: Any, packed: Value, pivots: Value) -> Value:
    """M (n, n) with M A M^T = D: interchanges and columns of L, undone one after the other."""
    n, dtype = packed.shape[-1], packed.dtype
    at = xp.iota(n, dtypes.int64)

    def step(state: tuple[Value, Value]) -> tuple[Value, Value]:
        k, m = state
        number = xp.astype(_entry(xp, pivots, k), dtypes.int64)
        pair = number < 0
        next_ = xp.minimum(k + 1, n - 1)
        last, pivot = xp.where(pair, next_, k), abs(number) - 1
        m = xp.take(m, xp.where(at == last, pivot, xp.where(at == pivot, last, at)), 0)
        below = at > last
        for i, applies in ((k, below), (next_, below & pair)):
            column = xp.where(applies, _column(xp, packed, i), xp.zeros((), dtype))
            row = xp.take(m, xp.reshape(i, (1,)), 0)
            m = m - xp.expand_dims(column, 1) * row
        return last + 1, m

    start = (xp.zeros((), dtypes.int64), xp.eye(n, n, dtype))
    return xp.while_loop(lambda state: state[0] < n, step, start)[1]


@with_operators
def _block_diagonal(xp: Any, packed: Value, pivots: Value, hermitian: bool) -> Value:
    """D: where a pair of pivots begins, the entry below the diagonal is D's own, not L's."""
    n, dtype = packed.shape[-1], packed.dtype

    def pair_begins(second: Value, number: Value) -> tuple[Value, Value]:
        first = (number < 0) & ~second
        return first, first

    # the first of a pair is the first negative pivot, the third, ...
    firsts = xp.scan(pair_begins, xp.zeros((), dtypes.bool_), pivots, length=n)[1]
    diagonal = packed * xp.eye(n, n, dtype)
    below = packed * xp.eye(n, n, dtype, k=-1) * xp.astype(firsts, dtype)
    above = adjoint(xp, below) if hermitian else xp.matrix_transpose(below)
    return diagonal + below + above


@kernel("linalg_ldl_solve")
def _ldl_solve(xp: Any, packed: Array, pivots: Array, b: Array, *, hermitian: bool = False) -> Array:
    """Compute x = M^T D^-1 M b."""
    refuse_narrow(xp, packed)
    hermitian = hermitian and dtypes.is_complex(xp.dtype_of(packed))
    batch = np.broadcast_shapes(xp.shape(packed)[:-2], xp.shape(b)[:-2])
    b = xp.broadcast_to(b, (*batch, *xp.shape(b)[-2:]))
    if not xp.size(b):
        return b
    m = _for_each_matrix(xp, lambda a, p: _forward(xp, a, p), packed, pivots, axes=(2, 1))
    d = _for_each_matrix(xp, lambda a, p: _block_diagonal(xp, a, p, hermitian), packed, pivots, axes=(2, 1))
    d = xp.broadcast_to(d, (*batch, *xp.shape(d)[-2:]))
    transposed_m = adjoint(xp, m) if hermitian else xp.matrix_transpose(m)
    return xp.matmul(transposed_m, xp.solve(d, xp.matmul(m, b)))
