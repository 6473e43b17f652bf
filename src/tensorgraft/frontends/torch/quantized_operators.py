"""Operators on quantised CPU tensors (`QuantizedTensor`), by what they do:

views change sizes, strides and offset, as PyTorch's meta functions say, and share the storage; products, look-ups and
what moves elements run the kernels of the device on PyTorch's own backend, whose arrays CPU tensors are; everything
else is PyTorch's own kernel on dequantised numbers (counted, see `policy`), and what it writes is quantised anew.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._prims_common.wrappers import _maybe_resize_out
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.frontends.torch import quantized_cpu as cpu
from tensorgraft.frontends.torch import schema
from tensorgraft.frontends.torch.nested import flatten, map_nested
from tensorgraft.frontends.torch.outcome import describe
from tensorgraft.frontends.torch.plan import lay_out
from tensorgraft.frontends.torch.spec import SPECS
from tensorgraft.frontends.torch.tensors import numpy_dtype, set_storage
from tensorgraft.quantization import policy
from tensorgraft.quantization.quantized import Quantized, anew
from tensorgraft.storage import Geometry, is_dense

Tensor = torch.Tensor
Handler = Callable[[Any, Any, dict[str, Any]], Any]
_aten = torch.ops.aten
_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

# operators whose kernels compute on codes, or keep them
ON_CODES = (
    *("mm", "bmm", "mv", "addmm", "baddbmm", "addmv", "addbmm", "linear", "dot", "vdot"),
    *("embedding", "index.Tensor", "index_select", "gather", "take"),
    *("cat", "clone", "flip", "roll", "repeat", "narrow_copy"),
)


def run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    handler = _handlers.get(func)
    if handler is None:
        handler = _handlers[func] = _handler(func)
    if torch._C._is_any_autocast_enabled():  # the operator is cast already; what it comes down to is not to be
        with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
            return handler(func, args, kwargs)
    return handler(func, args, kwargs)


def _handler(func: Any) -> Handler:
    name = schema.short_name(func) if func.namespace == "aten" else ""
    if name in _SPECIAL:
        return _SPECIAL[name]
    if name in ON_CODES:
        return _on_codes
    if func in _written():
        return _written_from(_written()[func])
    if torch.Tag.inplace_view in func.tags:
        return _metadata
    views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
    if views or name == "_unsafe_view":  # of what nobody else has
        return _view
    if name.partition(".")[0].endswith("_like") or name.startswith("new_"):
        return _like
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return _taken_apart  # under inference mode nothing has done it yet
    return on_numbers


_handlers: dict[Any, Handler] = {}


@functools.cache
def _written() -> dict[Any, Any]:
    """The in-place and `out=` overloads of operators that have kernels, and these."""
    ops = [op for name in ON_CODES if (op := schema.overload(name)) is not None]
    return {other: op for op in ops for other in schema.derived(op).values()}


def _written_from(functional: Any) -> Handler:
    """An in-place or `out=` overload of an operator that has a kernel: its result is written."""

    def handler(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        sig = schema.signature(func)
        bound = sig.bind(tuple(args), kwargs)
        (name,) = sig.written
        target = bound[name]
        inplace = name in sig.positional
        given = {n: bound[n] for n in schema.signature(functional).names if n in bound}
        made = functional(**given)
        if not inplace:
            _maybe_resize_out(target, made.shape)
        if not torch.can_cast(made.dtype, target.dtype) or (inplace and made.shape != target.shape):
            return on_numbers(func, args, kwargs)  # PyTorch's own refusal
        return target.copy_(made)

    return handler


# ---- what a call will give -------------------------------------------------------------------------------------------

_outcomes: dict[Any, Any] = {}


def _key(a: Any) -> Any:
    if isinstance(a, Tensor):
        return isinstance(a, cpu.QuantizedTensor), a.dtype, a.size(), a.stride(), a.storage_offset()
    return tuple(map(_key, a)) if isinstance(a, list | tuple) else (a.__class__, a)


def _meta(a: Any) -> Any:
    if not isinstance(a, Tensor):
        return torch.device("meta") if isinstance(a, torch.device) else a
    size = a.untyped_storage().nbytes() // a.itemsize if isinstance(a, cpu.QuantizedTensor) else None
    if size is None:
        return torch.empty_strided(a.size(), a.stride(), dtype=a.dtype, device="meta")
    return torch.empty(size, dtype=a.dtype, device="meta").as_strided(a.size(), a.stride(), a.storage_offset())


def _outcome(func: Any, args: Any, kwargs: dict[str, Any], read: Callable[[Any, Any], Any]) -> Any:
    """What `read` makes of the result on meta tensors, and of the first argument: once for arguments that look the
    same. Raises PyTorch's own errors."""
    key = (func, _key(args), _key(tuple(kwargs.items())) if kwargs else ())
    try:
        return _outcomes[key]
    except KeyError:
        pass
    except TypeError:  # sizes that are symbols
        key = None
    with _disable_current_modes():
        given = map_nested(_meta, args)
        found = read(func(*given, **{n: map_nested(_meta, a) for n, a in kwargs.items()}), given[0])
    if len(_outcomes) >= 4096:
        _outcomes.clear()
    if key is not None:
        _outcomes[key] = found
    return found


# ---- views -----------------------------------------------------------------------------------------------------------


def _looks(outcome: Any, _: Any) -> list[tuple[Any, ...]] | None:
    """(dtype, size, stride, offset) of every view; None where one shows other numbers than its memory."""
    views = list(outcome) if isinstance(outcome, list | tuple) else [outcome]
    if any(v.is_neg() or v.is_conj() for v in views):
        return None
    return [(v.dtype, tuple(v.size()), v.stride(), v.storage_offset()) for v in views]


def _view(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    base = args[0]
    looks = _outcome(func, args, kwargs, _looks) if isinstance(base, cpu.QuantizedTensor) else None
    if looks is None or any(look[0] != base.dtype for look in looks):
        return on_numbers(func, args, kwargs)
    storage = base.untyped_storage()
    made = [cpu.view_of(storage, *look) for look in looks]
    return made if str(func._schema.returns[0].type).startswith("List") or len(func._schema.returns) > 1 else made[0]


def _metadata(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`t_`, `squeeze_`, ...: the tensor itself looks elsewhere."""
    target = args[0]
    before = target.untyped_storage().nbytes()
    others = [a for a in flatten((args[1:], tuple(kwargs.values()))) if isinstance(a, Tensor | torch.UntypedStorage)]
    if others:
        raise RuntimeError(
            f"{func}: a quantised tensor cannot be given the memory of another one: tensor.data = other makes it that"
        )
    *_, size, stride, offset, nbytes = _outcome(
        func,
        args,
        kwargs,
        lambda _, t: (*_looks(t, t)[0], t.untyped_storage().nbytes()),  # type: ignore[index]
    )
    if nbytes > before:
        raise RuntimeError(
            f"{func}: a quantised tensor of shape {tuple(target.shape)} cannot grow to {size}: codes of what would come"
            " in have no scales; tg.dequantize it first"
        )
    return set_storage(target, target.untyped_storage(), offset, size, stride)


# ---- kernels of the device -------------------------------------------------------------------------------------------


def _on_codes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    _same_device(func, args, kwargs)
    name = schema.short_name(func)
    if name == "index.Tensor":
        args = (args[0], _positions(args[1]))
    if not all(map(_computes, flatten((args, tuple(kwargs.values()))))):
        return on_numbers(func, args, kwargs)
    results, structure = _outcome(func, args, kwargs, lambda outcome, _: describe(outcome))
    xp = cpu.backend()
    with _outside(xp, args):
        options = {n: _array(a) for n, a in kwargs.items() if n not in schema.PLACEMENT}
        made = SPECS[name].fn(xp, *map(_array, args), **options)
        arrays = [lay_out(xp, a, r) for a, r in zip(flatten(made), results, strict=True)]
        if func is _aten.clone.default:
            arrays = [_copied(anew(xp.inner, arrays[0]))]
    tensors = [_tensor(a, r) for a, r in zip(arrays, results, strict=True)]
    return tensors[0] if structure is None else structure(tensors)


def _copied(q: Quantized) -> Quantized:
    return q.with_parts([part.clone() for part in q.parts])


def _computes(a: Any) -> bool:
    """An operand as the backend's arrays are."""
    return not isinstance(a, Tensor) or (a.layout is torch.strided and not a.is_quantized)


def _array(a: Any) -> Any:
    if isinstance(a, cpu.QuantizedTensor):
        return cpu.array_of(a)
    if isinstance(a, list | tuple):
        return [_array(x) for x in a]
    if isinstance(a, Tensor):
        return a.resolve_conj().resolve_neg() if a.is_conj() or a.is_neg() else a
    return numpy_dtype(a) if isinstance(a, torch.dtype) else a


def _tensor(array: Any, result: Any) -> Tensor:
    if not isinstance(array, Quantized):
        _, size, stride, _ = result
        return array if array.stride() == stride else array.as_strided(size, stride)
    return cpu.made(array, *result[:3])


def _outside(xp: Any, args: Any) -> contextlib.AbstractContextManager[Any]:
    """The scope of the backend's own operations, unless they are to be seen: traced."""
    return xp.scope() if not _traced(args) else contextlib.nullcontext()


def _traced(args: Any) -> bool:
    """The operands stand for what a program will compute."""
    for t in flatten(args):
        if isinstance(t, cpu.QuantizedTensor):
            if type(t.untyped_storage().cell.array.codes) is not Tensor:  # type: ignore[attr-defined]
                return True
        elif isinstance(t, Tensor) and type(t) not in (Tensor, torch.nn.Parameter):
            return True
    return bool(torch._C._len_torch_dispatch_stack())


def _positions(indices: Any) -> list[Any]:
    """Masks as the positions that they choose: how many is not to be guessed from the shape."""
    found: list[Any] = []
    for i in indices:
        masks = i is not None and i.dtype in (torch.bool, torch.uint8)
        found.extend(i.nonzero().unbind(1)) if masks else found.append(i)
    return found


def _same_device(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    for t in flatten((args, tuple(kwargs.values()))):
        if isinstance(t, Tensor) and t.device.type != "cpu" and t.dim():
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, cpu and {t.device}!"
                f" (when calling {func})"
            )


# ---- PyTorch's own kernels -------------------------------------------------------------------------------------------


def on_numbers(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """On dequantised numbers; what is written is quantised anew, by its scheme."""
    _same_device(func, args, kwargs)
    given = [t for t in flatten((args, tuple(kwargs.values()))) if isinstance(t, cpu.QuantizedTensor)]
    arrays = {id(t): cpu.array_of(t) for t in given}
    shapes = ", ".join(f"{q.scheme.encoding}{list(q.shape)}" for q in arrays.values())
    policy.missing(schema.short_name(func), shapes)
    sig = schema.signature(func)
    bound = sig.bind(tuple(args), kwargs)
    targets = [t for n in sig.written for t in flatten(bound[n]) if isinstance(t, cpu.QuantizedTensor)]
    dense = _dense(given, bool(targets))

    def take(a: Any) -> Any:
        return dense[id(a)] if isinstance(a, cpu.QuantizedTensor) else a

    out = func(*map_nested(take, list(args)), **{n: map_nested(take, a) for n, a in kwargs.items()})
    for t in targets:
        write(t, dense[id(t)])
    back = {id(dense[id(t)]): t for t in targets}
    if isinstance(out, list | tuple):
        return type(out)(back.get(id(o), o) for o in out)
    return back.get(id(out), out)


def _dense(given: list[Any], writes: bool) -> dict[int, Tensor]:
    """The numbers of tensors by identity; of several on one storage that may be written, as views of one memory."""
    storages: dict[int, Tensor] = {}
    found: dict[int, Tensor] = {}
    several = writes and len({id(t) for t in given}) > 1
    for t in given:
        if not several:
            found[id(t)] = _strided(t)
            continue
        storage = t.untyped_storage()
        base = storages.get(storage._cdata)
        if base is None:
            with policy.meant():
                base = cpu.backend().dense(storage.cell.array)  # type: ignore[attr-defined]
            base = storages[storage._cdata] = base.to(t.dtype, memory_format=torch.contiguous_format)
        found[id(t)] = base.as_strided(t.size(), t.stride(), t.storage_offset())
    return found


def _strided(t: Tensor) -> Tensor:
    """The numbers of a tensor with strides of the same order, without gaps."""
    dense = cpu.numbers(t)
    if t.is_contiguous():
        return dense.contiguous()
    if is_dense(tuple(t.size()), t.stride()):
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype).copy_(dense)
    order = sorted(range(t.dim()), key=lambda d: (-t.stride()[d], d))
    return dense.permute(order).contiguous().permute([order.index(d) for d in range(t.dim())])


def write(t: Tensor, values: Tensor) -> None:
    """`values` where a quantised tensor looks, in all that share its storage."""
    if values.size() != t.size():
        raise RuntimeError(
            f"a quantised tensor of shape {tuple(t.shape)} cannot be resized to {tuple(values.shape)}, that of the"
            " result: give one of that shape"
        )
    xp, cell = cpu.backend(), t.untyped_storage().cell  # type: ignore[attr-defined]
    geometry = Geometry(tuple(t.size()), t.stride(), int(t.storage_offset()), numpy_dtype(t.dtype))
    with _outside(xp, (t, values)):
        new = xp.put(cell.array, geometry, values)
        if not _traced((t, values)):
            cell.array = new
            return
        for old, part in zip(cell.array.parts, new.parts, strict=True):  # a program's inputs
            old.copy_(part)


def _like(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What asks for shape and dtype alone."""
    t = args[0]
    return func(torch.empty_strided(t.size(), t.stride(), dtype=t.dtype), *args[1:], **kwargs)


def _taken_apart(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    made = func.decompose(*args, **kwargs)
    return on_numbers(func, args, kwargs) if made is NotImplemented else made


# ---- copies ----------------------------------------------------------------------------------------------------------


def _to_copy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """`.to(...)`: of another floating-point dtype, and on a device of ours, the same codes."""
    t, options = args[0], dict(kwargs)
    device = torch.device(options.pop("device", None) or "cpu")
    dtype = options.pop("dtype", None) or t.dtype
    if device.type == "meta":
        return torch.empty_strided(t.size(), t.stride(), dtype=dtype, device="meta")
    if device.type == "graft":
        from tensorgraft.frontends.torch import quantized

        there = quantized.moved(t, device)
        return there if dtype == t.dtype else there.to(dtype)
    if device.type != "cpu":
        return on_numbers(func, args, kwargs)
    xp = cpu.backend()
    with _outside(xp, args):
        q = xp.astype(cpu.array_of(t), numpy_dtype(dtype))
    if not isinstance(q, Quantized):
        return q.clone(memory_format=options.get("memory_format") or torch.contiguous_format)
    return _aten.clone(cpu.made(q), memory_format=options.get("memory_format"))


def _copy_(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    if not isinstance(target, cpu.QuantizedTensor):
        if target.device.type == "graft":
            return target.copy_(source.to(target.device))
        return target.copy_(cpu.numbers(source))
    if source.device.type != "cpu":
        source = source.cpu()
    if isinstance(source, cpu.QuantizedTensor):
        cell, q = target.untyped_storage().cell, cpu.array_of(source)  # type: ignore[attr-defined]
        if q.is_whole and q.kind == cpu.array_of(target).kind and not _traced(args):  # the codes themselves
            cell.array = _copied(q)
            return target
        source = cpu.numbers(source)
    write(target, source.to(target.dtype).expand(target.size()))
    return target


def _item(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return func(cpu.numbers(args[0]))


def _stack(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    bound = schema.signature(func).bind(tuple(args), kwargs)
    return torch.cat([t.unsqueeze(bound["dim"]) for t in bound["tensors"]], bound["dim"])


_SPECIAL: dict[str, Handler] = {
    "_to_copy": _to_copy,
    "copy_": _copy_,
    "_local_scalar_dense": _item,
    "stack": _stack,
}
