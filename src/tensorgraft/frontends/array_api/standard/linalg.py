"""The extension `linalg` of the standard."""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from tensorgraft import views
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import (
    Axis,
    accepted,
    arrays_of,
    axes_of,
    axis_of,
    backend_of,
    broadcast_shape,
    converted,
    fail,
    operand,
)
from tensorgraft.frontends.array_api.core.promotion import checked
from tensorgraft.frontends.array_api.standard.linear_algebra import matmul, matrix_transpose, tensordot, vecdot
from tensorgraft.frontends.array_api.standard.statistical import summed_dtype
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend


class EighResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    U: Array
    S: Array
    Vh: Array


def _matrices(name: str, x: Array, square: bool = False, kinds: str = "fc") -> tuple[Backend, Array]:
    """Return (the backend, the matrices, in the default dtype where they are integers and `kinds` has none)."""
    (x,) = accepted(kinds, x)
    xp = operand(name, x, kinds)
    if x.ndim < 2:
        fail(name, (x,), "(a batch of) matrices: at least two dimensions")
    if square and x.shape[-1] != x.shape[-2]:
        fail(name, (x,), "square matrices")
    return xp, x


# ---- factorisations --------------------------------------------------------------------------------------------------


def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """Lower factors L with L Lᴴ = x (or upper ones, Lᴴ), all NaN where a matrix is not positive definite."""
    xp, x = _matrices("cholesky", x, square=True)
    with xp.scope():
        lower = xp.cholesky(x._value())
        return new_array(_adjoint(xp, lower) if upper else lower, xp)


def _adjoint(xp: Backend, x: Any) -> Any:
    x = xp.matrix_transpose(x)
    return xp.conj(x) if dtypes.is_complex(xp.dtype_of(x)) else x


def qr(x: Array, /, *, mode: str = "reduced") -> QRResult:
    """Q (orthonormal columns) and R (upper triangular) with Q R = x; "complete" gives square Q."""
    xp, x = _matrices("qr", x)
    if mode not in ("reduced", "complete"):
        raise ValueError(f"qr: expected mode 'reduced' or 'complete', got {mode!r}")
    with xp.scope():
        return QRResult(*(new_array(part, xp) for part in xp.qr(x._value(), mode == "complete")))


def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """U, S (descending) and Vᴴ with U S Vᴴ = x."""
    xp, x = _matrices("svd", x)
    with xp.scope():
        return SVDResult(*(new_array(part, xp) for part in xp.svd(x._value(), bool(full_matrices))))


def svdvals(x: Array, /) -> Array:
    """Singular values, descending."""
    xp, x = _matrices("svdvals", x)
    with xp.scope():
        return new_array(xp.svdvals(x._value()), xp)


def eigh(x: Array, /) -> EighResult:
    """Real eigenvalues, ascending, and eigenvectors (columns) of symmetric or Hermitian matrices."""
    xp, x = _matrices("eigh", x, square=True)
    with xp.scope():
        return EighResult(*(new_array(part, xp) for part in xp.eigh(x._value())))


def eigvalsh(x: Array, /) -> Array:
    """Real eigenvalues, ascending, of symmetric or Hermitian matrices."""
    xp, x = _matrices("eigvalsh", x, square=True)
    with xp.scope():
        return new_array(xp.eigh(x._value())[0], xp)


def eig(x: Array, /) -> EigResult:
    """Complex eigenvalues and eigenvectors (columns)."""
    xp, x = _matrices("eig", x, square=True)
    with xp.scope():
        return EigResult(*(new_array(part, xp) for part in xp.eig(x._value())))


def eigvals(x: Array, /) -> Array:
    """Complex eigenvalues."""
    xp, x = _matrices("eigvals", x, square=True)
    with xp.scope():
        return new_array(xp.eig(x._value())[0], xp)


# ---- equations and determinants --------------------------------------------------------------------------------------


def inv(x: Array, /) -> Array:
    xp, x = _matrices("inv", x, square=True)
    with xp.scope():
        return new_array(xp.inv(x._value()), xp)


def solve(x1: Array, x2: Array, /) -> Array:
    """Return the solution of x1 y = x2; `x2` of one dimension is a vector, else (a batch of) matrices."""
    x1, x2 = accepted("fc", x1, x2)
    xp, dtype = arrays_of("solve", x1, x2, kinds="fc")
    _matrices("solve", x1, square=True)
    n = x1.shape[-1]
    vector = x2.ndim == 1
    shape = (*x2.shape, 1) if vector else x2.shape
    if len(shape) < 2 or shape[-2] != n:
        fail("solve", (x1, x2), f"right-hand sides of {n} rows")
    batch = broadcast_shape("solve", (x1, x2), [x1.shape[:-2], shape[:-2]])
    with xp.scope():
        a = xp.broadcast_to(converted(xp, x1, dtype), (*batch, n, n))
        b = xp.broadcast_to(xp.reshape(converted(xp, x2, dtype), shape), (*batch, *shape[-2:]))
        out = xp.solve(a, b)
        return new_array(xp.squeeze(out, -1) if vector else out, xp)


def _factored(xp: Backend, x: Any) -> tuple[Any, Any]:
    """Return (the diagonal of U, the sign of the permutation, real) of an LU factorisation."""
    lu, pivots, _ = xp.lu(x)
    odd = xp.bitwise_and(xp.parity(pivots), 1)
    sign = xp.subtract(1, xp.multiply(2, odd))
    return xp.diagonal(lu), xp.astype(sign, xp.dtype_of(x))


def det(x: Array, /) -> Array:
    xp, x = _matrices("det", x, square=True)
    with xp.scope():
        if not x.shape[-1]:
            return new_array(xp.ones(x.shape[:-2], x.dtype), xp)
        diagonal, sign = _factored(xp, x._value())
        return new_array(xp.multiply(sign, xp.prod(diagonal, axis=-1)), xp)


def slogdet(x: Array, /) -> SlogdetResult:
    """Return the sign of the determinant (of complex ones, of modulus 1; 0 of singular matrices), and the logarithm of
    its absolute value."""
    xp, x = _matrices("slogdet", x, square=True)
    real = dtypes.real_dtype(x.dtype)
    with xp.scope():
        if not x.shape[-1]:
            return SlogdetResult(*(new_array(xp.full(x.shape[:-2], n, d), xp) for n, d in ((1, x.dtype), (0, real))))
        diagonal, sign = _factored(xp, x._value())
        sign = xp.multiply(sign, xp.prod(xp.sign(diagonal), axis=-1))
        return SlogdetResult(new_array(sign, xp), new_array(xp.sum(xp.log(xp.abs(diagonal)), axis=-1), xp))


def pinv(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Return the Moore-Penrose inverse; singular values below `rtol` times the greatest count as zero."""
    xp, x = _matrices("pinv", x)
    with xp.scope():
        u, s, vh = xp.svd(x._value())
        keep = xp.greater(s, _threshold(xp, "pinv", x, s, rtol))
        inverse = xp.where(keep, xp.reciprocal(xp.where(keep, s, xp.ones_like(s))), xp.zeros_like(s))
        scaled = xp.multiply(_adjoint(xp, vh), xp.expand_dims(xp.astype(inverse, x.dtype), -2))
        return new_array(xp.matmul(scaled, _adjoint(xp, u)), xp)


def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Return the number of singular values greater than `rtol` times the greatest, as int64."""
    xp, x = _matrices("matrix_rank", x)
    with xp.scope():
        s = xp.svdvals(x._value())
        keep = xp.greater(s, _threshold(xp, "matrix_rank", x, s, rtol))
        return new_array(xp.sum(xp.astype(keep, dtypes.int64), axis=-1), xp)


def _threshold(xp: Backend, name: str, x: Array, s: Any, rtol: float | Array | None) -> Any:
    """Return (..., 1): where singular values begin to count."""
    real = xp.dtype_of(s)
    if rtol is None:
        rtol = max(x.shape[-2:]) * float(dtypes.finfo(real).eps)
    if isinstance(rtol, Array):
        backend_of(name, x, rtol)
        relative = xp.expand_dims(converted(xp, rtol, real), -1)
    else:
        relative = xp.full((1,), rtol, real)
    greatest = xp.max(s, axis=-1, keepdims=True) if xp.shape(s)[-1] else xp.zeros((*xp.shape(s)[:-1], 1), real)
    return xp.multiply(relative, greatest)


def matrix_power(x: Array, n: int, /) -> Array:
    """Return the product of `n` times the matrices; of their inverses where `n` is negative."""
    n = operator.index(n)
    xp, x = _matrices("matrix_power", x, square=True, kinds="fc" if n < 0 else "ifc")
    with xp.scope():
        if not n:
            size = x.shape[-1]
            return new_array(xp.broadcast_to(xp.eye(size, size, x.dtype), x.shape), xp)
        square = xp.inv(x._value()) if n < 0 else x._value()
        out, left = None, abs(n)
        while left:
            if left & 1:
                out = square if out is None else xp.matmul(out, square)
            left >>= 1
            if left:
                square = xp.matmul(square, square)
        return new_array(out, xp, x)


# ---- norms -----------------------------------------------------------------------------------------------------------


def _greatest(xp: Backend, size: Any, **options: Any) -> Any:
    """Return the maximum of absolute values: 0 of none."""
    return xp.max(size, **options) if xp.size(size) else xp.sum(size, **options)


def _vector_norm(xp: Backend, size: Any, axes: tuple[int, ...], keepdims: bool, ord: Any) -> Any:
    """Return the vector norm of order `ord` of absolute values, which are real."""
    options: dict[str, Any] = {"axis": axes, "keepdims": keepdims}
    if ord == math.inf:
        return _greatest(xp, size, **options)
    if ord == -math.inf:
        return xp.min(size, **options)
    if ord == 0:
        return xp.sum(xp.astype(xp.not_equal(size, 0), xp.dtype_of(size)), **options)
    if ord == 1:
        return xp.sum(size, **options)
    if ord == 2:
        return xp.sqrt(xp.sum(xp.square(size), **options))
    return xp.pow(xp.sum(xp.pow(size, float(ord)), **options), 1.0 / ord)


def vector_norm(x: Array, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    """Return the norm of order `ord` of the vectors along `axis` (None: of all elements)."""
    (x,) = accepted("fc", x)
    xp = operand("vector_norm", x, "fc")
    axes = axes_of("vector_norm", x, axis)
    if ord == -math.inf and any(not x.shape[a] for a in axes):
        fail("vector_norm", (x,), f"at least one element along the axes {axes}")
    with xp.scope():
        return new_array(_vector_norm(xp, xp.abs(x._value()), axes, bool(keepdims), ord), xp)


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Return the norm of matrices: "fro", "nuc", 1, 2, inf, or -1, -2, -inf."""
    xp, x = _matrices("matrix_norm", x)
    if ord not in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        raise ValueError(f"matrix_norm: expected ord 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, got {ord!r}")
    n = x.ndim
    with xp.scope():
        if ord in ("nuc", 2, -2):
            s = xp.svdvals(x._value())
            if ord == -2 and not xp.shape(s)[-1]:
                fail("matrix_norm", (x,), "matrices of at least one element")
            out = xp.min(s, axis=-1) if ord == -2 else xp.sum(s, axis=-1) if ord == "nuc" else _greatest(xp, s, axis=-1)
        else:
            size = xp.abs(x._value())
            if ord == "fro":
                out = _vector_norm(xp, size, (n - 2, n - 1), False, 2)
            else:
                rows = abs(ord) == 1  # summed first
                sums = xp.sum(size, axis=n - 2 if rows else n - 1)
                if ord < 0 and not xp.shape(sums)[-1]:
                    fail("matrix_norm", (x,), "matrices of at least one element")
                out = _greatest(xp, sums, axis=n - 2) if ord > 0 else xp.min(sums, axis=n - 2)
        return new_array(xp.reshape(out, (*x.shape[:-2], 1, 1)) if keepdims else out, xp)


# ---- products and diagonals ------------------------------------------------------------------------------------------


def outer(x1: Array, x2: Array, /) -> Array:
    """Return all products of the elements of two vectors."""
    xp, dtype = arrays_of("outer", x1, x2)
    if x1.ndim != 1 or x2.ndim != 1:
        fail("outer", (x1, x2), "arrays of one dimension")
    with xp.scope():
        return new_array(xp.multiply(xp.expand_dims(converted(xp, x1, dtype), 1), converted(xp, x2, dtype)), xp)


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Cross products of vectors of three elements along `axis` (counted from the end); other axes broadcast."""
    xp, dtype = arrays_of("cross", x1, x2)
    operands = (x1, x2)
    at = axis_of("cross", x1, axis) - x1.ndim, axis_of("cross", x2, axis) - x2.ndim
    if axis >= 0 and x1.ndim != x2.ndim:
        fail("cross", operands, f"an axis counted from the end, got {axis}")
    if x1.shape[at[0]] != 3 or x2.shape[at[1]] != 3:
        fail("cross", operands, f"three elements along axis {axis}")
    shape = broadcast_shape("cross", operands, [x.shape for x in operands])
    with xp.scope():
        a, b = (xp.unstack(xp.broadcast_to(converted(xp, x, dtype), shape), len(shape) + at[0]) for x in operands)
        parts = [xp.subtract(xp.multiply(a[i], b[j]), xp.multiply(a[j], b[i])) for i, j in ((1, 2), (2, 0), (0, 1))]
        return new_array(xp.stack(parts, len(shape) + at[0]), xp)


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """Return a view of the diagonals of the last two axes, as the last axis."""
    _matrices("diagonal", x, kinds="bifc")
    return x._view(views.diagonal(x._full_geometry(), operator.index(offset)))


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Return the sums of diagonals, in 64 bits for integers unless `dtype` says otherwise."""
    xp, x = _matrices("trace", x, kinds="bifc")
    resolved = summed_dtype(x.dtype) if dtype is None else checked(dtype)
    with xp.scope():
        return new_array(xp.sum(xp.astype(diagonal(x, offset=offset)._value(), resolved), axis=-1), xp)


__all__ = [
    "cholesky",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "trace",
    "vecdot",
    "vector_norm",
]
