"""Matrix-free linear operators on arrays of any backend, and the equations they are in. See `docs/operators.md`.

Built on `array_api`, `transforms` and `random`; nothing of the core imports it.
"""

from tensorgraft.operators import arithmetic  # noqa: F401  (gives `LinearOperator` its methods)
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.blocks import BlockDiagonalLinearOperator, BlockLinearOperator, KroneckerLinearOperator
from tensorgraft.operators.composed import (
    ConjugateLinearOperator,
    ProductLinearOperator,
    ScaledLinearOperator,
    SumLinearOperator,
    TaggedLinearOperator,
    TransposeLinearOperator,
)
from tensorgraft.operators.derived import HessianLinearOperator, JacobianLinearOperator
from tensorgraft.operators.elementary import DiagonalLinearOperator, IdentityLinearOperator, TridiagonalLinearOperator
from tensorgraft.operators.estimators import Estimate, diagonal, frobenius_norm, logdet, trace
from tensorgraft.operators.inverse import InverseLinearOperator
from tensorgraft.operators.krylov import CG, GMRES
from tensorgraft.operators.lowrank import LowRankLinearOperator
from tensorgraft.operators.lsmr import LSMR, LSQR
from tensorgraft.operators.matrix import FunctionLinearOperator, MatrixLinearOperator
from tensorgraft.operators.solvers import LU, QR, SVD, Cholesky, Diagonal, LinearSolver, Triangular, Tridiagonal
from tensorgraft.operators.solving import Solution, linear_solve
from tensorgraft.operators.sparse import SparseLinearOperator
from tensorgraft.operators.structured import Structured
from tensorgraft.operators.structures import ShapeDtype

__all__ = [
    "CG",
    "GMRES",
    "LSMR",
    "LSQR",
    "LU",
    "QR",
    "SVD",
    "BlockDiagonalLinearOperator",
    "BlockLinearOperator",
    "Cholesky",
    "ConjugateLinearOperator",
    "Diagonal",
    "DiagonalLinearOperator",
    "Estimate",
    "FunctionLinearOperator",
    "HessianLinearOperator",
    "IdentityLinearOperator",
    "InverseLinearOperator",
    "JacobianLinearOperator",
    "KroneckerLinearOperator",
    "LinearOperator",
    "LinearSolver",
    "LowRankLinearOperator",
    "MatrixLinearOperator",
    "ProductLinearOperator",
    "ScaledLinearOperator",
    "ShapeDtype",
    "Solution",
    "SparseLinearOperator",
    "Structured",
    "SumLinearOperator",
    "TaggedLinearOperator",
    "TransposeLinearOperator",
    "Triangular",
    "Tridiagonal",
    "TridiagonalLinearOperator",
    "diagonal",
    "frobenius_norm",
    "linear_solve",
    "logdet",
    "trace",
]
