"""Operators on quantised CPU tensors (`QuantizedTensor`), by what they do:

views change sizes, strides and offset, as in PyTorch, and share the storage; products, look-ups and operators that move
elements run the kernels of the device on the PyTorch backend (`kernels.py`); all others run PyTorch's kernel on
dequantised numbers, and written operands are quantised again (`numbers.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.nested import flatten
from tensorgraft.frontends.torch.core.tensors import numpy_dtype, set_storage
from tensorgraft.frontends.torch.quantized import cpu
from tensorgraft.frontends.torch.quantized.kernels import ON_CODES, on_codes
from tensorgraft.frontends.torch.quantized.numbers import COPIES, on_numbers, scope_unless_traced
from tensorgraft.frontends.torch.quantized.tensors import moved_to
from tensorgraft.quantization.quantized import Quantized

Tensor = torch.Tensor
Handler = Callable[[Any, Any, dict[str, Any]], Any]
_AUTOCAST = torch.DispatchKeySet(torch.DispatchKey.AutocastCPU)
_any_autocast = torch._C._is_any_autocast_enabled


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    handler = _handlers.get(func)
    if handler is None:
        handler = _handlers[func] = _handler(func)
    if _any_autocast():  # the operator is cast already; operators that it calls must not be
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return handler(func, args, kwargs)
    return handler(func, args, kwargs)


_handlers: dict[Any, Handler] = {}


def _handler(func: Any) -> Handler:
    name = schema.short_name(func) if func.namespace == "aten" else ""
    if name == "_to_copy":
        return _to_copy
    if name in COPIES:
        return COPIES[name]
    if name in ON_CODES:
        return on_codes
    if name == "stack":
        return _stack
    if func in _writing_overloads():
        return _written_from(_writing_overloads()[func])
    if torch.Tag.inplace_view in func.tags:
        return _metadata
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    if views or name == "_unsafe_view":  # PyTorch uses it for tensors without other views
        return _view
    if name.partition(".")[0].endswith("_like") or name.startswith("new_"):
        return _like
    if schema.has_kernel(func, "CompositeImplicitAutograd"):
        return _decomposed  # under inference mode nothing has done it yet
    return on_numbers


# ---- views -----------------------------------------------------------------------------------------------------------

Look = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]  # dtype, size, stride, offset
_looks: dict[Any, Any] = {}


def _key(a: Any) -> Any:
    return tuple(map(_key, a)) if isinstance(a, list | tuple) else (a.__class__, a)


def _result_geometry(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[list[Look], bool, int]:
    """Return (the geometries of the results, whether they are a list, the bytes of the first argument's storage
    afterwards), as PyTorch determines them, once for arguments with the same metadata. Raises PyTorch's own errors."""
    t = args[0]
    nbytes = t.untyped_storage().nbytes()
    key: Any = (func, nbytes, t.dtype, t.shape, t.stride(), t.storage_offset(), _key(args[1:]))
    key = (*key, _key(tuple(kwargs.items()))) if kwargs else key
    try:
        return _looks[key]
    except KeyError:
        pass
    except TypeError:  # sizes that are symbols
        key = None
    with _disable_current_modes():
        memory = torch.empty(nbytes // t.itemsize, dtype=t.dtype, device="cpu")  # nothing reads or writes it
        stand_in = memory.as_strided(t.size(), t.stride(), t.storage_offset())
        result = func(stand_in, *args[1:], **kwargs)
        views = list(result) if isinstance(result, list | tuple) else [result]
        geometries = [(v.dtype, tuple(v.size()), v.stride(), v.storage_offset()) for v in views]
        plain = not any(v.is_neg() or v.is_conj() or v.dtype != t.dtype for v in views)
    result_geometry = geometries if plain else [], isinstance(result, list | tuple), stand_in.untyped_storage().nbytes()
    if len(_looks) >= 4096:
        _looks.clear()
    if key is not None:
        _looks[key] = result_geometry
    return result_geometry


def _view(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    base = args[0]
    views, is_list, _ = _result_geometry(func, args, kwargs)
    if is_list:
        return [cpu.view_of(base, *geometry) for geometry in views]
    # in another dtype the numbers differ
    return cpu.view_of(base, *views[0]) if views else on_numbers(func, args, kwargs)


def _metadata(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run `t_`, `squeeze_`, ..., which change the geometry of the tensor itself."""
    target = args[0]
    if any(isinstance(a, Tensor | torch.UntypedStorage) for a in flatten((args[1:], tuple(kwargs.values())))):
        raise RuntimeError(f"{func}: a quantised tensor cannot take the memory of another one: use tensor.data = other")
    geometries, _, nbytes = _result_geometry(func, args, kwargs)
    _, size, stride, offset = geometries[0]
    if nbytes > target.untyped_storage().nbytes():
        raise RuntimeError(
            f"{func}: a quantised tensor of shape {tuple(target.shape)} cannot grow to {size}, since new elements"
            " would have no scales: call tg.dequantize first"
        )
    return set_storage(target, target.untyped_storage(), offset, size, stride)


# ---- in other words --------------------------------------------------------------------------------------------------


@functools.cache
def _writing_overloads() -> dict[Any, Any]:
    """Return the in-place and `out=` overloads of operators that have kernels, and these."""
    ops = [op for name in ON_CODES if (op := schema.overload(name)) is not None]
    return {other: op for op in ops for other in schema.derived(op).values()}


def _written_from(functional: Any) -> Handler:
    """Return an in-place or `out=` overload: the result of the functional one, written."""

    def handler(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        sig = schema.signature(func)
        bound = sig.bind(tuple(args), kwargs)
        (name,) = sig.written
        target = bound[name]
        inplace = name in sig.positional
        out = functional(**{n: bound[n] for n in schema.signature(functional).names if n in bound})
        if not torch.can_cast(out.dtype, target.dtype) or (inplace and out.shape != target.shape):
            return on_numbers(func, args, kwargs)  # for PyTorch's own refusal
        if not inplace and not isinstance(target, cpu.QuantizedTensor):
            return torch.ops.aten.clone.out(out.to(target.dtype), out=target)  # resizes it where it has to
        return target.copy_(out)

    return handler


def _stack(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    bound = schema.signature(func).bind(tuple(args), kwargs)
    return torch.cat([t.unsqueeze(bound["dim"]) for t in bound["tensors"]], bound["dim"])


def _to_copy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`.to(...)`: of another floating-point dtype, and on a device of ours, the same codes."""
    t, options = args[0], dict(kwargs)
    device = torch.device(options.pop("device", None) or "cpu")
    dtype = options.pop("dtype", None) or t.dtype
    if device.type == "meta":
        return torch.empty_strided(t.size(), t.stride(), dtype=dtype, device="meta")
    if device.type == "graft":
        moved = moved_to(t, device)
        return moved if dtype == t.dtype else moved.to(dtype)
    if device.type != "cpu":
        return on_numbers(func, args, kwargs)
    xp = cpu.backend()
    with scope_unless_traced(xp, args):
        q = xp.astype(cpu.array_of(t), numpy_dtype(dtype))
    if not isinstance(q, Quantized):
        return q.clone(memory_format=options.get("memory_format") or torch.contiguous_format)
    return torch.ops.aten.clone(cpu.new_tensor(q), memory_format=options.get("memory_format"))


def _like(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operator that uses the shape and dtype of its argument alone."""
    t = args[0]
    return func(torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu"), *args[1:], **kwargs)


def _decomposed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    out = func.decompose(*args, **kwargs)
    return on_numbers(func, args, kwargs) if out is NotImplemented else out


cpu.QuantizedTensor._run = staticmethod(run)
