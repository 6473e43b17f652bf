"""Products in the order that XLA's kernels for CPUs like: of bytes, and of a matrix that is turned."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Primitive, Var
from jax.extend.core.primitives import dot_general_p, transpose_p

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


_COLUMNS = 16  # columns of the other factor: for fewer, turning costs as much as the product
_ROWS = (((1,), (0,)), ((), ()))


def turned_before(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program with barriers after transpositions of the first factor of a product (`g.T @ x`, the gradient
    of every weight), so that XLA transposes it in memory first.

    XLA for the CPU takes a transposition into the product, and hands over to its fast kernels only products whose
    first factor has the summed axis last. GFLOP/s of one core, JAX 0.10, of x.T @ y before and after: 2,048 x 1,024
    and 2,048 x 256: 66 and 85; 512 x 1,536 and 512 x 384: 81 and 91; 16 x 1,024 and 16 x 256: 63 and 80; 64 x 4,096
    and 64 x 64: 29 and 75.
    """
    transposed = {e.outvars[0] for e in jaxpr.eqns if e.primitive is transpose_p and e.params["permutation"] == (1, 0)}
    return (
        jaxpr.replace(eqns=[e for equation in jaxpr.eqns for e in _with_barriers(equation, transposed)])
        if transposed
        else jaxpr
    )


@functools.cache
def _barrier() -> Primitive:
    return jax.make_jaxpr(lax.optimization_barrier)(0.0).eqns[0].primitive


def _with_barriers(equation: JaxprEqn, transposed: set[Var]) -> Iterator[JaxprEqn]:
    if equation.primitive is dot_general_p and equation.params["dimension_numbers"] == _ROWS:
        x, y = equation.invars
        first: Any = x.aval
        other: Any = y.aval
        if x in transposed and first.dtype == np.float32 and other.ndim == 2 and other.shape[1] >= _COLUMNS:
            new = Var(first)
            yield equation.replace(primitive=_barrier(), params={}, invars=[x], outvars=[new], effects=frozenset())
            equation = equation.replace(invars=[new, y])
    yield equation
