"""Stochastic estimates of traces, diagonals, determinants and norms of linear operators."""

from tensorgraft.operators.estimators.api import diagonal, frobenius_norm, logdet, trace
from tensorgraft.operators.estimators.result import Estimate

__all__ = ["Estimate", "diagonal", "frobenius_norm", "logdet", "trace"]
