"""Factorisations of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow import products
from tensorgraft.backends.tensorflow.elementwise import FUNCTIONS, real, select
from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.backends.tensorflow.operation import TF, constant, dtype_of, ints, is_symbolic, shape_of
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array


def _adjoint(x: Array) -> Array:
    perm = list(range(len(shape_of(x))))
    perm[-1], perm[-2] = perm[-2], perm[-1]
    x = raw.Transpose(x=x, perm=ints(perm))
    return raw.Conj(input=x) if dtypes.is_complex(dtype_of(x)) else x


def _transposed(x: Array) -> Array:
    perm = list(range(len(shape_of(x))))
    perm[-1], perm[-2] = perm[-2], perm[-1]
    return raw.Transpose(x=x, perm=ints(perm))


def _cholesky(x: Array) -> Array:
    if 0 in shape_of(x):
        return x
    lower = raw.Cholesky(input=x)
    diagonal = tf.linalg.diag_part(lower)
    parts = real(diagonal) if dtypes.is_complex(dtype_of(x)) else diagonal
    failed = raw.Any(input=raw.IsNan(x=parts), axis=ints((len(shape_of(parts)) - 1,)), keep_dims=True)
    failed = tf.expand_dims(failed, -1)
    clean = tf.linalg.band_part(lower, -1, 0)  # after a failure, the upper triangle contains uninitialised memory
    return select(tf.broadcast_to(failed, shape_of(x)), tf.fill(shape_of(x), constant(np.nan, dtype_of(x))), clean)


def _lu_steps(xp: Any, x: Array) -> tuple[Array, Array, Array]:
    """Return the factors, pivots and permutations of matrices (b, m, n), column by column as LAPACK's getf2.

    TensorFlow's own LU is of square matrices, refuses singular ones, tells no pivots, and XLA has none.
    """
    batch, m, n = shape_of(x)
    k = min(m, n)
    rows, columns, steps = (tf.constant(np.arange(size, dtype=np.int32)) for size in (m, n, k))
    zero = constant(0, dtype_of(x))

    def magnitude(column: Array) -> Array:
        if not dtypes.is_complex(dtype_of(x)):
            return raw.Abs(x=column)
        return raw.Abs(x=tf.math.real(column)) + raw.Abs(x=tf.math.imag(column))

    def step(state: tuple[Array, ...]) -> tuple[Array, ...]:
        i, a, pivots, order = state
        size = magnitude(tf.gather(a, i, axis=2))
        size = select(tf.broadcast_to(rows < i, (batch, m)), tf.fill((batch, m), constant(-1, dtype_of(size))), size)
        largest = raw.Max(input=size, axis=ints((1,)), keep_dims=True)
        candidates = select(raw.Equal(x=size, y=largest), tf.broadcast_to(rows, (batch, m)), constant(m, dtypes.int32))
        pivot = raw.Minimum(x=raw.Min(input=candidates, axis=ints((1,))), y=constant(m - 1, dtypes.int32))
        pivot = raw.Maximum(x=pivot, y=i)[:, None]
        source = select(rows[None] == i, pivot, select(rows[None] == pivot, i, rows[None]))
        a, order = tf.gather(a, source, batch_dims=1), tf.gather(order, source, batch_dims=1)
        pivots = select(steps[None] == i, pivot, pivots)
        row, column = tf.gather(a, i, axis=1), tf.gather(a, i, axis=2)
        head = tf.gather(column, i, axis=1)[:, None]
        head = select(raw.Equal(x=head, y=zero), constant(1, dtype_of(x)), head)
        below = rows[None] > i
        factor = select(below, column / head, zero)
        a = select((columns == i)[None, None] & below[..., None], factor[..., None], a)
        right = select((columns > i)[None], row, zero)
        return i + 1, a - factor[..., None] * right[:, None, :], pivots, order

    init = (constant(0, dtypes.int32), x, tf.zeros((batch, k), tf.int32), tf.broadcast_to(rows, (batch, m)))
    _, a, pivots, order = xp.while_loop(lambda state: state[0] < k, step, init)
    return a, pivots, order


def _householder_steps(xp: Any, a: Array, tau: Array) -> Array:
    batch, m, n = shape_of(a)
    k = shape_of(tau)[1]
    eye = tf.eye(m, n, dtype=a.dtype)
    reflectors = tf.linalg.band_part(a, -1, 0)
    reflectors = tf.linalg.set_diag(reflectors, tf.ones((batch, n), a.dtype))

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        i, out = state
        v = tf.gather(reflectors, i, axis=2)[..., None]
        scale = tf.gather(tau, i, axis=1)[:, None, None]
        return i - 1, out - scale * v * tf.matmul(v, out, adjoint_a=True)

    init = (constant(k - 1, dtypes.int32), tf.broadcast_to(eye, (batch, m, n)))
    return xp.while_loop(lambda state: state[0] >= 0, step, init)[1]


def _factors(factor: Callable[[Array], Sequence[Array]], x: Array) -> tuple[Array, ...]:
    """Factorise a batch of matrices; NaN for those that are not finite, for which TensorFlow raises an error."""
    finite = tf.reduce_all(FUNCTIONS["isfinite"](x), axis=(-2, -1))[..., None]
    identity = tf.eye(*shape_of(x)[-2:], dtype=x.dtype)
    parts = factor(raw.SelectV2(condition=finite[..., None], t=x, e=identity))
    conditions = [finite if part.shape.rank < x.shape.rank else finite[..., None] for part in parts]
    return tuple(
        raw.SelectV2(condition=c, t=part, e=constant(np.nan, dtype_of(part)))
        for c, part in zip(conditions, parts, strict=True)
    )


class TensorFlowLinearAlgebra:
    _programs: dict[str, Callable[..., Any]]

    def _compiled_if_eager(self, fn: Callable[..., Any], *arrays: Array) -> Any:
        """Compile a function of many small steps, unless it is called as part of a program."""
        if any(map(is_symbolic, arrays)):
            return fn(self, *arrays)
        if fn.__name__ not in self._programs:
            compiled: Any = self
            self._programs[fn.__name__] = compiled.compile(lambda *operands: _flat(fn(self, *operands)))
        outputs = self._programs[fn.__name__](*arrays)
        return outputs if len(outputs) > 1 else outputs[0]

    def dot_general(
        self,
        a: Array,
        b: Array,
        /,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dtype: np.dtype | None = None,
    ) -> Array:
        return products.dot_general(a, b, contract, batch, dtype)

    def cholesky(self, x: Array, /) -> Array:
        return _cholesky(x)

    def qr(self, x: Array, /, full: bool = False) -> tuple[Array, Array]:
        q, r = raw.Qr(input=x, full_matrices=full)
        return q, tf.linalg.band_part(r, 0, -1)

    def svd(self, x: Array, /, full: bool = False) -> tuple[Array, Array, Array]:
        s, u, v = _factors(lambda x: raw.Svd(input=x, compute_uv=True, full_matrices=full), x)
        return u, _real(s, x), _adjoint(v)

    def svdvals(self, x: Array, /) -> Array:
        return _real(_factors(lambda x: raw.Svd(input=x, compute_uv=False)[:1], x)[0], x)

    def eigh(self, x: Array, /, lower: bool = True) -> tuple[Array, Array]:
        values, vectors = _factors(lambda x: raw.SelfAdjointEigV2(input=x), x if lower else _adjoint(x))
        return _real(values, x), vectors

    def eig(self, x: Array, /) -> tuple[Array, Array]:
        values, vectors = _factors(lambda x: raw.Eig(input=x, Tout=TF[dtypes.complex_dtype(dtype_of(x))]), x)
        return values, vectors

    def lu(self, x: Array, /) -> tuple[Array, Array, Array]:
        *batch, m, n = shape_of(x)
        count, k = int(np.prod(batch, dtype=int)), min(m, n)
        if not count * k:
            order = tf.broadcast_to(tf.range(m), (*batch, m))
            return x, tf.zeros((*batch, k), tf.int32), order
        flat = raw.Reshape(tensor=x, shape=ints((count, m, n)))
        out, pivots, order = self._compiled_if_eager(_lu_steps, flat)
        return (
            raw.Reshape(tensor=out, shape=ints(shape_of(x))),
            raw.Reshape(tensor=pivots, shape=ints((*batch, k))),
            raw.Reshape(tensor=order, shape=ints((*batch, m))),
        )

    def triangular_solve(
        self,
        a: Array,
        b: Array,
        /,
        lower: bool,
        left: bool = True,
        transpose: bool = False,
        adjoint: bool = False,
        unit_diagonal: bool = False,
    ) -> Array:
        if 0 in shape_of(b):
            return b
        if unit_diagonal:
            a = tf.linalg.set_diag(a, tf.ones(shape_of(a)[:-1], a.dtype))
        if transpose:
            a, lower = _transposed(a), not lower
        if left:
            return raw.MatrixTriangularSolve(matrix=a, rhs=b, lower=lower, adjoint=adjoint)
        # x op(a) = b is op(a)^T x^T = b^T
        a, lower = (raw.Conj(input=a) if dtypes.is_complex(dtype_of(a)) and adjoint else a), lower
        if not adjoint:
            a, lower = _transposed(a), not lower
        out = raw.MatrixTriangularSolve(matrix=a, rhs=_transposed(b), lower=lower, adjoint=False)
        return _transposed(out)

    def householder_product(self, a: Array, tau: Array, /) -> Array:
        *batch, m, n = shape_of(a)
        count, k = int(np.prod(batch, dtype=int)), shape_of(tau)[-1]
        if 0 in shape_of(a) or not k:
            return tf.broadcast_to(tf.eye(m, n, dtype=a.dtype), shape_of(a))
        flat = raw.Reshape(tensor=a, shape=ints((count, m, n)))
        factors = raw.Reshape(tensor=tau, shape=ints((count, k)))
        return raw.Reshape(tensor=self._compiled_if_eager(_householder_steps, flat, factors), shape=ints(shape_of(a)))


def _real(values: Array, x: Array) -> Array:
    """Singular values and those of Hermitian matrices, which TensorFlow returns as it takes the matrix."""
    return real(values) if dtypes.is_complex(dtype_of(values)) else values


def _flat(out: Any) -> tuple[Array, ...]:
    return tuple(out) if isinstance(out, tuple) else (out,)
