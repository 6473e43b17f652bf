"""Calls of PyTorch that take a number, given a tensor without axes: PyTorch asks for its value, which a trace has not.

They are computed by functions that take a tensor there. Each gives NotImplemented where PyTorch's own call will do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core.devices import TYPE

Tensor = torch.Tensor


def _is_unknown(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device.type == TYPE and x.ndim == 0


def _on_device(device: Any) -> bool:
    return torch.device(torch.get_default_device() if device is None else device).type == TYPE


# ---- tensors of numbers ----------------------------------------------------------------------------------------------


def _full(calls: Any, size: Any, fill_value: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    if not _is_unknown(fill_value) or not _on_device(device) or "out" in kwargs:
        return NotImplemented
    if dtype is None:
        kind = fill_value.dtype
        floating, default = kind.is_floating_point, torch.get_default_dtype()
        dtype = default if floating else default.to_complex() if kind.is_complex else kind
        dtype = dtype if floating or kind.is_complex or kind is torch.bool else torch.int64
    return torch.full(size, 0, dtype=dtype, device=device, **kwargs).copy_(fill_value)


def _full_like(calls: Any, x: Any, fill_value: Any, **kwargs: Any) -> Any:
    if not _is_unknown(fill_value):
        return NotImplemented
    return torch.full_like(x, 0, **kwargs).copy_(fill_value)


def _new_full(calls: Any, x: Any, size: Any, fill_value: Any, **kwargs: Any) -> Any:
    if not _is_unknown(fill_value):
        return NotImplemented
    return x.new_full(size, 0, **kwargs).copy_(fill_value)


def _tensor(
    calls: Any, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False, **kwargs: Any
) -> Any:
    """Make a tensor of nested lists that have tensors of one element among their numbers."""
    shape = _shape_of(data)
    if not shape or 0 in shape or not _on_device(device):
        return NotImplemented
    numbers = list(_numbers_in(data, len(shape)))
    unknown = [x for x in numbers if isinstance(x, Tensor)]
    if not unknown or any(x.device.type != TYPE or x.numel() != 1 for x in unknown):
        return NotImplemented
    element_dtypes = [x.dtype if isinstance(x, Tensor) else torch.tensor(x, device="cpu").dtype for x in numbers]
    dtype = dtype or functools.reduce(torch.promote_types, element_dtypes)
    if not all(torch.can_cast(kind, dtype) for kind in element_dtypes):  # PyTorch's error, or its rounding
        return NotImplemented
    parts = [
        x.detach().reshape(()).to(dtype=dtype, device=device)
        if isinstance(x, Tensor)
        else torch.tensor(x, dtype=dtype, device=device)
        for x in numbers
    ]
    return torch.stack(parts).reshape(shape).requires_grad_(requires_grad)


def _as_tensor(calls: Any, data: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
    return NotImplemented if kwargs else _tensor(calls, data, dtype=dtype, device=device)


def _shape_of(data: Any) -> tuple[int, ...] | None:
    """Return the shape of nested lists, None for anything else or where they are of several lengths."""
    if not isinstance(data, list | tuple):
        return () if isinstance(data, bool | int | float | complex | Tensor) else None
    inner = {_shape_of(x) for x in data}
    if len(inner) != 1 or (shape := inner.pop()) is None:
        return None if data else (0,)
    return (len(data), *shape)


def _numbers_in(data: Any, depth: int) -> Iterator[Any]:
    if depth == 0:
        yield data
    else:
        for x in data:
            yield from _numbers_in(x, depth - 1)


# ---- lists of tensors ------------------------------------------------------------------------------------------------


def _foreach(method: str, writes: bool) -> Callable[..., Any]:
    """Make the function over lists whose second argument is one tensor without axes."""

    def apply(calls: Any, tensors: Sequence[Tensor], other: Any, *args: Any, **kwargs: Any) -> Any:
        if method == "pow" and _is_unknown(tensors):
            return _powers(tensors, other)
        if not _is_unknown(other) or not isinstance(tensors, list | tuple):
            return NotImplemented
        out = tuple(getattr(x, method)(other, *args, **kwargs) for x in tensors)
        return tensors if writes else out

    return apply


def _foreach_lerp(method: str, writes: bool) -> Callable[..., Any]:
    def apply(calls: Any, tensors: Sequence[Tensor], ends: Sequence[Tensor], weight: Any) -> Any:
        if not _is_unknown(weight) or len(tensors) != len(ends):
            return NotImplemented
        out = tuple(getattr(x, method)(end, weight.to(x.dtype)) for x, end in zip(tensors, ends, strict=True))
        return tensors if writes else out

    return apply


def _powers(base: Any, exponents: Sequence[Tensor]) -> Any:
    if not all(x.ndim or (_is_float(x) and _is_float(base)) for x in exponents):  # the dtype of a tensor would count
        return NotImplemented
    return tuple(torch.pow(base if x.ndim else base.to(x.dtype), x) for x in exponents)


def _is_float(x: Tensor) -> bool:
    return x.dtype.is_floating_point


# `_foreach_<name>` is that method of each; with clamp_min and clamp_max for the names that take tensors alone
_METHODS = {name: name for name in ("add", "sub", "mul", "div", "pow", "clamp_min", "clamp_max")}
_METHODS |= {"maximum": "clamp_min", "minimum": "clamp_max"}

CALLS: dict[Any, Callable[..., Any]] = {
    Tensor.new_full: _new_full,
    torch.as_tensor: _as_tensor,
    torch.asarray: _as_tensor,
    torch.full: _full,
    torch.full_like: _full_like,
    torch.tensor: _tensor,
    **{getattr(torch, f"_foreach_{name}"): _foreach(method, False) for name, method in _METHODS.items()},
    **{getattr(torch, f"_foreach_{name}_"): _foreach(f"{method}_", True) for name, method in _METHODS.items()},
    **{getattr(torch, f"_foreach_{name}"): _foreach_lerp(name, name == "lerp_") for name in ("lerp", "lerp_")},
}
