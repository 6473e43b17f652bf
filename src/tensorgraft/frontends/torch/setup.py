"""Installs the front end in PyTorch: once in a process, when the device is first touched (`torch_entry`).

PyTorch 2.9 and later lets Python own the `PrivateUse1` dispatch key (pytorch/pytorch#157859).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel

from tensorgraft import private
from tensorgraft.frontends.torch.core import schema, state
from tensorgraft.frontends.torch.core.modes import below_modes, traced_in_parts
from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.spec import SPECS, Spec
from tensorgraft.frontends.torch.core.tensors import CPU_KEY, numpy_dtype
from tensorgraft.frontends.torch.dispatch import decomposed, fallback, lists, native, program, transfer
from tensorgraft.frontends.torch.dispatch.entry import entry
from tensorgraft.frontends.torch.dispatch.meta_results import copied_out, resize_after_error
from tensorgraft.frontends.torch.kernels.decomposed import DECOMPOSED
from tensorgraft.frontends.torch_entry import device as entry_device
from tensorgraft.frontends.torch_entry import fallback as entry_fallback
from tensorgraft.frontends.torch_entry import hooks, loading, patches

KEY = "PrivateUse1"

# operators that change sizes, strides and offset alone: PyTorch's CPU kernel does it for any device
METADATA = (
    "as_strided",
    "as_strided_",  # used by `t_`, `squeeze_` and the like
    "view",
    "view.dtype",
    "unfold",
    "_reshape_alias",
    "view_as_real",
    "view_as_complex",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
)
# modules that install themselves, in addition to kernels
PARTS = (
    "quantized.tensors",
    "dispatch.absent_layouts",
    "kernels.neural.fused_attention",
    "kernels.math.half_fft",
    "device.autocast",
    "dispatch.autograd",
    "device.batching",
    "device.collectives",
    "device.flops",
    "graph.inductor",
    "compiled.control_flow.recurrent",
    "device.runtime",
    "device.scripted",
    "sparse.coo",
    "sparse.compressed",
)
KERNELS = (
    "neural.activations",
    "assertions",
    "neural.attention",
    "neural.average_pooling",
    "neural.batch_norm",
    "neural.sync_batch_norm",
    "neural.convolution",
    "neural.ctc",
    "counting",
    "compressed_indices",
    "creation",
    "neural.distance",
    "neural.dropout",
    "math.elementwise",
    "neural.embedding",
    "math.factorization",
    "math.fft",
    "neural.grid_sampler",
    "math.indefinite",
    "indexing",
    "math.integers",
    "math.linalg",
    "neural.loss",
    "neural.margin_loss",
    "movement",
    "neural.normalization",
    "neural.optimizers",
    "math.pathwise",
    "math.polynomials",
    "neural.pooling",
    "math.products",
    "random",
    "reduction",
    "neural.recurrent",
    "neural.resampling",
    "sampling",
    "scan",
    "scatter",
    "segments",
    "neural.softmax",
    "sorting",
    "math.special",
    "math.tangents",
    "foreach",  # last: derived from the others
)

_libraries: dict[str, Library] = {}  # kernels live as long as these


def install() -> None:
    """Register the kernels and all else. Does nothing the second time."""
    if _libraries:
        return
    hooks.register()
    _libraries["aten"] = Library("aten", "IMPL")
    _libraries["_"] = Library("_", "IMPL")
    from tensorgraft.frontends.torch.device import module
    from tensorgraft.frontends.torch.quantized import operators  # noqa: F401  (those of quantised tensors of the CPU)

    patches.apply("use")
    for part in PARTS:
        if not private.why_off(loading.module(part)):  # else PyTorch lacks a name that it needs, which has been said
            loading.part(part).install()
    for name in METADATA:
        op = schema.overload(name)
        assert op is not None, name
        _libraries["aten"].impl(name, _metadata(op), KEY)
    _define_own()
    for name, fn in transfer.DIRECT.items():
        _libraries["aten"].impl(name, below_modes(fn), KEY)
    for area in KERNELS:
        importlib.import_module(f"tensorgraft.frontends.torch.kernels.{area}")
    registered: set[str] = set(transfer.DIRECT)
    for name, spec in SPECS.items():
        op = schema.overload(name)
        if op is None:  # an overload that this version of PyTorch lacks
            continue
        if schema.has_composite(op):
            raise ValueError(f"a kernel for aten::{name} would cut its gradient: PyTorch takes it apart itself")
        _register(Operator(op, spec), registered)
    for name, spec in SPECS.items():
        op = schema.overload(name)
        if op is None or spec.writes or schema.signature(op).written:
            continue
        for kind, other in schema.derived(op).items():
            if schema.short_name(other) not in registered:
                _register(Operator(other, spec, kind, op), registered)
    for name in DECOMPOSED.split():
        if (op := schema.overload(name)) is not None:
            _libraries["aten"].impl(name, _when_called(op), KEY)
    native.install(name for name in METADATA if _changes_nothing(name))
    _libraries["_"].fallback(fallthrough_kernel, "AutocastPrivateUse1")
    entry_fallback.serve(below_modes(boxed))
    entry_device.module.fill(module)


def _define_own() -> None:
    """Define two operators that PyTorch has only as parts of others: conversion and assignment on one device."""
    graft = _libraries["graft"] = Library("graft", "DEF")
    graft.define("convert(Tensor self, ScalarType dtype, MemoryFormat memory_format) -> Tensor")
    graft.define("assign(Tensor(a!) self, Tensor source) -> Tensor(a!)")
    convert, assign = torch.ops.graft.convert.default, torch.ops.graft.assign.default
    for key in ("Meta", "CPU"):
        graft.impl("convert", lambda x, dtype, memory_format: x.to(dtype, memory_format=memory_format, copy=True), key)
        graft.impl("assign", lambda x, source: x.copy_(source), key)
    transfer.kernels["convert"] = entry(Operator(convert, Spec(program.convert)))
    graft.impl("convert", transfer.kernels["convert"], KEY)
    transfer.kernels["assign"] = entry(Operator(assign, Spec(lambda xp, source: source), "out"))
    graft.impl("assign", transfer.kernels["assign"], KEY)


def _changes_nothing(name: str) -> bool:
    """Return True for an operator of `METADATA` that only makes a view, of the same dtype."""
    op = schema.overload(name)
    return op is not None and not schema.signature(op).written and name != "view.dtype"


def _metadata(op: schema.Overload) -> Callable[..., Any]:
    redispatch = op._handle.redispatch_boxed

    def of_dtype(*args: Any, **kwargs: Any) -> Any:
        numpy_dtype(args[1])  # raises for dtypes that no backend has
        return redispatch(CPU_KEY, *args, **kwargs)

    def in_place(*args: Any, **kwargs: Any) -> Any:
        state.count_rebinding()
        return redispatch(CPU_KEY, *args, **kwargs)

    if schema.signature(op).written:
        return in_place
    return of_dtype if op is torch.ops.aten.view.dtype else functools.partial(redispatch, CPU_KEY)


def _register(operator: Operator, registered: set[str]) -> Callable[..., Any]:
    call = _call(operator)
    _libraries["aten"].impl(operator.name, call, KEY)
    registered.add(operator.name)
    return call


def _call(operator: Operator) -> Callable[..., Any]:
    call = entry(operator)
    if lists.written_in_turn(operator):
        return lists.in_turn(operator, call)
    if operator.name.startswith("special_xlog1py"):
        return transfer.numbers_as_tensors(call)
    if operator.name == "clone":
        return below_modes(transfer.resolving(call))
    if operator.name == "convolution":
        return traced_in_parts(call, _convolution)
    if schema.has_kernel(operator.op, "Conjugate"):
        return below_modes(transfer.resolved(operator.name, operator.signature, call))
    return call


def _when_called(op: schema.Overload) -> Callable[..., Any]:
    """Return the decomposition of an operator, made at the first call, and looked up when it is traced: PyTorch's
    decompositions are slow to import."""
    call: Callable[..., Any] | None = None

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        return fallback.decompositions()[op](*args, **kwargs)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        nonlocal call
        if call is None:
            operator = _derived(op)
            call = _call(operator or Operator(op, decomposed.decomposed_spec(op, decomposition)))
        return call(*args, **kwargs)

    return kernel


def _convolution(*args: Any) -> Any:
    """Call `_convolution`, as PyTorch's own kernel of `convolution` does on every device."""
    return torch.ops.aten._convolution.default(*args, False, False, False, False)


def boxed(op: schema.Overload, *args: Any, **kwargs: Any) -> Any:
    """Run an operator that has neither a kernel nor a composite: the dispatcher's fallback for the device."""
    call = late_entry(op)
    if call is not None:
        return call(*args, **kwargs)
    try:
        return fallback.on_cpu(op, args, kwargs)
    except Exception as error:
        if schema.is_out(op):
            resize_after_error(op, args, kwargs, error)
        raise


def late_entry(op: schema.Overload) -> Callable[..., Any] | None:
    """Return an entry for an operator without a kernel, at its first call: a kernel made from PyTorch's decomposition
    of it, or of the functional overload that it is the in-place or `out=` form of; or that overload itself; or None."""
    if op.namespace != "aten":
        return None
    decomposition = None if schema.is_out(op) else fallback.decompositions().get(op)  # `out=` is resized by a plan
    if decomposition is not None:
        return _register(Operator(op, decomposed.decomposed_spec(op, decomposition)), set())
    if not schema.signature(op).written:
        return None
    operator = _derived(op)
    if operator is not None:
        return _register(operator, set())
    functional = schema.functional_of(op)
    # the functional overload of a structured operator is a composite that creates a result and calls this one
    if functional is None or schema.has_kernel(functional, "CompositeExplicitAutogradNonFunctional"):
        return None
    call = below_modes(copied_out(op, functional))
    _libraries["aten"].impl(schema.short_name(op), call, KEY)
    return call


def _derived(op: schema.Overload) -> Operator | None:
    """Return an operator that writes, of the functional overload of which it is a form."""
    if not schema.signature(op).written:
        return None
    packet, _, _ = schema.short_name(op).partition(".")
    family = getattr(torch.ops.aten, packet.removesuffix("_"), None)
    for name in family.overloads() if family is not None else ():
        base = getattr(family, name)
        for kind, other in schema.derived(base).items():
            if other is op:
                spec = _functional_spec(base)
                if spec is not None and not spec.writes:
                    return Operator(op, spec, kind, base)
    return None


def _functional_spec(base: schema.Overload) -> Spec | None:
    spec = SPECS.get(schema.short_name(base))
    if spec is None and (decomposition := fallback.decompositions().get(base)) is not None:
        spec = decomposed.decomposed_spec(base, decomposition)
    return spec
