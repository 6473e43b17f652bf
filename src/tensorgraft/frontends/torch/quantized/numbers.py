"""PyTorch's own kernels on the dense values of quantised CPU tensors, and writes into such tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft.frontends.torch.core import schema
from tensorgraft.frontends.torch.core.nested import flatten, map_nested
from tensorgraft.frontends.torch.core.tensors import numpy_dtype
from tensorgraft.frontends.torch.quantized import cpu
from tensorgraft.quantization import policy
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.storage import Geometry, is_dense

Tensor = torch.Tensor
_aten = torch.ops.aten


def on_numbers(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Call PyTorch's kernel with dequantised numbers, which is counted; written operands are quantised again by their
    schemes."""
    same_device(func, args, kwargs)
    quantized = [t for t in flatten((args, tuple(kwargs.values()))) if isinstance(t, cpu.QuantizedTensor)]
    shapes = ", ".join(f"{cpu.array_of(t).scheme.encoding}{list(t.shape)}" for t in quantized)
    policy.missing(schema.short_name(func), shapes)
    sig = schema.signature(func)
    bound = sig.bind(tuple(args), kwargs)
    targets = [t for n in sig.written for t in flatten(bound[n]) if isinstance(t, cpu.QuantizedTensor)]
    dense = _dense(quantized, bool(targets))

    def take(a: Any) -> Any:
        return dense[id(a)] if isinstance(a, cpu.QuantizedTensor) else a

    out = func(*map_nested(take, list(args)), **{n: map_nested(take, a) for n, a in kwargs.items()})
    for t in targets:
        write(t, dense[id(t)])
    tensor_of = {id(dense[id(t)]): t for t in targets}
    if isinstance(out, list | tuple):
        return type(out)(tensor_of.get(id(o), o) for o in out)
    return tensor_of.get(id(out), out)


def same_device(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    for t in flatten((args, tuple(kwargs.values()))):
        if isinstance(t, Tensor) and t.device.type != "cpu" and t.dim():
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, cpu and {t.device}!"
                f" (when calling {func})"
            )


def _dense(quantized: list[Any], writes: bool) -> dict[int, Tensor]:
    """Return the numbers of tensors by identity; of several that may be written, as views of one memory where they
    share a storage."""
    storages: dict[int, Tensor] = {}
    dense: dict[int, Tensor] = {}
    is_shared = writes and len({id(t) for t in quantized}) > 1
    for t in quantized:
        if not is_shared:
            dense[id(t)] = _strided(t)
            continue
        storage = t.untyped_storage()
        base = storages.get(storage._cdata)
        if base is None:
            with policy.allowed():
                base = cpu.backend().dense(storage.cell.array)
            base = storages[storage._cdata] = base.to(t.dtype, memory_format=torch.contiguous_format)
        dense[id(t)] = base.as_strided(t.size(), t.stride(), t.storage_offset())
    return dense


def _strided(t: Tensor) -> Tensor:
    """Return the numbers of a tensor with strides of the same order, without gaps."""
    dense = cpu.numbers(t)
    if t.is_contiguous():
        return dense.contiguous()
    if is_dense(tuple(t.size()), t.stride()):
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu").copy_(dense)
    order = sorted(range(t.dim()), key=lambda d: (-t.stride()[d], d))
    return dense.permute(order).contiguous().permute([order.index(d) for d in range(t.dim())])


# ---- writes ----------------------------------------------------------------------------------------------------------


def write(t: Tensor, values: Tensor) -> None:
    """Write `values` into a quantised tensor; all that share its storage see them."""
    if values.size() != t.size():
        raise RuntimeError(
            f"a quantised tensor of shape {tuple(t.shape)} cannot be resized to {tuple(values.shape)}, the shape"
            " of the result: pass a tensor of that shape"
        )
    cell: Any = t.untyped_storage().cell  # type: ignore[attr-defined]
    geometry = Geometry(tuple(t.size()), t.stride(), int(t.storage_offset()), numpy_dtype(t.dtype))
    if not traced((t, values)):
        xp = cpu.backend()
        with xp.scope():
            cell.array = xp.put(cell.array, geometry, values)
        return
    _assign(cell.array, cpu.recording().put(cell.array, geometry, values))


def _assign(target: Quantized, new: Quantized) -> None:
    """Copy new codes and scales into those of `target`, which are inputs that the program writes."""
    for old, part in zip(target.parts, new.parts, strict=True):
        old.copy_(part)


def scope_unless_traced(xp: Any, args: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the scope of the backend's own operations, unless they are to be seen: traced."""
    return contextlib.nullcontext() if traced(args) else xp.scope()


def traced(args: Any) -> bool:
    """Return True if operands are traced, or a mode of PyTorch sees the operator."""
    for t in flatten(args):
        if isinstance(t, cpu.QuantizedTensor):
            if type(t.untyped_storage().cell.array.codes) is not Tensor:  # type: ignore[attr-defined]
                return True
        elif isinstance(t, Tensor) and type(t) not in (Tensor, torch.nn.Parameter):
            return True
    return bool(torch._C._len_torch_dispatch_stack())


# ---- copies ----------------------------------------------------------------------------------------------------------


def _copy_(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if not isinstance(target, cpu.QuantizedTensor):
        return target.copy_(source.to(target.device) if target.device.type == "graft" else cpu.numbers(source))
    if source.device.type != "cpu":
        source = source.cpu()
    if isinstance(source, cpu.QuantizedTensor):
        q, cell = cpu.array_of(source), target.untyped_storage().cell  # type: ignore[attr-defined]
        if q.is_whole and q.kind == cpu.array_of(target).kind:  # the codes themselves
            if traced(args):
                _assign(cell.array, q)
            else:
                cell.array = copied(q)
            return target
        source = cpu.numbers(source)
    write(target, source.to(target.dtype).expand(target.size()))
    return target


def copied(q: Quantized) -> Quantized:
    return q.with_parts([part.clone() for part in q.parts])


def _item(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return func(cpu.numbers(args[0]))


COPIES: dict[str, Callable[[Any, Any, dict[str, Any]], Any]] = {"copy_": _copy_, "_local_scalar_dense": _item}
