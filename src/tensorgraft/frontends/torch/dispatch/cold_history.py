"""A composite operator in the cold tier as CPU PyTorch has it, its derivative included.

What PyTorch takes apart above autograd comes to the device in parts, and in other parts than on the CPU (an LSTM
multiplies the inputs of all steps at once there alone). Eagerly, a whole one can be CPU PyTorch's: forward with its
graph, and backward through that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_at
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.dispatch.memory import NotLent, copied, cpu_view, tier

Tensor = torch.Tensor
Function = Callable[..., Sequence[Tensor]]


def on_the_host(composite: Function, parts: Function, tensors: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """Compute and differentiate `composite(*tensors)`, a composite of PyTorch's, by CPU PyTorch; `parts` is the same on
    the device, for derivatives of higher order. Return None if the parts are to be run: in traces, modes and
    transforms, and for tensors that the host cannot read."""
    if state.now.capture is not None or torch._C._len_torch_dispatch_stack() or torch.is_autocast_enabled(TYPE):
        return None
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return None
    if any(type(t) not in (Tensor, torch.nn.Parameter) or t.device != tensors[0].device for t in tensors):
        return None
    if tensors[0].device.type != TYPE:
        return None
    backend = cell_of(tensors[0]).backend
    if not backend.host_visible or not tier(backend, 0):  # else its work would have to be counted
        return None
    try:
        host_tensors = [cpu_view(t).detach() for t in tensors]
    except NotLent:
        return None
    slot = slot_at(tensors[0].device.index)
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in tensors):
        with torch.no_grad():
            return tuple(copied(slot, out) for out in composite(*host_tensors))
    return _Composite.apply(slot, composite, parts, host_tensors, *tensors)


class _Composite(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, slot: Slot, composite: Function, parts: Function, hosts: list[Tensor], *tensors: Tensor
    ) -> Any:
        for low, high in zip(hosts, tensors, strict=True):
            low.requires_grad_(high.requires_grad)
        with torch.enable_grad():
            outs = composite(*hosts)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)  # their versions: the graph on the host has their memory
        ctx.slot, ctx.parts, ctx.lent, ctx.outs = slot, parts, hosts, outs
        return tuple(copied(slot, out.detach()) for out in outs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        tensors = ctx.saved_tensors
        argnums = [i for i, needs_gradient in enumerate(ctx.needs_input_grad[4:]) if needs_gradient]
        if torch.is_grad_enabled():  # to be differentiated again
            outs, ends = ctx.parts(*tensors), tensors
            seeds = cotangents
        else:
            outs, ends = ctx.outs, ctx.lent
            seeds = tuple(None if c is None else cpu_view(c) for c in cotangents)
        used = [i for i, c in enumerate(seeds) if c is not None]
        gradients = torch.autograd.grad(
            [outs[i] for i in used],
            [ends[i] for i in argnums],
            [seeds[i] for i in used],
            retain_graph=True,
            create_graph=torch.is_grad_enabled(),
            allow_unused=True,
        )
        results: list[Tensor | None] = [None] * (4 + len(tensors))
        for i, gradient in zip(argnums, gradients, strict=True):
            on_device = gradient is None or gradient.device.type == TYPE
            results[4 + i] = gradient if on_device else copied(ctx.slot, gradient)
        return tuple(results)
