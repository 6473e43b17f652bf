"""The outcome of an operator call, before anything is computed: PyTorch's meta functions, and PyTorch's own errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tensorgraft import warning_filters
from tensorgraft.frontends.torch.core import schema, state
from tensorgraft.frontends.torch.core.devices import slot_at
from tensorgraft.frontends.torch.core.iteration import result_strides
from tensorgraft.frontends.torch.core.nested import tensors_in
from tensorgraft.frontends.torch.core.operator import OUT_OF_BOUNDS, Operator
from tensorgraft.frontends.torch.core.result_strides import LAYOUTS, strided
from tensorgraft.frontends.torch.core.tensors import from_array, numpy_dtype, set_storage
from tensorgraft.frontends.torch.dispatch.quiet_calls import ROOM, call_with_warnings, to_meta
from tensorgraft.frontends.torch.dispatch.refusals import final, on_the_host
from tensorgraft.frontends.torch.dispatch.rehearsal import Unasked, is_large, rehearse
from tensorgraft.storage import same_strides

Tensor = torch.Tensor


def abstract_call(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, Callable[..., None] | None]:
    """Return (the operator's result on zeros or meta tensors, None if PyTorch cannot tell; the `out=` tensors that it
    resizes)."""
    try:
        return rehearse(operator, args, kwargs), None
    except Unasked as unasked:
        refusals = unasked.refusals
    sig = operator.signature
    metas, named = to_meta(args, kwargs)
    if not operator.spec.meta:
        if refusals and final(operator, refusals, args, kwargs):
            raise refusals.pop()
        return None, None
    if not tensors_in(args, kwargs) and "device" in sig.names:
        named["device"] = torch.device("meta")
    try:
        meta_result, _ = call_with_warnings(
            operator.op if operator.spec.meta is True else operator.spec.meta, metas, named, random=False
        )
    except NotImplementedError:
        return None, None
    except Exception as error:
        meta_result, metas, named = _ask_the_cpu(operator, args, kwargs, error)
    else:
        if refusals and final(operator, refusals, args, kwargs):
            raise refusals.pop()
    if operator.kind != "out":
        return _as_on_the_cpu(operator, metas, named, meta_result), None
    sizes = {}
    metas_bound = sig.bind(tuple(metas), named)
    operands = tensors_in([a for name, a in metas_bound.items() if name not in sig.written], {})
    for name in sig.written:
        before, new_out = sig.bind(args, kwargs)[name], metas_bound[name]
        if before.size() != new_out.size():
            sizes[name] = (tuple(new_out.size()), _iterated(operator, new_out, operands).stride())
    if not sizes:
        return meta_result, None
    cpu_warnings, cpu_sizes = _resized_on_the_cpu(operator, args, kwargs)
    sizes = {name: cpu_sizes.get(name, size) for name, size in sizes.items()}
    if all(sig.bind(args, kwargs)[name].size() == size for name, (size, _) in sizes.items()):
        return meta_result, None  # the meta function is wrong: the CPU does not change it

    def resize(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outs = sig.bind(args, kwargs)
        short = [name for name, (size, _) in sizes.items() if outs[name].size() != size]
        for text in (cpu_warnings or ()) if short else ():
            warning_filters.warn(text)
        for name in short:
            resize_out(outs[name], *sizes[name], warn=cpu_warnings is None)

    return meta_result, resize


def _resized_on_the_cpu(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[str] | None, dict[str, tuple[tuple[int, ...], tuple[int, ...]]]]:
    """Run the CPU's kernel on zeros with `out=` tensors of these sizes. Return (its warnings about resizing, which
    differ between kernels, or None where it cannot be run; the sizes and strides of the `out=` tensors by name)."""
    silent = not any(
        t.numel() for t in tensors_in([operator.signature.bind(args, kwargs)[n] for n in operator.writes], {})
    )
    unasked = operator.name in OUT_OF_BOUNDS or _is_large(args, kwargs)
    if unasked or (silent and is_large(operator, [t.size() for t in tensors_in(args, kwargs)])):
        return None, {}
    zeros, named = to_meta(args, kwargs, "cpu", ROOM)
    try:
        _, texts = call_with_warnings(operator.op, zeros, named)
    except Exception:  # zeros may be no valid input
        return None, {}
    bound = operator.signature.bind(tuple(zeros), named)
    cpu_sizes = {name: (tuple(bound[name].size()), bound[name].stride()) for name in operator.signature.written}
    return [text for text in texts if "resized" in text], cpu_sizes


def _as_on_the_cpu(operator: Operator, args: list[Any], kwargs: dict[str, Any], result: Any) -> Any:
    """Return the result with the strides that it has on the CPU. PyTorch's meta functions in Python give results of
    elementwise operators other strides than its iterator (`TensorIterator`)."""
    rule = LAYOUTS.get(operator.name)
    if rule is not None:
        return rule(result, *args, **kwargs)
    return _iterated(operator, result, tensors_in(args, kwargs)) if isinstance(result, Tensor) else result


def _iterated(operator: Operator, result: Tensor, operands: list[Tensor]) -> Tensor:
    """Return the result of an elementwise operator with the strides that PyTorch's iterator gives it."""
    if operator.spec.promotion is None or operator.spec.meta is not True or not result.numel():
        return result
    shape = tuple(result.shape)
    strides = result_strides(shape, operands)
    if strides is None or (operator.kind != "out" and same_strides(shape, strides, result.stride())):
        return result
    return strided(result, strides)


_SMALL = 1 << 24  # the CPU's kernel is not called on zeros if the tensors have more elements than this in all


def _is_large(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return sum(t.numel() for t in tensors_in(args, kwargs)) > _SMALL


def _ask_the_cpu(
    operator: Operator, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> tuple[Any, list[Any], dict[str, Any]]:
    """Call the CPU's kernel on zeros, after the meta function failed with `error`. PyTorch's meta functions in Python
    word some errors differently from its kernels, and refuse some calls that the kernels accept.

    Returns (its result, its arguments, its keyword arguments)."""
    if _is_large(args, kwargs):
        raise error from None
    concrete = operator.spec.concrete
    if state.now.capture is None and (concrete(*args) if callable(concrete) else concrete):  # zeros are another mask
        zeros, named = on_the_host(args, kwargs)
    else:
        zeros, named = to_meta(args, kwargs, "cpu", ROOM if operator.kind == "out" else 0)
    try:
        return call_with_warnings(operator.op, zeros, named)[0], zeros, named
    except Exception as of_cpu:
        raise of_cpu from None


def resize_out(out: Tensor, size: tuple[int, ...], stride: tuple[int, ...], warn: bool = True) -> None:
    """Make room in an `out=` tensor; warns as PyTorch does where it had elements."""
    if warn and out.numel():
        warning_filters.warn(
            f"An output with one or more elements was resized since it had shape {list(out.size())}, which does not"
            f" match the required output shape {list(size)}. This behavior is deprecated, and in a future PyTorch"
            " release outputs will not be resized unless they have zero elements. You can explicitly reuse an out"
            " tensor t by resizing it, inplace, to zero elements with t.resize_(0)."
        )
    offset = int(out.storage_offset())
    if has_room(out, size, stride):
        set_storage(out, out.untyped_storage(), offset, size, stride)
        return
    slot = slot_at(out.device.index)
    with slot.backend.scope():
        array = slot.backend.zeros((offset + math.prod(size),), numpy_dtype(out.dtype))
    resized = from_array(array, slot, out.dtype)
    set_storage(out, resized.untyped_storage(), offset, size, stride)


def resize_after_error(op: schema.Overload, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
    """Resize the `out=` tensors of a call that failed with `error`, if the CPU's kernel does: some kernels resize them
    before they check their other arguments."""
    unasked = schema.short_name(op) in OUT_OF_BOUNDS or _is_large(args, kwargs)
    if unasked or state.now.capture is not None or not isinstance(error, RuntimeError | ValueError | IndexError):
        return
    host, named = on_the_host(args, kwargs)
    try:
        call_with_warnings(op, host, named)
    except type(error):
        sig = schema.signature(op)
        before, resized_out = sig.bind(args, kwargs), sig.bind(tuple(host), named)
        for name in sig.written:
            if before[name].size() != resized_out[name].size():
                resize_out(before[name], tuple(resized_out[name].size()), resized_out[name].stride())
    except Exception:  # zeros made the kernel fail for another reason than `error`
        return


def has_room(out: Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return True if the storage of `out` is large enough for the new size and strides; PyTorch keeps the storage
    then."""
    storage = out.untyped_storage().nbytes()
    extent = math.prod(size) and 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return storage > 0 and (int(out.storage_offset()) + extent) * out.element_size() <= storage


def copied_out(op: schema.Overload, functional: schema.Overload) -> Callable[..., Any]:
    """Return an implementation of an `out=` overload: the functional overload, whose results are copied."""
    names = tuple(a.name for a in op._schema.arguments if a.kwarg_only and a.alias_info is not None)

    def call(*args: Any, **kwargs: Any) -> Any:
        all_kwargs = dict(kwargs)
        outs = tuple(kwargs.pop(name) for name in names)
        try:
            result = functional(*args, **kwargs)
        except Exception as error:
            resize_after_error(op, args, all_kwargs, error)
            raise
        for out, value in zip(outs, result if isinstance(result, tuple) else (result,), strict=True):
            if not torch.can_cast(value.dtype, out.dtype):
                raise RuntimeError(f"result type {value.dtype} can't be cast to the desired output type {out.dtype}")
            if out.size() != value.size():
                resize_out(out, tuple(value.size()), value.stride())
            out.copy_(value)
        return outs if isinstance(result, tuple) else outs[0]

    return call
