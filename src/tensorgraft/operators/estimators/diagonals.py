"""Diagonals from quadratic forms, element by element."""

from __future__ import annotations

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.operators.estimators.hutchinson import Hutchinson, Pair
from tensorgraft.operators.estimators.leave_one_out import mean_of_columns
from tensorgraft.operators.estimators.programs import conj, program, real


class DiagonalHutchinson(Hutchinson):
    """The sum of conj(w) A w over that of |w|^2, element by element (Bekas, Kokiopoulou, Saad 2007), `k` products."""

    def estimate(self) -> Pair:
        assert self.w is not None and self.y is not None
        return _diagonal(self.w, self.y, hermitian=self.problem.hermitian)


@program
def _diagonal(w: Array, y: Array, *, hermitian: bool) -> Pair:
    weight = xp.mean(real(w * conj(w)), axis=1, keepdims=True)
    m = w.shape[1]
    mean, error = mean_of_columns(conj(w) * y / weight, hermitian)
    return mean, error * (m / max(m - 1, 1)) ** 0.5
