"""Products and factorisations of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tensorgraft.backends.jax.operation import operation
from tensorgraft.backends.jax.products import byte_product, few_rows_product, is_of_few_rows
from tensorgraft.hub import dtypes, settings
from tensorgraft.hub.array import NativeArray as Array

Axes = tuple[tuple[int, ...], tuple[int, ...]]


def _jax_linalg() -> Any:
    return jax.default_matmul_precision.value


settings.register(
    _jax_linalg,
    None,
    lambda: {"jax_default_matmul_precision": _jax_linalg()},
    lambda code: code.require(f"{code.name(jax.default_matmul_precision)}.value is None"),
)


def full_precision() -> lax.Precision | None:
    """Return the precision for products. On GPU and TPU XLA rounds the factors of float32 ones, unless told otherwise;
    the user who wants that says so with `jax.default_matmul_precision`."""
    return lax.Precision.HIGHEST if _jax_linalg() is None else None


def _accumulates(dtype: np.dtype, wide: np.dtype) -> bool:
    """Return True if XLA itself computes products of `dtype` in `wide`."""
    same_kind = dtypes.is_floating(dtype) == dtypes.is_floating(wide) and (dtype.kind == "u") == (wide.kind == "u")
    return dtype == wide or (same_kind and dtype.itemsize < wide.itemsize)


def dot_general(a: Array, b: Array, contract: Axes, batch: Axes, dtype: np.dtype | None, cpu: bool = False) -> Array:
    result = a.dtype if dtype is None else dtype
    if a.dtype == np.bool_:
        wide = np.dtype(np.float32) if result == np.bool_ else result  # a sum of ands is an or: it cannot cancel
        out = dot_general(a.astype(wide), b.astype(wide), contract, batch, None)
        return lax.gt(out, out.dtype.type(0)) if result == np.bool_ else out
    wide = dtypes.accumulator(result)
    if not _accumulates(a.dtype, wide):
        a, b = lax.convert_element_type(a, wide), lax.convert_element_type(b, wide)
    if not dtypes.is_inexact(wide):
        return lax.convert_element_type(_integer_product(a, b, contract, batch, wide), result)
    if cpu and is_of_few_rows(a, b, contract, batch):
        return lax.convert_element_type(few_rows_product(full_precision())(a, b), result)
    out = lax.dot_general(a, b, (contract, batch), precision=full_precision(), preferred_element_type=wide)
    return lax.convert_element_type(out, result)


def _integer_product(a: Array, b: Array, contract: Axes, batch: Axes, wide: np.dtype) -> Array:
    """Multiply without a precision, which would have XLA convert the operands first."""
    if a.dtype.itemsize == b.dtype.itemsize == 1 and len(contract[0]) == 1 and not batch[0]:
        return byte_product(contract[0][0], contract[1][0], wide)(a, b)
    return lax.dot_general(a, b, (contract, batch), preferred_element_type=wide)


def _cholesky(x: Array) -> Array:
    lower = lax.linalg.cholesky(x, symmetrize_input=False)
    if not x.shape[-1]:
        return lower
    failed = jnp.isnan(lower[..., -1:, -1:])
    return jnp.where(failed, np.array(np.nan, x.dtype), lower)


def _eigh(x: Array, lower: bool) -> tuple[Array, Array]:
    vectors, values = lax.linalg.eigh(x, lower=lower, symmetrize_input=False)
    return values, vectors


def _triangular_solve(
    a: Array, b: Array, lower: bool, left: bool, transpose: bool, adjoint: bool, unit_diagonal: bool
) -> Array:
    return lax.linalg.triangular_solve(
        a,
        b,
        left_side=left,
        lower=lower,
        transpose_a=transpose or adjoint,
        conjugate_a=adjoint,
        unit_diagonal=unit_diagonal,
    )


def _householder_qr(x: Array) -> tuple[Array, Array]:
    packed, factors = jnp.linalg.qr(x, mode="raw")
    return jnp.matrix_transpose(packed), factors


_product = operation(dot_general, ("contract", "batch", "dtype", "cpu"))
_qr = operation(lambda x, full: tuple(lax.linalg.qr(x, full_matrices=full)), ("full",))
_svd = operation(lambda x, full: tuple(lax.linalg.svd(x, full_matrices=full)), ("full",))
_spectrum = operation(_eigh, ("lower",))
_solved = operation(_triangular_solve, ("lower", "left", "transpose", "adjoint", "unit_diagonal"))


class JaxLinearAlgebra:
    def dot_general(
        self,
        a: Array,
        b: Array,
        /,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dtype: np.dtype | None = None,
    ) -> Array:
        axes = {"contract": tuple(map(tuple, contract)), "batch": tuple(map(tuple, batch))}
        return _product(self, a, b, **axes, dtype=dtype, cpu=self.for_cpu)  # type: ignore[attr-defined]

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """Contract the last axes, without a transposition that XLA would have to fold."""
        y = self.dot_general(x, weight, ((x.ndim - 1,), (weight.ndim - 1,)))
        return y if bias is None else self.add(y, bias)  # type: ignore[attr-defined]

    cholesky = operation(_cholesky)
    svdvals = operation(lambda x: lax.linalg.svd(x, compute_uv=False))
    eig = operation(lambda x: tuple(lax.linalg.eig(x, compute_left_eigenvectors=False)))
    lu = operation(lambda x: tuple(lax.linalg.lu(x)))
    eig_both = operation(lambda x: tuple(lax.linalg.eig(x)))
    hessenberg = operation(lambda x: tuple(lax.linalg.hessenberg(x)))
    householder_qr = operation(_householder_qr)
    schur = operation(lambda x: tuple(lax.linalg.schur(x)))
    tridiagonal_solve = operation(lambda below, d, above, b: lax.linalg.tridiagonal_solve(below, d, above, b))
    householder_product = operation(lambda a, tau: lax.linalg.householder_product(a, tau))

    def qr(self, x: Array, /, full: bool = False) -> tuple[Array, Array]:
        return _qr(self, x, full=full)

    def svd(self, x: Array, /, full: bool = False) -> tuple[Array, Array, Array]:
        return _svd(self, x, full=full)

    def eigh(self, x: Array, /, lower: bool = True) -> tuple[Array, Array]:
        return _spectrum(self, x, lower=lower)

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
        return _solved(
            self, a, b, lower=lower, left=left, transpose=transpose, adjoint=adjoint, unit_diagonal=unit_diagonal
        )
