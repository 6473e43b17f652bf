"""Products of matrices and vectors. 16-bit floats are multiplied, summed and scaled in float32, and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.result_strides import column_major
from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import number, wide
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array


def _product(xp: Any, a: Array, b: Array, dtype: np.dtype | None = None) -> Array:
    """Compute a @ b of one dtype, in its accumulator's dtype."""
    return xp.matmul(a, b, dtype or dtypes.accumulator(xp.dtype_of(a)))


def _check_same_dtype(
    xp: Any, a: Array, b: Array, message: str = "expected m1 and m2 to have the same dtype, but got: {} != {}"
):
    if xp.dtype_of(a) != xp.dtype_of(b):
        raise RuntimeError(message.format(*(_CPP.get(xp.dtype_of(x).name, xp.dtype_of(x).name) for x in (a, b))))
    if dtypes.is_bool(xp.dtype_of(a)):
        raise NotImplementedError("the CPU has no product of bool either")


# C++'s names of dtypes, which PyTorch's messages use
_CPP = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "complex64": "c10::complex<float>",
    "complex128": "c10::complex<double>",
}


@kernel("mm", "bmm", "mv")
def _matmul(xp: Any, a: Array, b: Array) -> Array:
    _check_same_dtype(xp, a, b)
    return _product(xp, a, b)


@kernel("mm.dtype", "bmm.dtype")
def _matmul_dtype(xp: Any, a: Array, b: Array, out_dtype: np.dtype) -> Array:
    return _product(xp, a, b, out_dtype)


def _plus(xp: Any, x: Array, product: Array, beta: Any, alpha: Any) -> Array:
    """Compute beta * x + alpha * product; with beta = 0 the values of x, NaN included, do not count."""
    dtype = xp.dtype_of(product)
    if not (isinstance(alpha, int | float | complex) and alpha == 1):  # traced: another value, the same program
        product = xp.multiply(product, number(xp, alpha, dtype))
    if beta == 0:
        return product
    x = xp.astype(x, dtype)
    return xp.add(product, x if beta == 1 else xp.multiply(x, number(xp, beta, dtype)))


@kernel("addmm", "baddbmm", "addmv", dynamic=("alpha",))
def _addmm(xp: Any, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    _check_same_dtype(xp, a, b)
    return _plus(xp, x, _product(xp, a, b), beta, alpha)


@kernel("addmm.dtype", "baddbmm.dtype", dynamic=("alpha",))
def _addmm_dtype(xp: Any, x: Array, a: Array, b: Array, out_dtype: np.dtype, beta: Any = 1, alpha: Any = 1) -> Array:
    return _plus(xp, x, _product(xp, a, b, out_dtype), beta, alpha)


@kernel("addbmm", dynamic=("alpha",))
def _addbmm(xp: Any, x: Array, a: Array, b: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    _check_same_dtype(xp, a, b)
    total = xp.dot_general(a, b, ((0, 2), (0, 1)), dtype=dtypes.accumulator(xp.dtype_of(a)))
    return _plus(xp, x, total, beta, alpha)


@kernel("_int_mm")
def _int_mm(xp: Any, a: Array, b: Array) -> Array:
    return xp.matmul(a, b, dtypes.int32)


@kernel("dot")
def _dot(xp: Any, a: Array, b: Array) -> Array:
    _check_same_dtype(xp, a, b, "dot : expected both vectors to have same dtype, but found {} and {}")
    return _product(xp, a, b)


@kernel("vdot")
def _vdot(xp: Any, a: Array, b: Array) -> Array:
    return _dot(xp, xp.conj(a) if dtypes.is_complex(xp.dtype_of(a)) else a, b)


@kernel("linear")
def _linear(xp: Any, x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Contract x (..., in) with weight (out, in) as they lie: neither is transposed."""
    _check_same_dtype(xp, x, weight)
    out = xp.dot_general(x, weight, ((xp.ndim(x) - 1,), (1,)) if xp.ndim(weight) > 1 else ((xp.ndim(x) - 1,), (0,)),
                         dtype=dtypes.accumulator(xp.dtype_of(x)))  # fmt: skip
    return out if bias is None else xp.add(out, xp.astype(bias, xp.dtype_of(out)))


def _linear_backward_meta(
    x: torch.Tensor, grad: torch.Tensor, weight: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Return the metadata of the CPU's gradients, which `addmm` computes: each gradient has the memory layout of its
    factor; that of the weight is transposed."""
    dx, dw = (v.new_empty(v.shape) for v in (x, weight))
    if x.dim() == 2 and x.stride() == (1, x.shape[0]):
        dx = column_major(dx)
    if weight.dim() == 2 and weight.stride() != (weight.shape[1], 1):
        dw = column_major(dw)
    gradients = dx, dw, x.new_empty(weight.shape[:-1])
    return tuple(d if is_needed else None for d, is_needed in zip(gradients, mask, strict=True))


@kernel("linear_backward", meta=_linear_backward_meta)
def _linear_backward(
    xp: Any, x: Array, grad: Array, weight: Array, output_mask: list[bool]
) -> tuple[Array | None, Array | None, Array | None]:
    leading, dtype = tuple(range(xp.ndim(x) - 1)), xp.dtype_of(x)
    wide_dtype = dtypes.accumulator(dtype)
    if dtypes.is_complex(dtype):
        x, weight = xp.conj(x), xp.conj(weight)
    if xp.ndim(weight) == 1:  # (in,): one output without an axis
        weight, grad = xp.expand_dims(weight, 0), xp.expand_dims(grad, -1)
        flat = True
    else:
        flat = False
    last = xp.ndim(grad) - 1
    dx = xp.dot_general(grad, weight, ((last,), (0,)), dtype=wide_dtype) if output_mask[0] else None
    dw = xp.dot_general(grad, x, (leading, leading), dtype=wide_dtype) if output_mask[1] else None
    db = xp.sum(wide(xp, grad), axis=leading) if output_mask[2] else None
    if flat:
        dw, db = (None if d is None else xp.squeeze(d, 0) for d in (dw, db))
    return tuple(None if d is None else xp.astype(d, dtype) for d in (dx, dw, db))  # type: ignore[return-value]


# ---- groups of rows with a matrix each (mixture of experts) ----------------------------------------------------------


def _grouped_result(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Return the tensor that PyTorch's CPU kernel returns; its meta function describes CUDA's, which takes bfloat16
    only. (Strides need not be multiples of 16 bytes, which the CPU asks for though its results need not be either.)"""
    names = {torch.float32, torch.bfloat16, torch.float16}
    for operand_name, t in (("a", a), ("b", b)):
        if t.dtype not in names:
            kind = str(t.dtype).removeprefix("torch.").replace("float64", "Double").capitalize()
            raise RuntimeError(f"Expected mat_{operand_name} to be Float32, BFloat16 or Float16 matrix, got {kind}")
    flat_a, flat_b = a.dim() == 2, b.dim() == 2
    if (offs is not None) != (flat_a or flat_b):
        raise RuntimeError("Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d")
    if not (flat_a and flat_b) and a.size(-1) != b.size(-2):
        raise RuntimeError("contraction dimension of mat_a and mat_b must match")
    if bias is not None:
        raise RuntimeError("Bias not supported yet")
    if out_dtype is not None and out_dtype != a.dtype:
        raise RuntimeError("Grouped gemm output dtype must match `mat_a` dtype")
    if offs is not None and offs.dtype != torch.int32:
        raise RuntimeError("Offsets have to be int32")
    groups = offs.size(0) if offs is not None else a.size(0)
    if any(t.dim() == 3 and t.size(0) != groups for t in (a, b)):
        raise RuntimeError("matrix batch sizes have to match" if flat_a or flat_b else "batched dimension has to match")
    batch_shape = (groups,) if flat_a == flat_b else ()
    return a.new_empty((*batch_shape, a.size(-2), b.size(-1)))


@kernel("_grouped_mm", meta=_grouped_result)
def _grouped_mm(
    xp: Any, a: Array, b: Array, offs: Array | None = None, bias: None = None, out_dtype: np.dtype | None = None
) -> Array:
    _check_same_dtype(xp, a, b)
    return _product(xp, a, b) if offs is None else xp.grouped_matmul(a, b, offs)
