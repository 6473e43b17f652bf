"""Sparse tensors (COO) on the device: they are PyTorch's, with indices and values that are ordinary tensors of the
device.

PyTorch dispatches them under the key `SparsePrivateUse1`. Most of its kernels for sparse tensors of the CPU consist of
operators on indices and values and read no memory: calls are redispatched to these. Those that read memory are replaced
(`sparse_kernels`), and other operators raise an error (`absent_layouts`). Traces have no sparse tensors, because the
number of nonzeros depends on values.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.core import devices, pickled, schema, state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.device.sparse_kernels import KERNELS, write

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
            aten.impl(name, _entry(op, None), KEY)
    for name, kernel in KERNELS.items():
        op = schema.overload(name)
        assert op is not None, name
        aten.impl(name, _entry(op, kernel), KEY)
        for kind, other in {} if ".out" in name else schema.derived(op).items():
            aten.impl(schema.short_name(other), _entry(other, _writing(kernel, kind == "inplace")), KEY)
    for name in FROM_DENSE:
        op = schema.overload(name)
        assert op is not None, name
        aten.impl(name, _entry(op, None, _CPU), "PrivateUse1")


def new(original: Callable[..., Any]) -> Callable[..., Any]:
    return _of_sparse(_new, original)


def reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    return _of_sparse(_reduced, original)


def _of_sparse(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def call(t: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_own_sparse = t.device.type == TYPE and t.layout is torch.sparse_coo
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
    return pickled.sparse(), (t.layout, (t._indices(), t._values(), t.size(), t.is_coalesced()))


def _writing(kernel: Callable[..., Any], in_place: bool) -> Callable[..., Any]:
    def call(*args: Any, out: Tensor | None = None, **kwargs: Any) -> Tensor:
        target = args[0] if in_place else out
        assert target is not None
        return write(target, kernel(*args, **kwargs))

    return call


def _entry(op: Any, kernel: Callable[..., Any] | None, keys: Any = _SPARSE_CPU) -> Callable[..., Any]:
    """Return a kernel of ours, or PyTorch's own under `keys`."""
    name = schema.short_name(op)
    signature, redispatch, on_any_device = schema.signature(op), op.redispatch, name in ANYWHERE

    def call(*args: Any, **kwargs: Any) -> Any:
        if state.now.capture is not None:
            raise NotImplementedError(
                f"{op.name()}: sparse tensors cannot be used in compiled functions (tg.jit), since the number of"
                " nonzeros depends on values. Use them outside, or make them dense first (x.to_dense())."
            )
        tensors = _tensors(*args, *kwargs.values())
        device = next((t.device for t in tensors if t.device.type == TYPE), None) or kwargs.get("device")
        if not on_any_device:
            _check_devices(tensors)
        if (layout := kwargs.get("layout")) not in (None, torch.sparse_coo) and name in FROM_DENSE:
            from tensorgraft.frontends.torch.dispatch.absent_layouts import refuse_compressed

            refuse_compressed(f"{op.name()} to {layout}")
        # PyTorch gives the number that a tensor is made of instead of the tensor
        args = tuple(
            _as_tensor(tensors[0], a) if signature.types[n] == "Tensor" and isinstance(a, int | float | complex) else a
            for n, a in zip(signature.positional, args, strict=False)
        )
        with _current(device):
            result = None if kernel is None else kernel(*args, **kwargs)
            return redispatch(keys, *args, **kwargs) if result is None else result

    return call


def _tensors(*args: Any) -> list[Tensor]:
    return [t for a in args for t in (a if isinstance(a, list | tuple) else (a,)) if isinstance(t, Tensor)]


def _check_devices(tensors: list[Tensor]) -> None:
    """Raises RuntimeError where sparse tensors meet others from elsewhere; numbers may be the CPU's."""
    devices = {t.device for t in tensors if t.dim() or t.is_sparse or t.device.type != "cpu"}
    if len(devices) > 1:
        first, other = sorted(map(str, devices))[:2]
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {other}!"
        )


def _as_tensor(like: Tensor, number: complex) -> Tensor:
    """Return a tensor on the CPU that promotes with `like` as the number does, and has all of its digits."""
    dtype = torch.result_type(like, number)
    if dtype.is_complex == like.is_complex() and dtype.is_floating_point == like.is_floating_point():
        integer_dtype = dtype if dtype is torch.bool else torch.int64
        dtype = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else integer_dtype
    return torch.tensor(number, dtype=dtype, device="cpu")


@contextmanager
def _current(device: torch.device | None) -> Iterator[None]:
    """Make the device the current one: PyTorch creates a sparse tensor from empty ones there, and asserts that others
    are on the same device."""
    before, index = devices.current_index(), devices.slot_of(device).index
    if before == index:
        yield
        return
    devices.set_current_index(index)
    try:
        yield
    finally:
        devices.set_current_index(before)
