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

_ALPHA = (1 + math.sqrt(17)) / 8


def _each(xp: Any, fn: Callable[..., Any], *arrays: Array, axes: tuple[int, ...]) -> Any:
    """`fn` of every matrix or vector of a batch: `axes` is how many axes each array has without it."""
    batch = xp.shape(arrays[0])[: xp.ndim(arrays[0]) - axes[0]]
    if not batch:
        return fn(*arrays)
    n = math.prod(batch)
    flat = tuple(xp.reshape(a, (n, *xp.shape(a)[len(batch) :])) for a in arrays)
    outputs = xp.map(lambda parts: fn(*parts), flat, n)
    back = tuple(
        xp.reshape(a, (*batch, *xp.shape(a)[1:])) for a in (outputs if isinstance(outputs, tuple) else (outputs,))
    )
    return back if isinstance(outputs, tuple) else back[0]


def _column(xp: Any, a: Array, k: Array) -> Array:
    return xp.squeeze(xp.take(a, xp.reshape(k, (1,)), 1), 1)


def _entry(xp: Any, v: Array, k: Array) -> Array:
    return xp.gather(v, (k,))


def _factor(xp: Any, a: Array, hermitian: bool) -> tuple[Array, Array, Array]:
    """(L below D, pivots from 1, info) of a matrix (n, n) that equals its transpose (conjugate transpose)."""
    n, dtype = xp.shape(a)[-1], xp.dtype_of(a)
    at = xp.iota(n, dtypes.int64)
    rows, columns = xp.expand_dims(at, 1), xp.expand_dims(at, 0)
    conj = xp.conj if hermitian else lambda v: v

    def size(v: Array) -> Array:  # LAPACK compares complex numbers by the sum of their parts' moduli
        return xp.add(xp.abs(xp.real(v)), xp.abs(xp.imag(v))) if dtypes.is_complex(dtype) else xp.abs(v)

    def greatest(v: Array, where: Array) -> tuple[Array, Array]:
        sizes = xp.where(where, size(v), xp.full((), -1.0, dtypes.real_dtype(dtype)))
        return xp.argmax(sizes, axis=0), xp.maximum(xp.max(sizes), 0)

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        k, a, pivots, info = state
        column = _column(xp, a, k)
        here = size(_entry(xp, column, k))
        best, column_max = greatest(column, xp.greater(at, k))
        other = _column(xp, a, best)
        _, row_max = greatest(other, xp.logical_and(xp.greater_equal(at, k), xp.not_equal(at, best)))
        zero = xp.logical_or(xp.equal(xp.maximum(here, column_max), 0), xp.isnan(here))
        ratio = xp.divide(column_max, xp.where(xp.equal(row_max, 0), xp.ones_like(row_max), row_max))
        large = xp.greater_equal(here, xp.multiply(xp.multiply(column_max, _ALPHA), xp.minimum(ratio, 1)))
        stays = xp.logical_or(zero, large)
        single = xp.greater_equal(size(_entry(xp, other, best)), xp.multiply(row_max, _ALPHA))
        pair = xp.logical_not(xp.logical_or(stays, single))
        pivot = xp.where(stays, k, best)
        next_ = xp.minimum(xp.add(k, 1), n - 1)
        last = xp.where(pair, next_, k)

        # rows and columns `last` and `pivot` of what is left change places
        order = xp.where(xp.equal(at, last), pivot, xp.where(xp.equal(at, pivot), last, at))
        left = xp.logical_and(xp.greater_equal(rows, k), xp.greater_equal(columns, k))
        a = xp.where(left, xp.take(xp.take(a, order, 0), order, 1), a)

        below = xp.greater(at, last)
        x, y = (xp.where(below, _column(xp, a, i), xp.zeros((), dtype)) for i in (k, next_))
        d, e = (_entry(xp, _column(xp, a, k), i) for i in (k, next_))
        f = _entry(xp, _column(xp, a, next_), next_)
        one = xp.ones((), dtype)
        e, divisor = xp.where(pair, e, one), xp.where(zero, one, d)
        low, high = xp.divide(d, conj(e)), xp.divide(f, e)
        scale = xp.where(pair, xp.subtract(xp.multiply(low, high), 1), one)
        # of a pair (x y) times the inverse of ((d, e'), (e, f))
        v = xp.divide(xp.subtract(xp.multiply(x, high), y), xp.multiply(conj(e), scale))
        w = xp.divide(xp.subtract(xp.multiply(y, low), x), xp.multiply(e, scale))
        v = xp.where(pair, v, xp.divide(x, divisor))
        w = xp.where(pair, w, xp.zeros((), dtype))
        outer = xp.multiply(xp.expand_dims(v, 1), xp.expand_dims(conj(x), 0))
        outer = xp.add(outer, xp.multiply(xp.expand_dims(w, 1), xp.expand_dims(conj(y), 0)))
        a = xp.where(zero, a, xp.subtract(a, outer))
        below = xp.expand_dims(below, 1)
        a = xp.where(xp.logical_and(below, xp.equal(columns, k)), xp.expand_dims(v, 1), a)
        second = xp.logical_and(pair, xp.equal(columns, next_))
        a = xp.where(xp.logical_and(below, second), xp.expand_dims(w, 1), a)

        number = xp.astype(xp.add(pivot, 1), dtypes.int32)
        number = xp.where(pair, xp.negative(number), number)
        pivots = xp.where(xp.logical_or(xp.equal(at, k), xp.equal(at, last)), number, pivots)
        failed = xp.logical_and(zero, xp.equal(info, 0))
        info = xp.where(failed, xp.astype(xp.add(k, 1), dtypes.int32), info)
        return xp.add(last, 1), a, pivots, info

    start = (xp.zeros((), dtypes.int64), a, xp.zeros((n,), dtypes.int32), xp.zeros((), dtypes.int32))
    _, a, pivots, info = xp.while_loop(lambda state: xp.less(state[0], n), step, start)
    return xp.tril(a), pivots, info


@kernel("linalg_ldl_factor_ex")
def _ldl_factor(
    xp: Any, x: Array, *, hermitian: bool = False, check_errors: bool = False
) -> tuple[Array, Array, Array]:
    refuse_narrow(xp, x)
    batch, dtype = xp.shape(x)[:-2], xp.dtype_of(x)
    hermitian = hermitian and dtypes.is_complex(dtype)
    if not xp.size(x):
        return x, xp.zeros(xp.shape(x)[:-1], dtypes.int32), xp.zeros(batch, dtypes.int32)
    strict = xp.tril(x, -1)
    upper = adjoint(xp, strict) if hermitian else xp.matrix_transpose(strict)
    diagonal = xp.subtract(xp.tril(x), strict)
    diagonal = xp.astype(xp.real(diagonal), dtype) if hermitian else diagonal
    whole = xp.add(xp.add(strict, diagonal), upper)
    packed, pivots, info = _each(xp, lambda a: _factor(xp, a, hermitian), whole, axes=(2,))
    if check_errors:
        refuse_failed(xp, info, "torch.linalg.ldl_factor_ex", is_matrix=not batch)
    return packed, pivots, info


def _forward(xp: Any, packed: Array, pivots: Array) -> Array:
    """M (n, n) with M A M^T = D: interchanges and columns of L, undone one after the other."""
    n, dtype = xp.shape(packed)[-1], xp.dtype_of(packed)
    at = xp.iota(n, dtypes.int64)

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        k, m = state
        number = xp.astype(_entry(xp, pivots, k), dtypes.int64)
        pair = xp.less(number, 0)
        next_ = xp.minimum(xp.add(k, 1), n - 1)
        last, pivot = xp.where(pair, next_, k), xp.subtract(xp.abs(number), 1)
        m = xp.take(m, xp.where(xp.equal(at, last), pivot, xp.where(xp.equal(at, pivot), last, at)), 0)
        below = xp.greater(at, last)
        for i, there in ((k, below), (next_, xp.logical_and(below, pair))):
            column = xp.where(there, _column(xp, packed, i), xp.zeros((), dtype))
            row = xp.take(m, xp.reshape(i, (1,)), 0)
            m = xp.subtract(m, xp.multiply(xp.expand_dims(column, 1), row))
        return xp.add(last, 1), m

    start = (xp.zeros((), dtypes.int64), xp.eye(n, n, dtype))
    return xp.while_loop(lambda state: xp.less(state[0], n), step, start)[1]


def _block_diagonal(xp: Any, packed: Array, pivots: Array, hermitian: bool) -> Array:
    """D: where a pair of pivots begins, the entry below the diagonal is D's own, not L's."""
    n, dtype = xp.shape(packed)[-1], xp.dtype_of(packed)

    def begins(second: Array, number: Array) -> tuple[Array, Array]:
        first = xp.logical_and(xp.less(number, 0), xp.logical_not(second))
        return first, first

    # the first of a pair is the first negative pivot, the third, ...
    firsts = xp.scan(begins, xp.zeros((), dtypes.bool_), pivots, length=n)[1]
    diagonal = xp.multiply(packed, xp.eye(n, n, dtype))
    below = xp.multiply(xp.multiply(packed, xp.eye(n, n, dtype, k=-1)), xp.astype(firsts, dtype))
    above = adjoint(xp, below) if hermitian else xp.matrix_transpose(below)
    return xp.add(xp.add(diagonal, below), above)


@kernel("linalg_ldl_solve")
def _ldl_solve(xp: Any, packed: Array, pivots: Array, b: Array, *, hermitian: bool = False) -> Array:
    """x = M^T D^-1 M b."""
    refuse_narrow(xp, packed)
    hermitian = hermitian and dtypes.is_complex(xp.dtype_of(packed))
    batch = np.broadcast_shapes(xp.shape(packed)[:-2], xp.shape(b)[:-2])
    b = xp.broadcast_to(b, (*batch, *xp.shape(b)[-2:]))
    if not xp.size(b):
        return b
    m = _each(xp, lambda a, p: _forward(xp, a, p), packed, pivots, axes=(2, 1))
    d = _each(xp, lambda a, p: _block_diagonal(xp, a, p, hermitian), packed, pivots, axes=(2, 1))
    d = xp.broadcast_to(d, (*batch, *xp.shape(d)[-2:]))
    back = adjoint(xp, m) if hermitian else xp.matrix_transpose(m)
    return xp.matmul(back, xp.solve(d, xp.matmul(m, b)))
