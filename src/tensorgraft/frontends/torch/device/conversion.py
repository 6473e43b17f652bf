"""A tensor that keeps its identity while it moves: `param.data = ...` between the device and others, and between dense
and quantised tensors on the CPU.

`Module.to` assigns `param.data`, so that tied weights stay tied and an optimizer made before keeps its parameters.
PyTorch's own assignment allows that between the CPU and CUDA, not between the CPU and a Python device.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef, WeakIdKeyDictionary

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.gradients import inherited_data, put_gradient
from tensorgraft.frontends.torch.quantized.cpu import QuantizedTensor

# the devices between which PyTorch itself allows the assignment
DENSE = frozenset({"cpu", "cuda", "xpu", "mps", "hpu", "mtia", TYPE})

# called with a tensor that was moved, and with the object that C++ now has for its former state
on_exchange: list[Callable[[torch.Tensor, torch.Tensor], None]] = []


def exchangeable(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return True if `x.data = y` moves `x` between the device and another one, changes its class, or makes it an
    inference tensor or none, which PyTorch has for its own devices alone."""
    kinds = {x.device.type, y.device.type}
    with torch.DisableTorchFunctionSubclass():  # a lazy module's parameter would refuse to answer
        moves = len(kinds) == 2 or x.is_inference() != y.is_inference()
    return (
        ((TYPE in kinds and moves) or isinstance(x, QuantizedTensor) != isinstance(y, QuantizedTensor))
        and x.is_leaf
        and kinds <= DENSE
        and x.layout == y.layout == torch.strided
        and all(_plain(t) for t in (x, y))
    )


def _plain(t: torch.Tensor) -> bool:
    """Return True unless the tensor is of a subclass that dispatches by itself (a fake tensor, a wrapper)."""
    return isinstance(t, QuantizedTensor) or type(t).__torch_dispatch__ is torch.Tensor.__torch_dispatch__


def exchange(x: torch.Tensor, y: torch.Tensor) -> None:
    """Give `x` what `y` sees. `x` keeps `requires_grad`, its hooks and its gradient, which moves along.

    A graph that was recorded before keeps the old values; running it backward raises an error, as it does on CUDA
    when a parameter has moved, and is not back.
    """
    moved_away = _away.pop(x, None)
    left = None if moved_away is None else moved_away.left()
    if moved_away is not None and left is not None and left.device == y.device and left.dtype == y.dtype:
        new_data = left  # the object that the graph refers to
        inherited_data.__set__(new_data, y.detach())
        moved_away.there = True
    else:
        new_data = y.detach()
        if new_data.is_floating_point() or new_data.is_complex():
            new_data.requires_grad_(x.requires_grad)
    grad, hooks, accumulate_hooks = x.grad, x._backward_hooks, getattr(x, "_post_accumulate_grad_hooks", None)
    guard: _MovedParameter | None = None
    if x.requires_grad and x._use_count() > 1:  # type: ignore[attr-defined]
        guard = _MovedParameter()
        node = torch.autograd.graph.get_gradient_edge(x).node
        node.register_prehook(guard.refuse)
    if isinstance(x, QuantizedTensor) or isinstance(new_data, QuantizedTensor):
        _exchange_classes(x, new_data)
    torch._C._swap_tensor_impl(x, new_data)
    if guard is not None and type(new_data) in (torch.Tensor, torch.nn.Parameter):
        new_data.grad, guard.left = None, TensorWeakRef(new_data)
        _away[x] = guard
    for listener in on_exchange:
        listener(x, new_data)
    if hooks:
        x._backward_hooks = hooks
    if accumulate_hooks:
        x._post_accumulate_grad_hooks = accumulate_hooks
    if grad is not None:
        if exchangeable(grad, y):
            exchange(grad, grad.to(y.device))
        put_gradient(x, grad)


def _exchange_classes(x: torch.Tensor, new_tensor: torch.Tensor) -> None:
    """Exchange the classes of two tensors: on the CPU a quantised parameter is a `QuantizedTensor`, with a mark."""
    parameter, before = isinstance(x, torch.nn.Parameter), type(x)
    if isinstance(new_tensor, QuantizedTensor):
        x.__class__ = QuantizedTensor
        if parameter:
            x._is_param = True
    else:
        x.__class__ = torch.nn.Parameter if parameter else torch.Tensor
        x.__dict__.pop("_is_param", None)
    new_tensor.__class__ = before


class _MovedParameter:
    """A parameter that has moved to another device while an autograd graph in C++ refers to it. FSDP1 moves parameters
    away after the forward pass, and back for the backward pass."""

    left: Callable[[], torch.Tensor | None]  # the tensor that the graph refers to, as long as it does
    there = False  # the parameter is that tensor again

    def refuse(self, grads: Any) -> None:
        if not self.there:
            raise RuntimeError(
                "a parameter was moved to another device after the forward pass that this backward pass belongs to:"
                " move a module before running it"
            )


_away: WeakIdKeyDictionary = WeakIdKeyDictionary()


@contextlib.contextmanager
def _flags_of(x: torch.Tensor, y: Any) -> Iterator[None]:
    """Give `x` the lazy negation and conjugation of `y`, which C++ reads from the dispatch keys."""
    with torch.DisableTorchFunction():  # a lazy module's parameter would refuse to answer
        before = x.is_neg(), x.is_conj()
        if isinstance(y, torch.Tensor) and (y.is_neg(), y.is_conj()) != before and (x.is_complex() or not y.is_conj()):
            torch._C._set_neg(x, y.is_neg())
            torch._C._set_conj(x, y.is_conj())
    try:
        yield
    except BaseException:
        torch._C._set_neg(x, before[0])
        torch._C._set_conj(x, before[1])
        raise


def data(inherited: Any) -> property:
    """Implement `Tensor.data`."""

    def assign(self: torch.Tensor, value: torch.Tensor) -> None:
        state.count_rebinding()
        if state.now.capture is not None and self.device.type == TYPE:
            state.now.capture.note_rebinding(self)
        if not (isinstance(value, torch.Tensor) and exchangeable(self, value)):
            with _flags_of(self, value) if self.device.type == TYPE else contextlib.nullcontext():
                inherited.__set__(self, value)
            return
        if self.requires_grad and not (value.is_floating_point() or value.is_complex()):
            raise RuntimeError("data set to a tensor that requires gradients must be floating point or complex dtype")
        exchange(self, value)

    return property(inherited.__get__, assign, doc=inherited.__doc__)


def swapping(original: Callable[..., None]) -> Callable[..., None]:
    """Replace `torch.utils.swap_tensors`, after which compiled functions check their tensors again."""

    @functools.wraps(original)
    def swap_tensors(*args: Any, **kwargs: Any) -> None:
        state.count_rebinding()
        original(*args, **kwargs)

    return swap_tensors


def compatible(original: Callable[..., bool]) -> Callable[..., bool]:
    # *args: Dynamo compares the signature with that of its own version of the function
    def has_compatible_shallow_copy_type(*args: Any, **kwargs: Any) -> bool:
        return original(*args, **kwargs) or exchangeable(*args, *kwargs.values())

    return has_compatible_shallow_copy_type
