"""Matrix-free linear operators on arrays of any backend, and the equations they are in. See `docs/operators.md`."""

from tensorgraft.operators.base import FunctionLinearOperator, LinearOperator, MatrixLinearOperator
from tensorgraft.operators.composed import (
    ConjugateLinearOperator,
    ProductLinearOperator,
    ScaledLinearOperator,
    SumLinearOperator,
    TaggedLinearOperator,
    TransposeLinearOperator,
)
from tensorgraft.operators.estimators import Estimate, diagonal, frobenius_norm, logdet, trace
from tensorgraft.operators.structures import ShapeDtype

__all__ = [
    "ConjugateLinearOperator",
    "Estimate",
    "FunctionLinearOperator",
    "LinearOperator",
    "MatrixLinearOperator",
    "ProductLinearOperator",
    "ScaledLinearOperator",
    "ShapeDtype",
    "SumLinearOperator",
    "TaggedLinearOperator",
    "TransposeLinearOperator",
    "diagonal",
    "frobenius_norm",
    "logdet",
    "trace",
]
