"""Branches and loop bodies: functions of tensors that a backend traces inside of its own control flow.

Their derivatives are functions of tensors, too (`pulled_back`), so that a backward pass is control flow of the same
kind, and can be differentiated any number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.errors import CompilationError, TracedValueError
from tensorgraft.frontends.torch.compiled.autograd.saved_tensors import nodes
from tensorgraft.frontends.torch.compiled.capture import current
from tensorgraft.frontends.torch.core import pytrees, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.core.tensors import from_array, to_array
from tensorgraft.hub.array import Array

Tensor = torch.Tensor


def differentiable(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


class Body:
    """`fn` of operands, some of which are tensors on the device. For an active capture."""

    def __init__(self, fn: Callable[..., Any], leaves: Sequence[Any], spec: Any) -> None:
        self.fn, self.spec = fn, spec
        # without references to the tensors of the call
        self.leaves = [_TENSOR if isinstance(t, Tensor) else t for t in leaves]
        self._dtypes = [t.dtype for t in leaves if isinstance(t, Tensor)]
        self.result_dtypes: list[torch.dtype] = []
        self.captured: dict[int, Tensor] = {}  # tensors from outside that have gradients, by identity
        self.structure: Any = None  # the structure of the results
        self.described = ""

    def values(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the results, and record which outside tensors have gradients."""
        flat, inputs, first_node = self._call(arrays)
        input_ids = {id(t) for t in inputs}
        for node in nodes([t for t in flat if t.grad_fn is not None]):
            variable = getattr(node, "variable", None)
            if variable is not None:
                if id(variable) not in input_ids:
                    self.captured[id(variable)] = variable
            elif node._sequence_nr() < first_node:
                raise CompilationError(
                    f"a branch or a loop body uses a tensor from outside that has a grad_fn ({node.name()}): pass"
                    " it as an operand"
                )
        return [to_array(t.detach()) for t in flat]

    def flat(self, *tensors: Tensor) -> list[Tensor]:
        """Return the results of `fn` for other tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if t is _TENSOR else t for t in self.leaves]
        flat, self.structure = pytrees.flatten(
            self.fn(*(leaves if self.spec is None else pytrees.unflatten(leaves, self.spec)))
        )
        slot = slot_of_backend(state.now.capture.backend)  # type: ignore[union-attr]
        return [t if isinstance(t, Tensor) else torch.tensor(t, device=slot.device) for t in flat]

    def _call(self, arrays: Sequence[Array]) -> tuple[list[Tensor], list[Tensor], int]:
        """Return (results, tensors around the arrays, the number of autograd's first node)."""
        capture = current()
        assert capture is not None
        outside = [(cell, cell.array) for cell in (*capture.survivors(), *(t.cell for t in capture.touched))]
        known = len(capture.touched)
        slot = slot_of_backend(capture.backend)
        inputs = [from_array(a, slot, dtype) for a, dtype in zip(arrays, self._dtypes, strict=True)]
        if torch.is_grad_enabled():
            inputs = [t.requires_grad_() if differentiable(t) else t for t in inputs]
        first_node = torch.autograd._get_sequence_nr()
        values, capture.values = capture.values, None  # are not known outside
        failures, capture.failures = capture.failures, None
        host, may_write = capture.host, capture.host is not None and capture.host.may_write
        try:
            if host is not None:
                host.may_write = False
            flat = self.flat(*inputs)
        finally:
            capture.values, capture.failures = values, failures
            if host is not None:
                host.may_write = may_write
        self.result_dtypes = [t.dtype for t in flat]
        self.described = ", ".join(f"{t.dtype} {tuple(t.shape)}" for t in flat)
        outside += [(t.cell, t.stand_in) for t in capture.touched[known:]]
        written_cells = [cell for cell, array in outside if cell.array is not array]
        for cell, array in outside:
            cell.array = array
        if written_cells:
            raise TracedValueError("a branch or a loop body writes a tensor from outside: return the new value instead")
        if any(t.device.type != TYPE for t in flat):
            raise CompilationError("a branch or a loop body returns a tensor that is not on the device of its operands")
        return flat, inputs, first_node


_TENSOR = object()


def pulled_back(
    call: Callable[..., Sequence[Tensor]],
    operands: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    outer: Sequence[Tensor],
) -> list[Tensor]:
    """Return the cotangents of the operands that have one, and of tensors from outside, out of those of the results of
    `call` that have one. A function of operands and cotangents that can be differentiated where gradients are
    enabled."""
    create_graph = torch.is_grad_enabled()
    inputs = [t.detach().requires_grad_(differentiable(t)) for t in operands] if not create_graph else list(operands)
    with torch.enable_grad():
        smooth = [t for t in call(*inputs) if differentiable(t)]
    ends = [*(t for t in inputs if differentiable(t)), *outer]
    pairs = [(t, c) for t, c in zip(smooth, cotangents, strict=True) if t.requires_grad]
    if not pairs:
        return [torch.zeros_like(t) for t in ends]
    roots, dy = zip(*pairs, strict=True)
    slopes = torch.autograd.grad(roots, ends, dy, allow_unused=True, create_graph=create_graph)
    # `materialize_grads` makes zeros that require gradients, which look like tensors from outside
    return [torch.zeros_like(t, requires_grad=False) if g is None else g for t, g in zip(ends, slopes, strict=True)]


class _Differentiated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, backward: Any, saved: list[Tensor], results: list[Tensor], *ends: Tensor) -> Any:
        ctx.run = backward
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*(t for t in results if not differentiable(t)))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, None, None, *ctx.run(ctx.saved_tensors, gradients)


def with_history(
    results: list[Tensor],
    saved: Sequence[Tensor],
    ends: Sequence[Tensor],
    backward: Callable[[Sequence[Tensor], Sequence[Tensor | None]], list[Tensor]],
) -> list[Tensor]:
    """Return the results with a history of one autograd node, whose backward pass is `backward(saved, cotangents)`; the
    cotangent of a result that is not differentiated is None. Saved tensors keep their histories; results among them get
    this one."""
    capture = current()
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in ends):
        return results
    assert capture is not None
    capture.replays = True
    return list(_Differentiated.apply(backward, list(saved), results, *ends))
