"""Operators of our own in PyTorch's dispatcher: a program that is recorded calls them as they are."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

Tensor = torch.Tensor

LIBRARY = torch.library.Library("tensorgraft", "FRAGMENT")


def followed(x: Tensor) -> bool:
    """Return True if something computed with `x` is differentiated, batched or traced by `torch.compile`."""
    return (
        x.requires_grad
        or torch._C._functorch.is_functorch_wrapped_tensor(x)
        or forward_ad._current_level >= 0
        or torch.compiler.is_compiling()
    )


def _dense(x: Tensor) -> Tensor:
    """Return a matrix with strides that `torch._int_mm` reads rightly: an extent of 1 may have any, and then its
    results are what memory held (https://github.com/pytorch/pytorch, `_int_mm_out_cpu` hands them on to oneDNN)."""
    (rows, columns), (down, column_stride) = x.shape, x.stride()
    if (column_stride == 1 and down >= columns) or (down == 1 and column_stride >= rows > 1):
        return x
    return x.contiguous().as_strided((rows, columns), (columns, 1))


LIBRARY.define("int8_matmul(Tensor a, Tensor b) -> Tensor")
LIBRARY.impl("int8_matmul", lambda a, b: torch._int_mm(_dense(a), _dense(b)), "CPU")
LIBRARY.impl("int8_matmul", lambda a, b: a.new_empty((a.shape[0], b.shape[1]), dtype=torch.int32), "Meta")


def int8_matmul(a: Tensor, b: Tensor) -> Tensor:
    """Compute the exact int32 product (m, n) of int8 matrices (m, k) and (k, n), on a CPU.

    oneDNN copies a transposed second operand each time, and reads the first one without a copy: with few rows it is
    faster to compute the transposed product.
    """
    multiply = torch.ops.tensorgraft.int8_matmul.default
    if b.stride(0) == 1 and a.shape[0] <= b.shape[0] // 16:
        return multiply(b.t(), a.t()).t().contiguous()
    return multiply(a, b)
