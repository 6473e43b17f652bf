"""Arithmetic with linear operators, which gives the operators of `composed`."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.array_api import Array
from tensorgraft.hub import dtypes
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.composed import (
    ConjugateLinearOperator,
    ProductLinearOperator,
    ScaledLinearOperator,
    SumLinearOperator,
    TransposeLinearOperator,
    is_scalar,
)


class Arithmetic:
    """Methods of `LinearOperator`."""

    @property
    def T(self: Any) -> LinearOperator:
        """The transpose, not conjugated."""
        return self if "symmetric" in self.tags else TransposeLinearOperator(self)

    @property
    def H(self: Any) -> LinearOperator:
        """The adjoint: the conjugate of the transpose."""
        if "hermitian" in self.tags:
            return self
        transpose = self.T
        return ConjugateLinearOperator(transpose) if dtypes.is_complex(self.dtype) else transpose

    def __add__(self: Any, other: Any) -> LinearOperator:
        return SumLinearOperator([self, other]) if isinstance(other, LinearOperator) else NotImplemented

    def __sub__(self: Any, other: Any) -> LinearOperator:
        return self + (-other) if isinstance(other, LinearOperator) else NotImplemented

    def __neg__(self: Any) -> LinearOperator:
        return self * -1

    def __mul__(self: Any, scalar: Any) -> LinearOperator:
        return ScaledLinearOperator(self, scalar) if is_scalar(scalar) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self: Any, scalar: Any) -> LinearOperator:
        return self * (1 / scalar) if is_scalar(scalar) else NotImplemented

    def __matmul__(self: Any, other: Any) -> Any:
        """Return the product: with another operator the composition, with a vector `mv`, with an array (n, k) `mm`."""
        if isinstance(other, LinearOperator):
            return ProductLinearOperator([self, other])
        if isinstance(other, Array) and other.ndim == 2 and self.is_vector_operator:
            return self.mm(other)
        return self.mv(other)


for _name, _method in vars(Arithmetic).items():
    if callable(_method) or isinstance(_method, property):
        setattr(LinearOperator, _name, _method)
