"""Nystrom approximations A W (W* A W)^+ (A W)* of positive semidefinite operators, and what they are without one of the columns."""

from __future__ import annotations

import math
from typing import NamedTuple

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators.estimators.programs import adjoint, squares, triangular_solve

positive = squares


class Nystrom(NamedTuple):
    """Of A + shift I, for its numerical stability (Tropp, Yurtsever, Udell, Cevher 2017)."""

    factor: Array  # M (n, m): the approximation is M M*
    inverse: Array  # L^-1 (m, m), lower triangular: W* (A + shift) W = L L*, M = (A + shift) W L^-*
    shift: Array  # real, no dimension
    zero: Array  # A W = 0

    def checked(self, x: Array) -> Array:
        """`x`, or 0 for an operator that is zero: the shift has then no scale."""
        return xp.where(self.zero, xp.zeros_like(x), x)


def approximation(w: Array, y: Array) -> Nystrom:
    """From test vectors (n, m) and the products with them."""
    n, m = w.shape
    eps = float(xp.finfo(y.dtype).eps)
    norm = xp.sqrt(xp.sum(squares(y)))
    zero = norm == 0
    shift = xp.where(zero, xp.ones_like(norm), norm * (eps / math.sqrt(n)))
    y = y + w * xp.astype(shift, y.dtype)
    gram = adjoint(w) @ y
    lower = xp.linalg.cholesky((gram + adjoint(gram)) * 0.5)
    factor = triangular_solve(lower, y, lower=True, left=False, adjoint=True)
    inverse = triangular_solve(lower, xp.eye(m, dtype=y.dtype, device=y.device), lower=True)
    return Nystrom(factor, inverse, shift, zero)


def leave_one_out(f: Nystrom) -> tuple[Array, Array]:
    """(N, h): without column i the approximation is M M* - N_i N_i*, and w_i* (A - it) w_i is 1 / h_i^2."""
    h = xp.sqrt(squares(f.inverse))  # (W* A W)^-1 has h^2 on its diagonal
    return f.factor @ (f.inverse / h), h


def explained(w: Array) -> Array:
    """|w_i less its projection on the other columns|^2, real (m,)."""
    n, m = w.shape
    r = xp.linalg.cholesky(adjoint(w) @ w) if 2 * m <= n else adjoint(xp.linalg.qr(w)[1])
    inverse = triangular_solve(r, xp.eye(m, dtype=w.dtype, device=w.device), lower=True)
    return 1 / squares(inverse)


__all__ = ["Nystrom", "approximation", "explained", "leave_one_out", "positive"]
