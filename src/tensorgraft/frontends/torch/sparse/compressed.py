"""Compressed sparse tensors (CSR, CSC, BSR, BSC) on the device: they are PyTorch's, with indices and values that are
ordinary tensors of the device.

PyTorch dispatches them under the key `SparseCsrPrivateUse1`. Those of its kernels for the CPU that consist of operators
on the parts are redispatched; the others are replaced by `KERNELS`. Layout, dtype and block size of a replaced kernel's
result, and its errors, are the CPU's (`rehearsal`). Operators that the CPU has no kernel for have none here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.sparse import arithmetic, products
from tensorgraft.frontends.torch.sparse.bounded import check_dense
from tensorgraft.frontends.torch.sparse.calls import entry
from tensorgraft.frontends.torch.sparse.conversions import as_specified, elements_of
from tensorgraft.frontends.torch.sparse.rehearsal import expected
from tensorgraft.frontends.torch.sparse.structure import LAYOUTS, Elements, is_compressed, plain_indices, resized

Tensor = torch.Tensor
Kernel = Callable[..., Any]

KEY = "SparseCsrPrivateUse1"
_SPARSE_CSR_CPU = torch.DispatchKeySet(torch.DispatchKey.SparseCsrCPU)
_CPU = torch.DispatchKeySet(torch.DispatchKey.CPU)
_SPARSE_CPU = torch.DispatchKeySet(torch.DispatchKey.SparseCPU)
CONVERSIONS = ("_to_sparse_csr", "_to_sparse_csc", "_to_sparse_bsr", "_to_sparse_bsc")


def _converted(x: Tensor, *args: Any, **kwargs: Any) -> Elements:
    return elements_of(x)


def _to_sparse(x: Tensor, *, layout: torch.layout | None = None, **kwargs: Any) -> Elements | None:
    return elements_of(x) if layout in LAYOUTS and layout is not x.layout else None


# {operator: the kernel of its functional form}
KERNELS: dict[str, Kernel] = {
    **dict.fromkeys(CONVERSIONS, _converted),
    "_to_sparse": _to_sparse,
    "mm": products.mm,
    "addmm": products.addmm,
    "addmv": products.addmv,
    "triangular_solve": products.triangular_solve,
    "_sparse_mm_reduce_impl": products.mm_reduce,
    "_sparse_mm_reduce_impl_backward": products.mm_reduce_backward,
    "sparse_sampled_addmm": arithmetic.sampled_addmm,
    "sparse_mask": arithmetic.sparse_mask,
    "add.Tensor": arithmetic.add,
    "mul.Tensor": arithmetic.mul,
    "_sparse_csr_sum.dim_dtype": functools.partial(arithmetic.reduced, "sum"),
    "_sparse_csr_prod.dim_dtype": functools.partial(arithmetic.reduced, "prod"),
}
# those that PyTorch has on CUDA only
ON_CUDA: dict[str, Kernel] = {"bmm": products.bmm, "baddbmm": products.baddbmm}
# between devices, and of sizes and counts alone
BETWEEN_DEVICES = """
    _nnz ccol_indices clone col_indices copy_ crow_indices dense_dim empty.memory_format empty_like is_pinned resize_
    resize_as_sparse_ row_indices sparse_dim values zero_
"""

_libraries: list[Library] = []


def install() -> None:
    aten = Library("aten", "IMPL")
    _libraries.append(aten)
    between_devices = {*BETWEEN_DEVICES.split()}
    names = torch._C._dispatch_get_registrations_for_dispatch_key("SparseCsrCPU")
    for name in (name.removeprefix("aten::") for name in names):
        op = schema.overload(name)
        assert op is not None, name
        aten.impl(name, entry(op, _kernel(op, name), _SPARSE_CSR_CPU, name in between_devices), KEY)
    for name in CONVERSIONS:
        op = schema.overload(name)
        aten.impl(name, entry(op, check_dense, _CPU), "PrivateUse1")
        aten.impl(name, entry(op, None, _SPARSE_CPU), "SparsePrivateUse1")
    for key in (KEY, "SparsePrivateUse1"):
        aten.impl("linear_backward", products.linear_backward, key)
    for name, kernel in ON_CUDA.items():
        op = schema.overload(name)
        assert op is not None, name
        aten.impl(name, entry(op, kernel, _SPARSE_CSR_CPU), KEY)
        for kind, other in schema.derived(op).items():
            writing = _writing(other, kernel, kind == "inplace")
            aten.impl(schema.short_name(other), entry(other, writing, _SPARSE_CSR_CPU), KEY)
    aten.impl("_validate_compressed_sparse_indices", _validate, "PrivateUse1")


def _kernel(op: Any, name: str) -> Kernel | None:
    """Return the kernel of an overload, from that of its functional form."""
    if name in KERNELS:
        return _checked(op, KERNELS[name])
    for functional, kernel in KERNELS.items():
        functional_op = schema.overload(functional)
        for kind, other in schema.derived(functional_op).items() if functional_op else ():
            if other is op:
                return _writing(op, kernel, kind == "inplace")
    return None


def _checked(op: Any, kernel: Kernel) -> Kernel:
    def call(*args: Any, **kwargs: Any) -> Any:
        spec = expected(op, args, kwargs)
        return _specified(kernel(*args, **kwargs), spec)

    return call


def _writing(op: Any, kernel: Kernel, in_place: bool) -> Kernel:
    names = () if in_place else schema.signature(op).written
    is_on_cpu = schema.has_kernel(op, "SparseCsrCPU")

    def call(*args: Any, **kwargs: Any) -> Any:
        spec = expected(op, args, kwargs) if is_on_cpu else None
        targets = args[:1] if in_place else [kwargs.pop(name) for name in names]
        result = _specified(kernel(*args, **kwargs), spec)
        results = result if isinstance(result, tuple) else (result,)
        written = tuple(map(write, targets, results))
        return written if isinstance(result, tuple) else written[0]

    return call


def _specified(result: Any, spec: Any) -> Any:
    if isinstance(result, tuple):
        return tuple(map(_specified, result, spec))
    return result if spec is None or result is None else as_specified(result, spec)


def write(out: Tensor, result: Tensor) -> Tensor:
    """Give `out` a result of its layout and dtype."""
    if is_compressed(out):
        if plain_indices(out).shape != plain_indices(result).shape and out.size() == result.size():
            # otherwise the parts are not resized
            out.resize_as_sparse_(resized(result, (*result.size()[:-1], result.size(-1) + 1)))
        return out.resize_as_sparse_(result).copy_(result)
    return out.resize_(result.size()).copy_(result)


def _validate(is_crow: bool, compressed: Tensor, plain: Tensor, cdim: int, dim: int, nnz: int) -> None:
    """Check indices by PyTorch's kernel for the CPU: whether they are valid is a question of the host."""
    torch._validate_compressed_sparse_indices(is_crow, compressed.cpu(), plain.cpu(), cdim, dim, nnz)
