"""Factorisations by Householder's reflections, tridiagonal systems, left eigenvectors: composites, packed and with the
signs of LAPACK (Anderson et al., "LAPACK Users' Guide", 3rd edition, section 5.4), in float32, float64 and complex.

A reflector is H = 1 - tau v v^H with v = (0, ..., 0, 1, *, ..., *). The stars of v are stored where H makes zeros.
"""

from __future__ import annotations

import math
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


class Factorisations:
    """All of (..., m, n)."""

    def householder_qr(self: Any, x: Array) -> tuple[Array, Array]:
        """Return (R and below it the reflectors, (..., m, n); their factors tau, (..., min(m, n))), as geqrf."""
        packed, factors, _ = self._reflected(x, min(self.shape(x)[-2:]), pivoting=False)
        return packed, factors

    def pivoted_householder_qr(self: Any, x: Array) -> tuple[Array, Array, Array]:
        """Return (packed R and reflectors of x[..., order], int32 `order` (..., n), factors): in each step the column
        with the greatest rest comes first, as in geqp3."""
        packed, factors, order = self._reflected(x, min(self.shape(x)[-2:]), pivoting=True)
        return packed, order, factors

    def hessenberg(self: Any, x: Array) -> tuple[Array, Array]:
        """Return (the Hessenberg matrix Q^H x Q, below it the reflectors (..., n, n); the factors (..., n - 1)): as
        gehrd."""
        packed, factors, _ = self._reflected(x, max(self.shape(x)[-1] - 1, 0), below=1)
        return packed, factors

    def tridiagonal(self: Any, x: Array, lower: bool = True) -> tuple[Array, Array, Array, Array]:
        """Return (packed reflectors, the diagonal, the off-diagonal, factors) of the tridiagonal Q^H x Q for symmetric
        or Hermitian `x`, of which one triangle is read: as sytrd and hetrd."""
        if not lower:  # from the last column to the first
            axes = (self.ndim(x) - 2, self.ndim(x) - 1)
            packed, *parts = self.tridiagonal(self.flip(x, axes))
            return self.flip(packed, axes), *(self.flip(part, (self.ndim(part) - 1,)) for part in parts)
        is_complex = dtypes.is_complex(self.dtype_of(x))
        below = self.matrix_transpose(self.tril(x, -1))
        symmetric = self.add(self.tril(x), self.conj(below) if is_complex else below)
        if is_complex:  # the diagonal is real, whatever is given
            n = self.shape(x)[-1]
            real = self.complex(self.real(x), self.zeros_like(self.real(x)))
            symmetric = self.where(self.equal(self.eye(n, n, dtypes.int32), 1), real, symmetric)
        packed, factors = self.hessenberg(symmetric)
        main, off_diagonal = self.diagonal(packed), self.diagonal(packed, -1)
        if is_complex:
            main, off_diagonal = self.real(main), self.real(off_diagonal)
        n = self.shape(x)[-1]
        return self.where(self.triangle_mask(n, n), packed, x), main, off_diagonal, factors

    def _reflected(
        self: Any, x: Array, count: int, pivoting: bool = False, below: int = 0
    ) -> tuple[Array, Array, Array | None]:
        """Return `count` reflectors, of columns 0, 1, ..., that keep the element `below` under the diagonal. With
        `below` they are applied from the right, too."""
        *batch, m, n = self.shape(x)
        size, dtype, i32 = math.prod(batch), self.dtype_of(x), dtypes.int32
        rows, columns = self.iota(m, i32), self.iota(n, i32)
        steps = self.iota(max(count, 1), i32)
        at = self.full((), 0, i32)
        order = self.broadcast_to(columns, (size, n))
        factors = self.zeros((size, max(count, 1)), dtype)

        def step(state: list[Array]) -> list[Array]:
            at, a, factors, order = state
            if pivoting:
                a, order = self._with_greatest_first(a, order, at)
            column = self.take(a, at, 2)
            v, factor, new_column = self._reflector(column, self.add(at, below))
            adjoint = self.conj(v) if dtypes.is_complex(dtype) else v
            conjugated = self.conj(factor) if dtypes.is_complex(dtype) else factor
            # H^H a = a - conj(tau) v (v^H a), for the remaining columns
            row = self.dot_general(adjoint, a, ((1,), (1,)), ((0,), (0,)))
            row = self.where(self.greater(columns, at), row, self.zeros_like(row))
            change = self.multiply(self.expand_dims(v, 2), self.expand_dims(row, 1))
            a = self.subtract(a, self.multiply(self.reshape(conjugated, (size, 1, 1)), change))
            is_here = self.equal(columns, at)
            stored = self.where(self.greater(rows, self.add(at, below)), v, new_column)
            a = self.where(is_here, self.expand_dims(stored, 2), a)
            if below:  # a H = a - tau (a v) v^H: v begins after the column that is stored
                right = self.dot_general(a, v, ((2,), (1,)), ((0,), (0,)))
                change = self.multiply(self.expand_dims(right, 2), self.expand_dims(adjoint, 1))
                a = self.subtract(a, self.multiply(self.reshape(factor, (size, 1, 1)), change))
            factors = self.where(self.equal(steps, at), self.expand_dims(factor, 1), factors)
            return [self.add(at, 1), a, factors, order]

        state = [at, self.reshape(x, (size, m, n)), factors, order]
        if size and count:
            state = self.while_loop(lambda state: self.less(state[0], count), step, state)
        _, a, factors, order = state
        factors = self.take_slice(factors, 1, 0, count)
        shapes = ((*batch, m, n), (*batch, count), (*batch, n))
        factors_out = tuple(self.reshape(y, shape) for y, shape in zip((a, factors, order), shapes, strict=True))
        return factors_out if pivoting else (*factors_out[:2], None)

    def _reflector(self: Any, x: Array, at: Array) -> tuple[Array, Array, Array]:
        """Return (v, tau, H^H x but for its rounded zeros) of the Householder reflectors of vectors (b, m), as larfg.
        Elements before `at` are kept; tau is 0 if no element has to become zero."""
        is_complex = dtypes.is_complex(self.dtype_of(x))
        rows = self.iota(self.shape(x)[1], dtypes.int32)
        zero = self.zeros_like(x)
        head = self.sum(self.where(self.equal(rows, at), x, zero), axis=1, keepdims=True)
        tail = self.where(self.greater(rows, at), x, zero)
        real = self.real(head) if is_complex else head
        size = self.abs(self.where(self.less(rows, at), zero, x))
        largest = self.max(size, axis=1, keepdims=True)
        scale = self.where(self.greater(largest, 0), largest, self.ones_like(largest))
        length = self.multiply(scale, self.sqrt(self.sum(self.square(self.divide(size, scale)), axis=1, keepdims=True)))
        is_zero = self.logical_not(self.any(self.not_equal(tail, 0), axis=1, keepdims=True))
        if is_complex:
            is_zero = self.logical_and(is_zero, self.equal(self.imag(head), 0))
        beta = self.where(self.signbit(real), length, self.negative(length))
        beta = self.where(is_zero, real, beta)
        safe = self.where(is_zero, self.ones_like(beta), beta)
        if is_complex:
            factor = self.divide(
                self.complex(self.subtract(beta, real), self.negative(self.imag(head))), self._wide(safe)
            )
            beta = self._wide(beta)
        else:
            factor = self.divide(self.subtract(beta, head), safe)
        factor = self.where(is_zero, self.zeros_like(factor), factor)
        denominator = self.where(is_zero, self.ones_like(head), self.subtract(head, beta))
        v = self.where(self.equal(rows, at), self.ones_like(x), self.divide(tail, denominator))
        new_x = self.where(self.less(rows, at), x, self.where(self.equal(rows, at), beta, zero))
        return v, self.reshape(factor, (self.shape(x)[0],)), new_x

    def _wide(self: Any, x: Array) -> Array:
        return self.complex(x, self.zeros_like(x))

    def _with_greatest_first(self: Any, a: Array, order: Array, at: Array) -> tuple[Array, Array]:
        """The column with the greatest norm, of rows and columns from `at` on, changes places with column `at`."""
        size, m, n = self.shape(a)
        rows, columns = self.iota(m, dtypes.int32), self.iota(n, dtypes.int32)
        below = self.reshape(self.greater_equal(rows, at), (m, 1))
        squares = self.square(self.abs(a))
        norms = self.sum(self.where(below, squares, self.zeros_like(squares)), axis=1)
        norms = self.where(self.greater_equal(columns, at), norms, self.full((), -1, self.dtype_of(norms)))
        greatest = self.expand_dims(self.astype(self.argmax(norms, axis=1), dtypes.int32), 1)
        source = self.where(self.equal(columns, at), greatest, self.broadcast_to(columns, (size, n)))
        source = self.where(self.equal(columns, greatest), at, source)
        moved = self.take_along_axis(a, self.broadcast_to(self.expand_dims(source, 1), (size, m, n)), 2)
        return moved, self.take_along_axis(order, source, 1)

    # ---- the rest --------------------------------------------------------------------------------------------------

    def tridiagonal_solve(self: Any, below: Array, diagonal: Array, above: Array, b: Array) -> Array:
        """Solve T x = b: b (..., n, k), the diagonals of T (..., n). The first of `below` and the last of `above` count
        for nothing. Rows are exchanged where the one below has the greater pivot, as gtsv does."""
        n = self.shape(b)[-2]
        if not self.size(b):
            return b
        rank = self.ndim(b)
        low, main, high = (self.moveaxis(self.expand_dims(d, rank - 1), rank - 2, 0) for d in (below, diagonal, above))
        right = self.moveaxis(b, rank - 2, 0)

        def rest(x: Array) -> Array:
            return self.take_slice(x, 0, 1, n)

        def first(x: Array) -> Array:
            return self.squeeze(self.take_slice(x, 0, 0, 1), 0)

        zero = self.zeros_like(first(main))
        last = self.concat([self.take_slice(high, 0, 0, n - 1), self.expand_dims(zero, 0)], axis=0)

        def eliminate(row: list[Array], entries: list[Array]) -> tuple[list[Array], list[Array]]:
            """`row`: the pivot, the element right of it, the right-hand side."""
            p, q, r = row
            low, main, high, right = entries
            swap = self.greater(self.abs(low), self.abs(p))
            pivot = [self.where(swap, x, y) for x, y in ((low, p), (main, q), (high, self.zeros_like(q)))]
            other = [self.where(swap, y, x) for x, y in ((low, p), (main, q), (high, self.zeros_like(q)))]
            pivot_right, other_right = self.where(swap, right, r), self.where(swap, r, right)
            factor = self.divide(other[0], pivot[0])
            second = [self.subtract(x, self.multiply(factor, y)) for x, y in zip(other[1:], pivot[1:], strict=True)]
            return [*second, self.subtract(other_right, self.multiply(factor, pivot_right))], [*pivot, pivot_right]

        end, rows = self.scan(
            eliminate,
            [first(main), first(last), first(right)],
            [rest(low), rest(main), rest(last), rest(right)],
            length=n - 1,
        )
        solution = self.divide(end[2], end[0])

        def substitute(known: list[Array], row: list[Array]) -> tuple[list[Array], Array]:
            next_, second = known
            p, q, s, r = row
            x = self.subtract(self.subtract(r, self.multiply(q, next_)), self.multiply(s, second))
            x = self.divide(x, p)
            return [x, next_], x

        _, found_before = self.scan(substitute, [solution, self.zeros_like(solution)], rows, length=n - 1, reverse=True)
        return self.moveaxis(self.concat([found_before, self.expand_dims(solution, 0)], axis=0), 0, rank - 2)

    def eig_both(self: Any, x: Array) -> tuple[Array, Array, Array]:
        """Return (eigenvalues, left and right eigenvectors), as columns of norm 1, the left ones with a greatest
        element that is real: u^H x = w u^H. By the inverse of the right ones, so that there have to be n of them."""
        values, right = self.eig(x)
        if not self.size(x):
            return values, right, right
        left = self.conj(self.matrix_transpose(self.inv(right)))
        size = self.abs(left)
        norm = self.sqrt(self.sum(self.square(size), axis=-2, keepdims=True))
        largest = self.argmax(size, axis=self.ndim(size) - 2, keepdims=True)
        top = self.take_along_axis(left, largest, -2)
        turn = self.divide(self.conj(top), self._wide(self.multiply(self.abs(top), norm)))
        return values, self.multiply(left, turn), right

    def schur(self: Any, x: Array) -> tuple[Array, Array]:
        """Return (T, Q) with x = Q T Q^H: T triangular, for real `x` with blocks of 2 by 2 on its diagonal; as gees."""
        raise NotImplementedError(
            f"the backend {self.name} has no Schur decomposition: use eig or eigh, or the NumPy or JAX backend"
        )
