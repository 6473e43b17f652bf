"""Backward passes on the calling thread, and operators that are decomposed above autograd.

The autograd engine runs the backward pass of another device on a thread of its own, which has no JAX trace, and
supports only device index 0. `set_multithreading_enabled(False)` is per thread and per call, so the one Python function
through which `backward` and `grad` go is wrapped.

An operator with a kernel has its own derivative formula, where on the CPU those of its parts may count: that of
`linear` knows no forward mode, and its double backward no complex numbers. There it goes in parts here too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch.library import Library

from tensorgraft import warning_filters
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.modes import below_autograd
from tensorgraft.frontends.torch_entry.device import raised
from tensorgraft.interrupts import held_back

_library = Library("aten", "IMPL")
_COMPOSITE = torch.DispatchKey.CompositeImplicitAutograd


def install() -> None:
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _library.impl("tensor_split.tensor_indices_or_sections", _tensor_split, key)
        _library.impl("ctc_loss.Tensor", _ctc_loss, key)
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _library.impl("set_data", _set_data, key)
        _library.impl("cov", _cov, key)
        _library.impl("istft", functools.partial(_unchecked, torch.ops.aten.istft.default, False), key)
    _library.impl("max_pool1d", _max_pool1d, "AutogradPrivateUse1")


def _set_data(x: Any, value: Any) -> None:
    """Set `x.data` as Python's code does, which compiled functions notice."""
    x.data = value


def _tensor_split(x: Any, where: Any, dim: int = 0) -> Any:
    """PyTorch takes it apart for any device, and wants the numbers on the CPU."""
    op = torch.ops.aten.tensor_split.tensor_indices_or_sections
    return op._op_dk(_COMPOSITE, x, where.cpu(), dim)  # not `decompose`: that of Python says other errors


def _unchecked(op: Any, value: bool, *args: Any, **kwargs: Any) -> Any:
    """Call an operator that PyTorch decomposes. Inside a trace, its checks of values are skipped: a value that is read
    is taken to be `value`, with which they pass."""
    before, state.now.unraised = state.now.unraised, value if state.now.capture is not None else None
    try:
        return op._op_dk(_COMPOSITE, *args, **kwargs)
    finally:
        state.now.unraised = before


def _cov(x: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    op = torch.ops.aten.cov.default
    weights = [w for w in (fweights, aweights) if w is not None]
    composite = functools.partial(_unchecked, op, x.ndim > 0 and x.shape[-1] <= correction)
    if state.now.capture is None or not weights:
        return composite(x, correction=correction, fweights=fweights, aweights=aweights)
    like = [None if t is None else torch.ones(t.shape, dtype=t.dtype, device="cpu") for t in (x, fweights, aweights)]
    op(like[0], correction=0, fweights=like[1], aweights=like[2])  # raises for shapes and dtypes
    # the remaining weights determine whether there are any degrees of freedom
    w = math.prod(weights[1:], start=weights[0])
    total = w.sum()
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    rows = rows - ((rows * w).sum(1) / total).unsqueeze(1)
    free = total - correction * ((w * aweights).sum() / total if aweights is not None and correction else 1)
    return ((rows @ (rows * w).t().conj()) / free.clamp(min=0)).squeeze()


def _max_pool1d(*args: Any) -> Any:
    """Compute `max_pool1d`. Without a gradient the result is no view, as on the CPU, which has a separate kernel."""
    op = torch.ops.aten.max_pool1d.default
    out = op._op_dk(_COMPOSITE, *args)
    return out if out.requires_grad or not out._is_view() else torch.ops.aten._unsafe_view.default(out, out.shape)


def _ctc_loss(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any) -> Any:
    """PyTorch takes the lengths to the host; where it sees a trace it computes with them, on the device of the rest."""
    if state.now.capture is not None:
        input_lengths, target_lengths = (t.to(log_probs.device) for t in (input_lengths, target_lengths))
    return torch.ops.aten.ctc_loss.Tensor.decompose(log_probs, targets, input_lengths, target_lengths, *args, **kwargs)


def run_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace `torch.autograd.graph._engine_run_backward`."""
    disabled = torch.autograd.set_multithreading_enabled

    def _engine_run_backward(
        t_outputs: Any, grads: Any, keep_graph: bool, create_graph: bool, *args: Any, **kwargs: Any
    ) -> Any:
        if (capture := state.now.capture) is not None:
            if kwargs.get("accumulate_grad", True):
                capture.note_leaves(t_outputs)
            else:
                capture.note_inputs(t_outputs, args[0] if args else kwargs.get("inputs", ()))
        if any(isinstance(t, torch.Tensor) and t.device.type == TYPE for t in t_outputs):
            if create_graph:
                _double_backward()
            # delay interrupts: PyTorch aborts the process if one comes while C++ asks for the device's stream
            with disabled(False), held_back():
                try:
                    return original(t_outputs, grads, keep_graph, create_graph, *args, **kwargs)
                except SystemError:
                    error, raised.error = raised.error, None
                    if error is None:
                        raise
                raise error
        return original(t_outputs, grads, keep_graph, create_graph, *args, **kwargs)

    return _engine_run_backward


_taken_apart: list[Library] = []  # `linear`, while there are dual tensors of ours


def linear_in_parts() -> Library:
    """Decompose `linear` above autograd into the operators of the CPU, as long as the returned library is kept."""
    library = Library("aten", "IMPL")
    with warning_filters.ignored():  # PyTorch notes the first kernel in a process that replaces another
        library.impl("linear", torch.ops.aten.linear.default.decompose, "AutogradPrivateUse1")
    return library


def _make_dual(original: Callable[..., Any]) -> Callable[..., Any]:
    def make_dual(tensor: Any, tangent: Any, *, level: int | None = None) -> Any:
        if not _taken_apart and tensor.device.type == TYPE:
            _taken_apart.append(linear_in_parts())
        return original(tensor, tangent, level=level)

    return make_dual


def _exit_dual_level(original: Callable[..., None]) -> Callable[..., None]:
    def exit_dual_level(*, level: int | None = None) -> None:
        original(level=level)
        _taken_apart.clear()  # with its registrations

    return exit_dual_level


FORWARD_MODE = {"make_dual": _make_dual, "exit_dual_level": _exit_dual_level}


@functools.cache
def _double_backward() -> None:
    """Decompose `linear_backward` where it is itself differentiated, from the first such gradient on."""
    fused = torch.ops.aten.linear_backward.default

    def differentiable(x: Any, grad: Any, weight: Any, output_mask: list[bool]) -> tuple[Any, Any, Any]:
        if not torch.is_grad_enabled() and forward_ad._current_level < 0:
            with below_autograd():
                return fused(x, grad, weight, output_mask)
        return linear_backward(x, grad, weight, output_mask)

    _library.impl("linear_backward", differentiable, "AutogradPrivateUse1")


def linear_backward(x: Any, grad: Any, weight: Any, output_mask: list[bool]) -> tuple[Any, Any, Any]:
    """Compute `aten::linear_backward` by operators that every device has."""
    m, n, k = math.prod(x.shape[:-1]), weight.shape[0] if weight.ndim > 1 else 1, x.shape[-1]  # each may be zero
    rows, columns = x.reshape(m, k), grad.reshape(m, n)
    # `mm`, for which the `vmap` of `is_grads_batched` has a rule, and for `@` none
    dx = torch.mm(columns, weight.reshape(n, k).conj()).reshape(x.shape) if output_mask[0] else None
    dw = torch.mm(columns.t(), rows.conj()).reshape(weight.shape) if output_mask[1] else None
    db = columns.sum(0).reshape(weight.shape[:-1]) if output_mask[2] else None
    return dx, dw, db
