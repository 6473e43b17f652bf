"""Nystrom approximations A W (W* A W)^+ (A W)* of positive semidefinite operators; what they are without a column."""

from __future__ import annotations

import math
from typing import NamedTuple

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.operators.estimators.programs import adjoint, conj, real, squares, triangular_solve

positive = squares


class Nystrom(NamedTuple):
    """Of A + shift I, for its numerical stability (Tropp, Yurtsever, Udell, Cevher 2017)."""

    factor: Array  # M (n, m): the approximation is M M*
    inverse: Array  # L^-1 (m, m), lower triangular: W* (A + shift) W = L L*, M = (A + shift) W L^-*
    shift: Array  # real, no dimension
    zero: Array  # A W = 0
    left: Array | None  # |w_i less its projection on the other columns|^2, real (m,), where it was asked for

    def checked(self, x: Array) -> Array:
        """`x`, or 0 for an operator that is zero: the shift has then no scale."""
        return xp.where(self.zero, xp.zeros_like(x), x)


def approximation(w: Array, y: Array, left: bool = False) -> Nystrom:
    """From test vectors (n, m) and the products with them."""
    n, m = w.shape
    norm = _norm(y)
    zero = norm == 0
    shift = xp.where(zero, xp.ones_like(norm), norm * (float(xp.finfo(y.dtype).eps) / math.sqrt(n)))
    y = y + w * xp.astype(shift, y.dtype)
    eye = xp.eye(m, dtype=y.dtype, device=y.device)
    if left and 2 * m <= n:  # both matrices of inner products at once
        both = xp.stack([_symmetric(adjoint(w) @ y), adjoint(w) @ w])
        lowers = xp.linalg.cholesky(both)
        inverses = triangular_solve(lowers, xp.broadcast_to(eye, both.shape), lower=True)
        lower, inverse = lowers[0, :, :], inverses[0, :, :]
        of_w = inverses[1, :, :]
    else:
        lower = xp.linalg.cholesky(_symmetric(adjoint(w) @ y))
        inverse = triangular_solve(lower, eye, lower=True)
        if left:  # almost a basis, perhaps: inner products would lose digits
            of_w = triangular_solve(adjoint(xp.linalg.qr(w)[1]), eye, lower=True)
    factor = triangular_solve(lower, y, lower=True, left=False, adjoint=True)
    return Nystrom(factor, inverse, shift, zero, 1 / squares(of_w) if left else None)


def _norm(y: Array) -> Array:
    """The Frobenius norm; squares of numbers in single precision may be too small."""
    if dtypes.real_dtype(y.dtype).itemsize > 4:
        return xp.sqrt(xp.sum(real(y * conj(y))))
    most = xp.max(xp.abs(y))
    y = y / xp.astype(xp.where(most > 0, most, xp.ones_like(most)), y.dtype)
    return most * xp.sqrt(xp.sum(real(y * conj(y))))


def _symmetric(x: Array) -> Array:
    return (x + adjoint(x)) * 0.5


def leave_one_out(f: Nystrom) -> tuple[Array, Array]:
    """(N, h): without column i the approximation is M M* - N_i N_i*, and w_i* (A - it) w_i is 1 / h_i^2."""
    h = xp.sqrt(squares(f.inverse))  # (W* A W)^-1 has h^2 on its diagonal
    return f.factor @ (f.inverse / h), h


__all__ = ["Nystrom", "approximation", "leave_one_out", "positive"]
