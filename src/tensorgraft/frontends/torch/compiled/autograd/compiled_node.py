"""The compiled function as one node of autograd's graph, also for cotangents that a `vmap` has batched."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.compiled.autograd.saved_tensors import Saved
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub.array import Array

Tensor = torch.Tensor
_functorch: Any = torch._C._functorch


class CompiledNode(torch.autograd.Function):
    """The compiled function as one node of autograd's graph; `tape` computes its gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        tape: Any,
        residuals: list[Tensor],
        held: Sequence[Saved],
        results: list[Tensor],
        *ends: Tensor,
    ) -> Any:
        ctx.tape, ctx.retained, ctx.held = tape, (), held
        ctx.ends = [t if t.is_leaf else _edge_of(t) for t in ends]
        ctx.set_materialize_grads(False)
        ctx.saves = tape.saves or bool(residuals)
        # of numbers nothing is a residual, and a backward pass releases them nevertheless
        ctx.save_for_backward(*(residuals or ([torch.empty(0, device="cpu")] if tape.saves else [])))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        # what has saved nothing can be gone through again
        saved = ctx.saved_tensors if ctx.saves else ()
        residuals = [cell_of(t).array for t in saved if t.device.type == TYPE]
        for one in ctx.held:
            one.put(residuals)
        n = len(ctx.ends)
        if all(g is None for g in gradients):
            return (None,) * (4 + n)
        level = max(map(_level, present(gradients)))
        if level < 0:
            slopes = _slopes(ctx, residuals, gradients)
            for (ref, held), slope in zip(ctx.retained, slopes[n:], strict=False):
                if slope is not None and (t := ref()) is not None:
                    before = held.pop() if held else t.grad
                    t.grad = slope.clone() if before is None else before + slope
        else:
            slopes = _batched_slopes(ctx, residuals, gradients, level)
        return None, None, None, None, *slopes[:n]


def retaining(one: Tensor, result: Tensor | None) -> tuple[weakref.ref[Tensor], list[Tensor | None]]:
    """Let the result that a traced tensor has become retain its gradient; return what retains it, and a list for the
    gradient that this has before a backward pass.

    Outside it retains what comes from there. Where hooks of the traced tensor come before, that does not count.
    """
    held: list[Tensor | None] = []
    ref = weakref.ref(one if result is None else result)
    if result is not None:
        if one._backward_hooks:
            result.register_hook(lambda _: held.append(this.grad) if (this := ref()) is not None else None)
        result.retain_grad()
    return ref, held


def _slopes(
    ctx: Any, residuals: Sequence[Array], gradients: Sequence[Tensor | None], batched: tuple[bool, ...] = ()
) -> list[Tensor | None]:
    gradients = [g if g is None or g.layout is torch.strided else g.to_dense() for g in gradients]
    backend = cell_of(present(gradients)[0]).backend
    if torch.is_grad_enabled():
        ends = [t if t.is_leaf else t.grad_fn.saved_tensors[0] for t in ctx.ends]
        return ctx.tape.differentiable_gradients(residuals, gradients, backend, ends, ctx.held)
    return ctx.tape.gradients(residuals, gradients, backend, batched)


def _batched_slopes(
    ctx: Any, residuals: Sequence[Array], gradients: Sequence[Tensor | None], level: int
) -> list[Tensor | None]:
    """Compute the gradients for cotangents that a `vmap` has batched: in one program, or row by row where they are
    batched again or are to be differentiated."""
    inner: list[Tensor | None] = list(gradients)
    batched = []
    for i, g in enumerate(gradients):
        if g is not None:
            batched.append(_level(g) == level)
            inner[i] = _unwrapped(g, level) if batched[-1] else g
    if not torch.is_grad_enabled() and all(_level(g) < 0 for g in present(inner)):
        whole = _slopes(ctx, residuals, inner, tuple(batched))
    else:
        which = iter(batched)
        apart = [None if g is None else g.unbind(0) if next(which) else g for g in inner]
        length = next(len(g) for g in apart if isinstance(g, tuple))
        rows = []
        for k in range(length):
            row = [g[k] if isinstance(g, tuple) else g for g in apart]
            nested = max(map(_level, present(row)))
            rows.append(_slopes(ctx, residuals, row) if nested < 0 else _batched_slopes(ctx, residuals, row, nested))
        whole = [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    return [None if t is None else _wrapped(t, level) for t in whole]


_LEGACY = 1 << 30  # stands for the level of autograd's own `vmap`, for `is_grads_batched`, which does not nest


def _level(t: Tensor) -> int:
    """Return the level of the `vmap` that has batched a tensor, -1 for none."""
    return _LEGACY if _functorch.is_legacy_batchedtensor(t) else _functorch.maybe_get_level(t)


def _unwrapped(t: Tensor, level: int) -> Tensor:
    """Return the tensor behind a batched one, the batch in front."""
    if level == _LEGACY:
        return torch._remove_batch_dim(t, _legacy_level(), 0, 0)
    return torch.func.debug_unwrap(t, recurse=False).movedim(_functorch.maybe_get_bdim(t), 0)


def _wrapped(t: Tensor, level: int) -> Tensor:
    if level == _LEGACY:
        return torch._add_batch_dim(t, 0, _legacy_level())
    return _functorch._add_batch_dim(t, 0, level)


def _legacy_level() -> int:
    try:
        return torch._C._vmapmode_increment_nesting() - 1
    finally:
        torch._C._vmapmode_decrement_nesting()


def present(cotangents: Sequence[Any]) -> list[Any]:
    return [c for c in cotangents if c is not None]


class _Edge(torch.autograd.Function):
    """A node that saves a tensor."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return torch.empty(0)


def _edge_of(t: Tensor) -> Any:
    """The place of a tensor in autograd's graph, without its values: what a node behind it has for `saved_tensors`."""
    with torch.enable_grad():
        end: Any = _Edge.apply(t)
    like = functools.partial(torch.empty, (), dtype=t.dtype, device=t.device)
    end.grad_fn._raw_saved_tensors[0].register_hooks(lambda t: t.shape, lambda shape: like().expand(shape))
    return end
