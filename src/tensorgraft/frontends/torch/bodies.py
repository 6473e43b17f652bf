"""Branches and loop bodies: functions of tensors that a backend traces inside of its own control flow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.tape import nodes
from tensorgraft.frontends.torch.tensors import from_array, to_array

Tensor = torch.Tensor
Array = Any


def differentiable(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


class Body:
    """`fn` of operands, some of which are tensors on the device. For an active capture."""

    def __init__(self, fn: Callable[..., Any], leaves: Sequence[Any], spec: TreeSpec | None) -> None:
        self.fn, self.leaves, self.spec = fn, list(leaves), spec
        self.captured: dict[int, Tensor] = {}  # tensors from outside that have gradients, by identity
        self.structure: TreeSpec | None = None  # of the results
        self.described = ""

    def values(self, arrays: Sequence[Array]) -> list[Array]:
        """The results. Notes what has gradients outside."""
        flat, inputs, first_node = self._call(arrays)
        inside = {id(t) for t in inputs}
        for node in nodes([t for t in flat if t.grad_fn is not None]):
            variable = getattr(node, "variable", None)
            if variable is not None:
                if id(variable) not in inside:
                    self.captured[id(variable)] = variable
            elif node._sequence_nr() < first_node:
                raise RuntimeError(
                    f"a branch or a loop body uses a tensor from outside that has a history ({node.name()}): give it as"
                    " an operand"
                )
        return [to_array(t.detach()) for t in flat]

    def pulled_back(self, arrays: Sequence[Array], cotangents: Sequence[Array], outer: Sequence[Tensor]) -> list[Array]:
        """The cotangents of the operands that have one, and of tensors from outside, out of those of the results that
        have one."""
        with torch.enable_grad():
            flat, inputs, _ = self._call(arrays)
        smooth = [t for t in flat if differentiable(t)]
        ends = [*(t for t in inputs if t.requires_grad), *outer]
        slot = slot_of_backend(state.now.capture.backend)  # type: ignore[union-attr]
        given = [(t, from_array(c, slot)) for t, c in zip(smooth, cotangents, strict=True) if t.requires_grad]
        if not given:
            return [to_array(torch.zeros_like(t)) for t in ends]
        roots, dy = zip(*given, strict=True)
        found = torch.autograd.grad(roots, ends, dy, allow_unused=True, materialize_grads=True)
        return [to_array(g) for g in found]

    def _call(self, arrays: Sequence[Array]) -> tuple[list[Tensor], list[Tensor], int]:
        """(results, tensors around the arrays, the number of autograd's first node)."""
        capture = state.now.capture
        assert capture is not None
        outside = [(cell, cell.array) for cell in (*capture.survivors(), *(t.cell for t in capture.touched))]
        known = len(capture.touched)
        slot = slot_of_backend(capture.backend)
        inputs = [from_array(a, slot) for a in arrays]
        if torch.is_grad_enabled():
            inputs = [t.requires_grad_() if differentiable(t) else t for t in inputs]
        rest = iter(inputs)
        given = [next(rest) if isinstance(t, Tensor) else t for t in self.leaves]
        first_node = torch.autograd._get_sequence_nr()
        out = self.fn(*(given if self.spec is None else tree_unflatten(given, self.spec)))
        flat, self.structure = tree_flatten(out)
        flat = [t if isinstance(t, Tensor) else torch.tensor(t, device=slot.device) for t in flat]
        self.described = ", ".join(f"{t.dtype} {tuple(t.shape)}" for t in flat)
        outside += [(t.cell, t.stand_in) for t in capture.touched[known:]]
        written = [cell for cell, array in outside if cell.array is not array]
        for cell, array in outside:
            cell.array = array
        if written:
            raise TracedValueError("a branch or a loop body writes a tensor from outside: return the new value instead")
        if any(t.device.type != TYPE for t in flat):
            raise RuntimeError("a branch or a loop body returns a tensor that is not on the device of its operands")
        return flat, inputs, first_node


class _Differentiated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, backward: Any, saved: list[Tensor], results: list[Tensor], *ends: Tensor) -> Any:
        ctx.run = backward
        ctx.smooth = [differentiable(t) for t in results]
        ctx.save_for_backward(*saved)
        ctx.mark_non_differentiable(*(t for t in results if not differentiable(t)))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("the backward pass of control flow cannot be differentiated again (create_graph=True)")
        given = [g for g, smooth in zip(gradients, ctx.smooth, strict=True) if smooth]
        return None, None, None, *ctx.run(ctx.saved_tensors, given)


def with_history(
    results: list[Tensor],
    saved: Sequence[Tensor],
    ends: Sequence[Tensor],
    backward: Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor]],
) -> list[Tensor]:
    """Results as one node of autograd's graph, whose backward pass is `backward(saved, cotangents)`."""
    if not torch.is_grad_enabled() or not any(t.requires_grad for t in ends):
        return results
    return list(_Differentiated.apply(backward, [t.detach() for t in saved], results, *ends))
