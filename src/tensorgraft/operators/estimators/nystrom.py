"""Nystrom approximations A W (W* A W)^+ (A W)* of positive semidefinite operators; and their leave-one-out variants."""

from __future__ import annotations

import math
from typing import NamedTuple

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.operators.estimators.programs import adjoint, conj, real, squares, triangular_solve


class Nystrom(NamedTuple):
    """The Nystrom approximation of A + shift I; the shift is for numerical stability (Tropp, Yurtsever, Udell, Cevher
    2017)."""

    factor: Array  # M (n, m): the approximation is M M*
    inverse: Array  # L^-1 (m, m), lower triangular: W* (A + shift) W = L L*, M = (A + shift) W L^-*
    shift: Array  # real, no dimension
    zero: Array  # A W = 0

    def checked(self, x: Array) -> Array:
        """Return `x`, or 0 for an operator that is zero, whose shift has no scale."""
        return xp.where(self.zero, xp.zeros_like(x), x)


def approximation(w: Array, y: Array, orthonormal: bool = False) -> tuple[Nystrom, Array | None]:
    """Return the approximation from vectors (n, m) and the products with them. Where the vectors are not orthonormal,
    also |w_i less its projection on the other columns|^2, real (m,).

    The shift is above what is rounded off from W* A W, a matrix of rank r at most for an operator of rank r.
    """
    n, m = w.shape
    norm = _norm(y)
    zero = norm == 0
    eps = float(xp.finfo(y.dtype).eps)
    shift = xp.where(zero, xp.ones_like(norm), norm * (eps if orthonormal else eps / math.sqrt(n)))
    y = y + w * xp.astype(shift, y.dtype)
    eye = xp.eye(m, dtype=y.dtype, device=y.device)
    left = None
    if orthonormal:
        lower = xp.linalg.cholesky(_symmetric(adjoint(w) @ y))
        inverse = triangular_solve(lower, eye, lower=True)
    else:  # both matrices of inner products at once
        stacked = xp.stack([_symmetric(adjoint(w) @ y), adjoint(w) @ w])
        lowers = xp.linalg.cholesky(stacked)
        inverses = triangular_solve(lowers, xp.broadcast_to(eye, stacked.shape), lower=True)
        lower, inverse = lowers[0, :, :], inverses[0, :, :]
        left = 1 / squares(inverses[1, :, :])
    factor = triangular_solve(lower, y, lower=True, left=False, adjoint=True)
    return Nystrom(factor, inverse, shift, zero), left


def _norm(y: Array) -> Array:
    """Return the Frobenius norm; squares of numbers in single precision may be too small."""
    if dtypes.real_dtype(y.dtype).itemsize > 4:
        return xp.sqrt(xp.sum(real(y * conj(y))))
    most = xp.max(xp.abs(y))
    y = y / xp.astype(xp.where(most > 0, most, xp.ones_like(most)), y.dtype)
    return most * xp.sqrt(xp.sum(real(y * conj(y))))


def _symmetric(x: Array) -> Array:
    return (x + adjoint(x)) * 0.5


def leaving_out(f: Nystrom, directions: Array | None = None) -> tuple[Array, Array]:
    """Return (N, h) of unit vectors d_i (m, m), or of the columns of W: without W d_i the approximation is M M* - N_i
    N_i*, and the form of what it leaves of A is 1 / h_i^2 at W d_i."""
    e = f.inverse if directions is None else f.inverse @ directions
    h = xp.sqrt(squares(e))  # d_i* (W* A W)^-1 d_i is h_i^2
    return f.factor @ (e / h), h


__all__ = ["Nystrom", "approximation", "leaving_out"]
