"""Products and factorisations of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from tensorgraft.backends.torch.elementwise import convert
from tensorgraft.backends.torch.operators import int8_matmul
from tensorgraft.backends.torch.precision import INTEGERS, NARROW, SIGNED, arange, as_bits, rounded, torch_dtype
from tensorgraft.hub.array import NativeArray as Array

Tensor = torch.Tensor
Axes = tuple[Sequence[int], Sequence[int]]
_FAST_BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # and added up in float32


def _factors(factor: Callable[[Tensor], Sequence[Tensor]], x: Tensor) -> tuple[Tensor, ...]:
    """Factorise a batch of matrices; NaN for those that are not finite, which PyTorch refuses."""
    finite = torch.isfinite(x).all(-1).all(-1)[..., None]
    parts = factor(torch.where(finite[..., None], x, torch.eye(*x.shape[-2:], dtype=x.dtype, device=x.device)))
    return tuple(torch.where(finite if p.ndim < x.ndim else finite[..., None], p, math.nan) for p in parts)


def integer_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply integer matrices, wrapping, by products in double precision, since CUDA and MPS have no integer
    products. Numbers are split into digits of 16 bits, so that sums of up to 2^21 products are exact."""
    dtype = a.dtype
    digits = (dtype.itemsize + 1) // 2
    parts = [
        [(x >> (16 * i) & 0xFFFF if i < digits - 1 else x >> (16 * i)).to(torch.float64) for i in range(digits)]
        for x in (a.to(torch.int64), b.to(torch.int64))
    ]
    total = None
    for i, left in enumerate(parts[0]):
        for j, right in enumerate(parts[1][: digits - i]):
            piece = torch.matmul(left, right).to(torch.int64) << (16 * (i + j))
            total = piece if total is None else total + piece
    assert total is not None
    return rounded(total, dtype)


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute `torch.matmul`, accumulated in and returned as `dtype`; narrow floats in at least float32, bool as or of
    ands."""
    if a.dtype == torch.bool and dtype == torch.bool:  # a sum of terms that are not negative is zero only if all are
        return torch.matmul(a.to(torch.float32), b.to(torch.float32)) != 0
    if dtype in SIGNED:
        return product(as_bits(convert(a, dtype)), as_bits(convert(b, dtype)), SIGNED[dtype]).view(dtype)
    if dtype == torch.int32 and a.dtype == b.dtype == torch.int8 and a.ndim == b.ndim == 2:
        batched = torch._C._functorch.is_batchedtensor(a) or torch._C._functorch.is_batchedtensor(b)
        if a.device.type == "cpu" and a.numel() and b.numel() and not batched:
            return int8_matmul(a, b)
    if dtype in INTEGERS:
        a, b = convert(a, dtype), convert(b, dtype)
        return torch.matmul(a, b) if a.device.type == "cpu" else integer_product(a, b)
    fast = a.device.type != "cpu" or (dtype == torch.bfloat16 and _FAST_BFLOAT16)
    if dtype in NARROW and not (fast and a.dtype == b.dtype == dtype and dtype.itemsize == 2):
        return rounded(torch.matmul(a.to(torch.float32), b.to(torch.float32)), dtype)
    return torch.matmul(convert(a, dtype), convert(b, dtype))


def _grouped(x: Tensor, groups: Sequence[Sequence[int]]) -> Tensor:
    """Return `x` with its axes permuted to the concatenated groups, and each group one axis."""
    order = [axis for group in groups for axis in group]
    return x.permute(order).reshape([math.prod(x.shape[axis] for axis in group) for group in groups])


def dot_general(a: Tensor, b: Tensor, contract: Axes, batch: Axes, dtype: torch.dtype) -> Tensor:
    free_a, free_b = (
        [axis for axis in range(x.ndim) if axis not in contract[i] and axis not in batch[i]]
        for i, x in enumerate((a, b))
    )
    shape = [a.shape[i] for i in (*batch[0], *free_a)] + [b.shape[i] for i in free_b]
    if batch[0]:
        left = _grouped(a, (batch[0], free_a, contract[0]))
        right = _grouped(b, (batch[1], contract[1], free_b))
    else:
        left, right = _grouped(a, (free_a, contract[0])), _grouped(b, (contract[1], free_b))
    return product(left, right, dtype).reshape(shape)


class TorchLinearAlgebra:
    def dot_general(
        self,
        a: Array,
        b: Array,
        /,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        dtype: np.dtype | None = None,
    ) -> Array:
        return dot_general(a, b, contract, batch, a.dtype if dtype is None else torch_dtype(dtype))

    def cholesky(self, x: Array, /) -> Array:
        lower, status = torch.linalg.cholesky_ex(x)
        return torch.where((status > 0)[..., None, None], math.nan, lower)

    def qr(self, x: Array, /, full: bool = False) -> tuple[Array, Array]:
        return tuple(torch.linalg.qr(x, "complete" if full else "reduced"))

    def svd(self, x: Array, /, full: bool = False) -> tuple[Array, Array, Array]:
        u, s, vh = _factors(lambda x: torch.linalg.svd(x, full_matrices=full), x)
        return u, s, vh.resolve_conj()

    def svdvals(self, x: Array, /) -> Array:
        return _factors(lambda x: [torch.linalg.svdvals(x)], x)[0]

    def eigh(self, x: Array, /, lower: bool = True) -> tuple[Array, Array]:
        return _factors(lambda x: torch.linalg.eigh(x, "L" if lower else "U"), x)  # type: ignore[return-value]

    def eig(self, x: Array, /) -> tuple[Array, Array]:
        return _factors(torch.linalg.eig, x)  # type: ignore[return-value]

    def lu(self, x: Array, /) -> tuple[Array, Array, Array]:
        m = x.shape[-2]
        lu, pivots, _ = torch.linalg.lu_factor_ex(x)
        if not x.numel():
            order = arange(m, dtype=torch.int32, device=x.device).expand(x.shape[:-1])
        else:
            rows, _, _ = torch.lu_unpack(lu.detach(), pivots, unpack_data=False)
            order = torch.argmax((rows != 0).to(torch.uint8), -2).to(torch.int32)
        return lu, pivots - 1, order

    def triangular_solve(
        self,
        a: Array,
        b: Array,
        /,
        lower: bool,
        left: bool = True,
        transpose: bool = False,
        adjoint: bool = False,
        unit_diagonal: bool = False,
    ) -> Array:
        if adjoint or transpose:
            a, lower = (a.mH.resolve_conj() if adjoint else a.mT), not lower
        return torch.linalg.solve_triangular(a, b, upper=not lower, left=left, unitriangular=unit_diagonal)

    def householder_product(self, a: Array, tau: Array, /) -> Array:
        return torch.linalg.householder_product(a, tau)

    # ---- composites ------------------------------------------------------------------------------------------------

    def householder_qr(self, x: Array) -> tuple[Array, Array]:
        a, tau = torch.geqrf(x)
        return a, tau

    def matmul(self, a: Array, b: Array, dtype: np.dtype | None = None) -> Array:
        return product(a, b, a.dtype if dtype is None else torch_dtype(dtype))

    def solve(self, a: Array, b: Array) -> Array:
        return torch.linalg.solve_ex(a, b)[0]
