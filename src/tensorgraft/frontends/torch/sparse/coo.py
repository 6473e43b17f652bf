"""Sparse tensors (COO) on the device: they are PyTorch's, with indices and values that are ordinary tensors of the
device.

PyTorch dispatches them under the key `SparsePrivateUse1`. Most of its kernels for sparse tensors of the CPU consist of
operators on indices and values and read no memory: calls are redispatched to these. Those that read memory are replaced
(`coo_kernels`), and other operators raise an error (`dispatch.absent_layouts`). In a trace the parts of a sparse tensor
from outside are inputs, and its number of elements is a shape (`compiled.sparse_tensors`).
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.core import pickled, schema
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.dispatch.absent_layouts import SPARSE
from tensorgraft.frontends.torch.sparse.bounded import check_dense, has_unknown_count
from tensorgraft.frontends.torch.sparse.calls import entry
from tensorgraft.frontends.torch.sparse.coo_kernels import KERNELS, coo, write
from tensorgraft.frontends.torch.sparse.rehearsal import expected
from tensorgraft.frontends.torch.sparse.structure import compressed_indices, is_compressed, plain_indices

Tensor = torch.Tensor

KEY = "SparsePrivateUse1"
_SPARSE_CPU = torch.DispatchKeySet(torch.DispatchKey.SparseCPU)
_CPU = torch.DispatchKeySet(torch.DispatchKey.CPU)

# PyTorch's own kernels, none of which looks at memory; these are there in place and with `out=` as well
ELEMENTWISE = """
    abs asin asinh atan atanh ceil deg2rad erf erfinv expm1 floor frac log1p neg rad2deg relu round sgn sign sin
    sinh sqrt tan tanh trunc isneginf isposinf signbit nan_to_num
"""
STRUCTURE = """
    _coalesced_ _dimI _dimV _indices _nnz _sparse_coo_tensor_with_dims _sparse_coo_tensor_with_dims_and_tensors
    _values clone copy_ copy_sparse_to_sparse_ dense_dim empty.memory_format empty_like indices is_coalesced
    is_pinned resize_as_sparse_ sparse_dim sparse_resize_ sparse_resize_and_clear_ values zero_ zeros.out
"""
OTHERS = """
    _sparse_broadcast_to _to_dense _to_sparse _to_sparse.sparse_dim add.Tensor add_.Tensor any cat conj_physical.out
    div.Tensor div.Tensor_mode div.out div.out_mode div_.Tensor div_.Tensor_mode floor_divide floor_divide.out
    floor_divide_.Tensor isinf isnan mm mm.out mul.Tensor mul_.Tensor mv narrow_copy native_norm
    native_norm.ScalarOpt_dim_dtype norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype pow.Tensor_Scalar
    pow.Tensor_Scalar_out sub.Tensor sub.out sub_.Tensor sum sum.dim_IntList threshold_backward
    threshold_backward.grad_input unsqueeze view_as_complex view_as_real
"""
CONSTRUCTORS = ("sparse_coo_tensor.indices", "sparse_coo_tensor.indices_size", "_sparse_coo_tensor_unsafe")
FROM_DENSE = ("_to_sparse", "_to_sparse.sparse_dim")
# between devices, and of sizes and counts alone
ANYWHERE = {*STRUCTURE.split()} - {"_sparse_coo_tensor_with_dims_and_tensors"}

_libraries: list[Library] = []


def install() -> None:
    aten = Library("aten", "IMPL")
    _libraries.append(aten)
    elementwise = [f"{name}{form}" for name in ELEMENTWISE.split() for form in ("", "_", ".out")]
    for name in (*elementwise, *STRUCTURE.split(), *OTHERS.split()):
        op = schema.overload(name)
        if op is not None and schema.has_kernel(op, "SparseCPU"):
            aten.impl(name, entry(op, None, _SPARSE_CPU, name in ANYWHERE), KEY)
    for name, kernel in KERNELS.items():
        op = schema.overload(name)
        assert op is not None, name
        aten.impl(name, entry(op, _checked(op, kernel), _SPARSE_CPU, name in ANYWHERE), KEY)
        for kind, other in {} if ".out" in name else schema.derived(op).items():
            writing = _checked(other, _writing(kernel, kind == "inplace"))
            aten.impl(schema.short_name(other), entry(other, writing, _SPARSE_CPU), KEY)
    spdiags = schema.overload("_spdiags")
    aten.impl("_spdiags", entry(spdiags, _spdiags, _CPU, on_any_device=True), "PrivateUse1")
    bags = schema.overload("_embedding_bag_backward")
    aten.impl("_embedding_bag_backward", entry(bags, _bag_gradient, _CPU, on_any_device=True), "PrivateUse1")
    for name in FROM_DENSE:
        op = schema.overload(name)
        assert op is not None, name
        aten.impl(name, entry(op, check_dense, _CPU), "PrivateUse1")
    for key in ("AutogradPrivateUse1", "PrivateUse1", KEY):  # the last one where options tell of the layout
        aten.impl("_validate_sparse_coo_tensor_args", _validate, key)
        for name in CONSTRUCTORS:
            aten.impl(name, functools.partial(_constructed, schema.overload(name)), key)
        if key != KEY:
            table = schema.overload("embedding_sparse_backward")
            aten.impl("embedding_sparse_backward", functools.partial(_table_gradient, table), key)


def _validate(indices: Tensor, values: Tensor, size: Sequence[int], *flags: bool | None) -> None:
    """Check indices by PyTorch's kernel for the CPU: whether they are valid is a question of the host."""
    stand_in = torch.empty((), dtype=values.dtype, device="cpu").expand(values.size())
    torch._validate_sparse_coo_tensor_args(indices.cpu(), stand_in, list(size), *flags)


def _constructed(
    op: Any, indices: Tensor, values: Tensor, *size: Sequence[int], is_coalesced: bool | None = None, **options: Any
) -> Tensor:
    """Return a sparse tensor. PyTorch's check of sorted indices reads the memory of the CPU."""
    composite = functools.partial(op._op_dk, torch.DispatchKey.CompositeImplicitAutograd, indices, values, *size)
    if not is_coalesced or not torch.sparse.check_sparse_tensor_invariants.is_enabled():
        return composite(is_coalesced=is_coalesced, **options)
    _validate(indices, values, composite(**options).size(), is_coalesced)
    with torch.sparse.check_sparse_tensor_invariants(False):
        return composite(is_coalesced=is_coalesced, **options)


def _spdiags(diagonals: Tensor, offsets: Tensor, shape: Sequence[int], layout: torch.layout | None = None) -> Tensor:
    """Return a sparse matrix of diagonals (n, m) at offsets (n,): the CPU says where each of their elements is."""
    positions = torch.arange(diagonals.numel(), device="cpu").reshape(diagonals.shape)
    at = torch.ops.aten._spdiags(positions, offsets.cpu(), shape)
    values = diagonals.reshape(-1).index_select(0, at._values().to(diagonals.device))
    matrix = coo(at._indices().to(diagonals.device), values, shape, at.is_coalesced())
    return matrix if layout in (None, torch.sparse_coo) else matrix.to_sparse(layout=layout)


def _bag_gradient(
    grad: Tensor,
    indices: Tensor,
    offsets: Tensor,
    bag_of: Tensor,
    size: Tensor,
    maximum: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    *options: Any,
) -> Tensor:
    """Return the gradient for the table of `embedding_bag`, sparse or dense, as PyTorch does on its own devices."""
    numbers = num_weights, scale_grad_by_freq, mode, *options
    if indices.numel() and not bag_of.numel():  # a kernel of the CPU does not say
        positions = torch.arange(indices.numel(), device=grad.device)
        bag_of = torch.searchsorted(offsets.to(positions), positions, right=True) - 1
    if sparse:
        return torch.ops.aten._embedding_bag_sparse_backward(
            grad, indices.to(grad.device), offsets, bag_of, size, *numbers
        )
    return torch.ops.aten._embedding_bag_dense_backward(grad, indices, bag_of, size, maximum, *numbers)


def _table_gradient(
    op: Any, grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Return the sparse gradient for the table of `embedding`. PyTorch leaves out rows of padding; in a trace, where
    indices have no values, these are stored as zeros."""
    if padding_idx == -1 or scale_grad_by_freq or not has_unknown_count(indices):
        composite = functools.partial(op._op_dk, torch.DispatchKey.CompositeImplicitAutograd)
        return composite(grad, indices, num_weights, padding_idx, scale_grad_by_freq)
    rows, width = indices.reshape(-1), grad.size(-1)
    values = torch.where((rows != padding_idx).unsqueeze(1), grad.reshape(-1, width), 0)
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, (num_weights, width))


def new(original: Callable[..., Any]) -> Callable[..., Any]:
    return _of_layouts({torch.sparse_coo}, _new, original)


def reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    return _of_layouts(SPARSE, _reduced, original)


def _of_layouts(layouts: Set[torch.layout], method: Callable[..., Any], original: Callable[..., Any]) -> Any:
    def call(t: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_own_sparse = t.device.type == TYPE and t.layout in layouts
        return (method if is_own_sparse else original)(t, *args, **kwargs)

    return functools.wraps(original)(call)


def _new(t: Tensor, *args: Any, device: Any = None) -> Tensor:
    return legacy(t.dtype, device or t.device, *args)


def legacy(dtype: torch.dtype, device: Any, *args: Any) -> Tensor:
    """Return a sparse tensor as PyTorch before 0.4 made one: of indices, values and perhaps a size, or of a size."""
    if args and isinstance(args[0], Tensor):
        return torch.sparse_coo_tensor(*args, dtype=dtype, device=device)
    size = args[0] if len(args) == 1 and not isinstance(args[0], int) else args or (0,)
    return torch.sparse_coo_tensor(size=tuple(size), dtype=dtype, device=device)  # type: ignore[call-arg]


def _reduced(t: Tensor, protocol: Any) -> Any:
    if isinstance(t, torch.nn.Parameter):
        return pickled.parameter(), (t.data, t.requires_grad, OrderedDict())
    if is_compressed(t):
        return pickled.sparse(), (t.layout, (compressed_indices(t), plain_indices(t), t.values(), t.size()))
    return pickled.sparse(), (t.layout, (t._indices(), t._values(), t.size(), t.is_coalesced()))


def _checked(op: Any, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a kernel so that it raises what the CPU raises for such operands."""

    def call(*args: Any, **kwargs: Any) -> Any:
        expected(op, args, kwargs)
        return kernel(*args, **kwargs)

    return call


def _writing(kernel: Callable[..., Any], in_place: bool) -> Callable[..., Any]:
    def call(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
        target = args[0] if in_place else out
        assert target is not None
        return write(target, kernel(*args, **kwargs))

    return call
