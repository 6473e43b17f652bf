"""Rules of products and factorisations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract.array import ShapeDtype, check, check_kinds, fail

Axes = Sequence[int]


def dot_general(
    op: str,
    a: ShapeDtype,
    b: ShapeDtype,
    contract: tuple[Axes, Axes],
    batch: tuple[Axes, Axes] = ((), ()),
    dtype: np.dtype | None = None,
) -> ShapeDtype:
    check_kinds(op, "bifc", a, b)
    arguments = (a, b, contract, batch)
    for x, summed, shared in zip((a, b), contract, batch, strict=True):
        used = (*summed, *shared)
        check(
            len(set(used)) == len(used) and all(0 <= i < x.ndim for i in used),
            op,
            arguments,
            f"axes of {x} that differ and lie between 0 and {x.ndim - 1}",
        )
    for kind, (axes_a, axes_b) in (("contracted", contract), ("batch", batch)):
        check(
            [a.shape[i] for i in axes_a] == [b.shape[i] for i in axes_b], op, arguments, f"{kind} axes of equal extents"
        )
    if dtype is not None and dtype.itemsize < a.dtype.itemsize:
        fail(op, (*arguments, dtype), "to accumulate in a dtype no narrower than the operands'", TypeError)
    free_a = (n for i, n in enumerate(a.shape) if i not in contract[0] and i not in batch[0])
    free_b = (n for i, n in enumerate(b.shape) if i not in contract[1] and i not in batch[1])
    return ShapeDtype((*(a.shape[i] for i in batch[0]), *free_a, *free_b), a.dtype if dtype is None else dtype)


def _matrices(op: str, *operands: ShapeDtype, square: bool = False) -> tuple[tuple[int, ...], int, int]:
    """Leading axes and extents of the first operand; all are (batches of) matrices of one dtype that LAPACK knows."""
    check_kinds(op, "fc", *operands)
    x = operands[0]
    if x.dtype.itemsize < 4:
        fail(op, operands, "float32, float64 or complex", TypeError)
    check(all(y.ndim >= 2 for y in operands), op, operands, "matrices: at least two dimensions")
    *batch, m, n = x.shape
    check(not square or m == n, op, operands, "square matrices")
    check(all(list(y.shape[:-2]) == batch for y in operands), op, operands, "equal leading axes")
    return tuple(batch), m, n


def cholesky(op: str, x: ShapeDtype) -> ShapeDtype:
    _matrices(op, x, square=True)
    return x


def qr(op: str, x: ShapeDtype, full: bool = False) -> tuple[ShapeDtype, ShapeDtype]:
    batch, m, n = _matrices(op, x)
    k = m if full else min(m, n)
    return x.like(*batch, m, k), x.like(*batch, k, n)


def svdvals(op: str, x: ShapeDtype) -> ShapeDtype:
    batch, m, n = _matrices(op, x)
    return ShapeDtype((*batch, min(m, n)), dtypes.real_dtype(x.dtype))


def svd(op: str, x: ShapeDtype, full: bool = False) -> tuple[ShapeDtype, ShapeDtype, ShapeDtype]:
    batch, m, n = _matrices(op, x)
    k = min(m, n)
    return x.like(*batch, m, m if full else k), svdvals(op, x), x.like(*batch, n if full else k, n)


def eigh(op: str, x: ShapeDtype, lower: bool = True) -> tuple[ShapeDtype, ShapeDtype]:
    _matrices(op, x, square=True)
    return ShapeDtype(x.shape[:-1], dtypes.real_dtype(x.dtype)), x


def eig(op: str, x: ShapeDtype) -> tuple[ShapeDtype, ShapeDtype]:
    _matrices(op, x, square=True)
    dtype = dtypes.complex_dtype(x.dtype)
    return ShapeDtype(x.shape[:-1], dtype), ShapeDtype(x.shape, dtype)


def lu(op: str, x: ShapeDtype) -> tuple[ShapeDtype, ShapeDtype, ShapeDtype]:
    batch, m, n = _matrices(op, x)
    return x, ShapeDtype((*batch, min(m, n)), dtypes.int32), ShapeDtype((*batch, m), dtypes.int32)


def triangular_solve(
    op: str,
    a: ShapeDtype,
    b: ShapeDtype,
    lower: bool,
    left: bool = True,
    transpose: bool = False,
    adjoint: bool = False,
    unit_diagonal: bool = False,
) -> ShapeDtype:
    _, n, _ = _matrices(op, a, b, square=True)
    side = "rows" if left else "columns"
    check(b.shape[-2 if left else -1] == n, op, (a, b), f"{n} {side} on the right-hand side (left={left})")
    return b


def householder_product(op: str, a: ShapeDtype, tau: ShapeDtype) -> ShapeDtype:
    batch, m, n = _matrices(op, a)
    check_kinds(op, "fc", a, tau)
    is_valid = tau.ndim == a.ndim - 1 and tau.shape[:-1] == batch and tau.shape[-1] <= n <= m
    check(is_valid, op, (a, tau), "reflectors (..., m, n) and factors (..., k) with m >= n >= k")
    return a


RULES: dict[str, Callable[..., Any]] = {
    "dot_general": dot_general,
    "cholesky": cholesky,
    "qr": qr,
    "svd": svd,
    "svdvals": svdvals,
    "eigh": eigh,
    "eig": eig,
    "lu": lu,
    "triangular_solve": triangular_solve,
    "householder_product": householder_product,
}
