"""Products in the order that XLA's kernels for CPUs like: of bytes, of few rows, and of a matrix that is turned."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Primitive, Var
from jax.extend.core.primitives import dot_general_p, reshape_p, transpose_p

from tensorgraft.hub.array import NativeArray as Array

_LARGE = 1 << 16  # codes: with fewer, any order is quick
_FEWER = 32  # the factor by which rows have to be fewer than contracted elements


@functools.lru_cache(maxsize=256)
def byte_product(i: int, j: int, wide: np.dtype) -> Callable[[Array, Array], Array]:
    """Return a function of two int8 arrays: their product along axis `i` of `a` and `j` of `b`, in int32. Under
    `jax.vmap`, which turns a vector into rows, the order of the factors is chosen for all rows.

    XLA's kernel copies its right factor into another order, reads the left factor by rows without a copy, and has no
    case for vectors. A factor of few rows therefore goes to the right if the other factor is contracted along its rows,
    and a vector becomes two columns. Measured with 2048 x 2048 codes, one thread: one row takes 0.30 ms, the other way
    round 0.43, as a vector 0.8; 16 rows take 1.05 ms, the other way round 1.5. Of many rows, turning the product round
    costs more than it saves.
    """

    @jax.custom_batching.custom_vmap
    def product(a: Array, b: Array) -> Array:
        wide_product = _ordered(a, b, (i, j), wide)
        return _plain(a, b, i, j, wide) if wide_product is None else wide_product

    @product.def_vmap
    def _(size: int, batched: Sequence[bool], a: Array, b: Array) -> tuple[Array, bool]:
        if all(batched):
            return jax.vmap(lambda a, b: _plain(a, b, i, j, wide))(a, b), True
        if batched[0]:
            return byte_product(i + 1, j, wide)(a, b), True
        return jax.numpy.moveaxis(byte_product(i, j + 1, wide)(a, b), a.ndim - 1, 0), True

    return product


def _plain(a: Array, b: Array, i: int, j: int, wide: np.dtype) -> Array:
    return lax.dot_general(a, b, (((i,), (j,)), ((), ())), preferred_element_type=wide)


def _ordered(a: Array, b: Array, axes: tuple[int, int], wide: np.dtype) -> Array | None:
    """Return the product along one axis of each, or None where XLA does as well when it is left alone."""
    i, j = axes
    if i not in (0, a.ndim - 1) or j not in (0, b.ndim - 1) or 0 in a.shape or 0 in b.shape:
        return None
    large, small, large_axis, small_axis = (a, b, i, j) if a.size > b.size else (b, a, j, i)
    extent = a.shape[i]
    other_columns = small.size // extent
    if large.size < _LARGE or other_columns * _FEWER > extent:
        return None
    by_rows = large_axis == large.ndim - 1
    codes = lax.reshape(large, (large.size // extent, extent) if by_rows else (extent, large.size // extent))
    rows = lax.reshape(small, (extent, other_columns) if small_axis == 0 else (other_columns, extent))
    free = 1 if small_axis == 0 else 0
    if other_columns == 1:
        rows = lax.pad(rows, rows.dtype.type(0), [(0, int(k == free), 0) for k in range(2)])
    if by_rows:
        out = lax.dot_general(codes, rows, (((1,), (1 - free,)), ((), ())), preferred_element_type=wide)
    else:
        out = lax.dot_general(rows, codes, (((1 - free,), (0,)), ((), ())), preferred_element_type=wide)
    out = lax.slice_in_dim(out, 0, other_columns, axis=1 if by_rows else 0)
    if (large is a) != by_rows:
        out = lax.transpose(lax.optimization_barrier(out), (1, 0))  # without it, XLA turns the factors round again
    return lax.reshape(out, (*_drop_axis(a.shape, i), *_drop_axis(b.shape, j)))


def _drop_axis(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def is_of_few_rows(a: Array, b: Array, contract: Any, batch: Any) -> bool:
    """Return True for a product a @ b.T in float32 that `few_rows_product` computes faster than XLA does."""
    if batch != ((), ()) or contract != ((a.ndim - 1,), (1,)) or b.ndim != 2 or not a.dtype == b.dtype == np.float32:
        return False
    rows = math.prod(a.shape[:-1])
    return isinstance(rows, int) and 2 <= rows <= MOST_TURNED and b.size >= _LEAST_TURNED  # a size may be symbolic


@functools.lru_cache(maxsize=16)
def few_rows_product(precision: Any) -> Callable[[Array, Array], Array]:
    """Return the function (a (..., k), b (n, k)) -> a @ b.T (..., n) for few rows of `a`.

    XLA's kernel copies its right factor into another order at each call, here all of `b`. As the left factor `b` is
    read as it lies; a barrier keeps XLA from turning the product round again. Times with one core and JAX 0.10, as a
    part of those of a @ b.T: 2 rows and 1,024 x 256 numbers 0.60, 8 rows 0.49, 16 rows 0.61, 64 rows 0.84; 8 rows and
    4,096 x 4,096 0.43; 16 rows and 3,072 x 768 0.59; 96 rows 1.06. Derivatives are those of the plain product.
    """

    def plain(a: Array, b: Array) -> Array:
        return lax.dot_general(a, b, (((a.ndim - 1,), (1,)), ((), ())), precision=precision)

    @jax.custom_jvp
    def product(a: Array, b: Array) -> Array:
        columns = lax.dot_general(b, a, (((1,), (a.ndim - 1,)), ((), ())), precision=precision)
        return jax.numpy.moveaxis(lax.optimization_barrier(columns), 0, -1)

    @product.defjvp
    def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
        (a, b), (d_a, d_b) = primals, tangents
        return product(a, b), lax.add(plain(d_a, b), plain(a, d_b))

    return product


MOST_TURNED, _LEAST_TURNED = 64, 1 << 12  # rows, and numbers of the other factor
_COLUMNS = 16  # columns of the other factor: for fewer, turning costs as much as the product
_FEW_ROWS = 128
_ROWS = (((1,), (0,)), ((), ()))
_COLUMNS_OF_BOTH = (((0,), (0,)), ((), ()))


def with_ordered_products(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program with the products `g.T @ x`, the gradients of weights, in the order that is fastest, which
    barriers keep.

    XLA for the CPU hands over to its fast kernels only products whose first factor has the summed axis last. It takes
    a transposition into the product, or copies `g`, if it sums several axes. Times with one core and JAX 0.10, as a
    part of those of the product of matrices as XLA takes it:

    - Where `x` has far fewer columns than `g`, `(x.T @ g).T`, with `x` transposed in memory: 2,048 x 1,024 and 2,048 x
      256: 0.77; 512 x 2,048 and 512 x 64: 0.47; 512 x 1,024 and 512 x 256: 0.72.
    - Of few rows, with `g` transposed in memory: 16 x 1,024 and 16 x 256: 0.83; 64 x 4,096 and 64 x 64: 0.79.
    - Others are left to XLA as products of matrices: with `g` transposed, 512 x 1,536 and 512 x 384 take 1.13 to 1.24,
      as 2 x 256 rows 1.10.
    """
    sources = {e.outvars[0]: e.invars[0] for e in jaxpr.eqns
               if e.primitive is transpose_p and e.params["permutation"] == (1, 0)}  # fmt: skip
    return jaxpr.replace(eqns=[e for equation in jaxpr.eqns for e in _ordered_product(equation, sources)])


@functools.cache
def _barrier() -> Primitive:
    return jax.make_jaxpr(lax.optimization_barrier)(0.0).eqns[0].primitive


def _ordered_product(equation: JaxprEqn, sources: dict[Var, Any]) -> list[JaxprEqn]:
    factors = _summed_rows(equation, sources)
    if factors is None:
        return [equation]
    g, x = factors
    rows, (m, n) = math.prod(g.aval.shape[:-1]), (g.aval.shape[-1], x.aval.shape[-1])
    equations: list[JaxprEqn] = []

    def step(primitive: Primitive, shape: tuple[int, ...], *operands: Any, **params: Any) -> Any:
        """Return the result of one more equation."""
        out = Var(g.aval.update(shape=shape))
        equations.append(
            equation.replace(
                primitive=primitive, params=params, invars=list(operands), outvars=[out], effects=frozenset()
            )
        )
        return out

    def matrix(v: Any) -> Any:
        shape = (rows, v.aval.shape[-1])
        if v.aval.shape == shape:
            return v
        return step(reshape_p, shape, v, new_sizes=shape, dimensions=None, sharding=None)

    def transposed_copy(v: Any) -> Any:
        shape = v.aval.shape[::-1]
        return step(_barrier(), shape, step(transpose_p, shape, v, permutation=(1, 0)))

    if m >= 4 * n and rows >= 2 * n:
        params = {**equation.params, "dimension_numbers": _ROWS}
        product = step(dot_general_p, (n, m), transposed_copy(matrix(x)), matrix(g), **params)
        step(transpose_p, (m, n), step(_barrier(), (n, m), product), permutation=(1, 0))
    elif rows <= _FEW_ROWS:
        step(
            dot_general_p,
            (m, n),
            transposed_copy(matrix(g)),
            matrix(x),
            **{**equation.params, "dimension_numbers": _ROWS},
        )
    elif len(g.aval.shape) > 2:
        params = {**equation.params, "dimension_numbers": _COLUMNS_OF_BOTH}
        step(dot_general_p, (m, n), matrix(g), matrix(x), **params)
    else:
        return [equation]
    return [*equations[:-1], equations[-1].replace(outvars=equation.outvars)]


def _summed_rows(equation: JaxprEqn, sources: dict[Var, Any]) -> tuple[Any, Any] | None:
    """Return (g, x) of a product that sums all axes of both but the last, in float32."""
    if equation.primitive is not dot_general_p:
        return None
    (left, right), batch = equation.params["dimension_numbers"]
    g: Any
    x: Any
    g, x = equation.invars
    if ((left, right), batch) == _ROWS and g in sources:
        g = sources[g]
    elif batch != ((), ()) or left != right or left != tuple(range(g.aval.ndim - 1)) or x.aval.ndim != g.aval.ndim:
        return None
    if isinstance(g, Literal) or isinstance(x, Literal) or x.aval.ndim != g.aval.ndim or x.aval.ndim < 2:
        return None
    return (g, x) if g.aval.dtype == x.aval.dtype == np.float32 and x.aval.shape[-1] >= _COLUMNS else None
