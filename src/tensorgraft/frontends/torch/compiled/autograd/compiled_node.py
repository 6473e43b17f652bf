"""The compiled function as one node of autograd's graph, also for cotangents that a `vmap` has batched."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

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
        saved_objects: Sequence[Saved],
        results: list[Tensor],
        *ends: Tensor,
    ) -> Any:
        ctx.tape, ctx.retained, ctx.held = tape, (), saved_objects
        ctx.ends = [t if t.is_leaf else _edge_of(t) for t in ends]
        ctx.set_materialize_grads(False)
        ctx.saves = tape.saves or bool(residuals)
        # if only Python numbers are saved, an empty tensor lets PyTorch detect that a backward pass has released them
        ctx.save_for_backward(*(residuals or ([torch.empty(0, device="cpu")] if tape.saves else [])))
        ctx.kept, ctx.spent = [] if tape.parts is None else [*residuals], set[int]()
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        saved = _saved(ctx, gradients)
        residuals = [cell_of(t).array for t in saved if t.device.type == TYPE]
        for saved_object in ctx.held:
            saved_object.put(residuals)
        n = len(ctx.ends)
        if all(g is None for g in gradients):
            return (None,) * (4 + n)
        level = max(map(_level, present(gradients)))
        if level < 0:
            end_gradients = _gradients(ctx, residuals, gradients)
            for (ref, previous), slope in zip(ctx.retained, end_gradients[n:], strict=False):
                if slope is not None and (t := ref()) is not None:
                    before = previous.pop() if previous else t.grad
                    t.grad = slope.clone() if before is None else before + slope
        else:
            end_gradients = _batched_gradients(ctx, residuals, gradients, level)
        return None, None, None, None, *end_gradients[:n]


class _Released(NamedTuple):
    """The metadata of a saved tensor that a backward pass through its part of the graph has released."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def zeros(self) -> Tensor:
        """Return zeros in its place, for a backward program that does not read it."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def _saved(ctx: Any, gradients: Sequence[Tensor | None]) -> Sequence[Tensor]:
    """Return the saved tensors. Raises PyTorch's RuntimeError if a backward pass has released them.

    A graph without saved tensors may be run again, and one pass may go through each of its parts."""
    parts = ctx.tape.parts
    if not ctx.saves:
        return ()
    if parts is None:
        return ctx.saved_tensors
    now = {part for part, g in zip(parts.of_roots, gradients, strict=True) if g is not None} & parts.saving
    try:
        saved = ctx.saved_tensors
    except RuntimeError:
        if now & ctx.spent:
            raise
        saved = [t.zeros() if isinstance(t, _Released) else t for t in ctx.kept]
    ctx.spent |= now
    for key in (key for part in now for key in parts.residuals[part]):
        if isinstance(t := ctx.kept[key], Tensor):
            ctx.kept[key] = _Released(t.shape, t.dtype, t.device)
    return saved


def retaining(tensor: Tensor, result: Tensor | None) -> tuple[weakref.ref[Tensor], list[Tensor | None]]:
    """Let the result made from a traced tensor retain its gradient. Returns (a reference to the tensor that retains
    it, a list for its gradient before a backward pass).

    The result itself retains the gradient from outside, which is replaced if hooks of the traced tensor come first.
    """
    previous: list[Tensor | None] = []
    ref = weakref.ref(tensor if result is None else result)
    if result is not None:
        if tensor._backward_hooks:
            result.register_hook(lambda _: previous.append(alive.grad) if (alive := ref()) is not None else None)
        result.retain_grad()
    return ref, previous


def _gradients(
    ctx: Any, residuals: Sequence[Array], gradients: Sequence[Tensor | None], batched: tuple[bool, ...] = ()
) -> list[Tensor | None]:
    """Compute the gradients of the ends from those of the results; as differentiable tensors if gradients are on."""
    gradients = [g if g is None or g.layout is torch.strided else g.to_dense() for g in gradients]
    backend = cell_of(present(gradients)[0]).backend
    if torch.is_grad_enabled():
        ends = [t if t.is_leaf else t.grad_fn.saved_tensors[0] for t in ctx.ends]
        return ctx.tape.differentiable_gradients(residuals, gradients, backend, ends, ctx.held)
    return ctx.tape.gradients(residuals, gradients, backend, batched)


def _batched_gradients(
    ctx: Any, residuals: Sequence[Array], gradients: Sequence[Tensor | None], level: int
) -> list[Tensor | None]:
    """Compute the gradients for cotangents batched by a `vmap`: in one program, or row by row if they are batched
    twice or have to be differentiated."""
    inner: list[Tensor | None] = list(gradients)
    batched = []
    for i, g in enumerate(gradients):
        if g is not None:
            batched.append(_level(g) == level)
            inner[i] = _unwrapped(g, level) if batched[-1] else g
    if not torch.is_grad_enabled() and all(_level(g) < 0 for g in present(inner)):
        all_gradients = _gradients(ctx, residuals, inner, tuple(batched))
    else:
        is_batched = iter(batched)
        rows_of = [None if g is None else g.unbind(0) if next(is_batched) else g for g in inner]
        length = next(len(g) for g in rows_of if isinstance(g, tuple))
        rows = []
        for k in range(length):
            row = [g[k] if isinstance(g, tuple) else g for g in rows_of]
            nested = max(map(_level, present(row)))
            rows.append(
                _gradients(ctx, residuals, row) if nested < 0 else _batched_gradients(ctx, residuals, row, nested)
            )
        all_gradients = [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    return [None if t is None else _wrapped(t, level) for t in all_gradients]


_LEGACY = 1 << 30  # represents the level of the older `vmap` that autograd uses for `is_grads_batched`: it cannot nest


def _level(t: Tensor) -> int:
    """Return the level of the `vmap` that batched a tensor, -1 for none."""
    return _LEGACY if _functorch.is_legacy_batchedtensor(t) else _functorch.maybe_get_level(t)


def _unwrapped(t: Tensor, level: int) -> Tensor:
    """Return the tensor inside a batched one, with the batch as its first axis."""
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
    """An autograd node that saves a tensor."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return torch.empty(0)


def _edge_of(t: Tensor) -> Any:
    """Return an edge to the position of a tensor in autograd's graph, without keeping its values."""
    with torch.enable_grad():
        end: Any = _Edge.apply(t)
    like = functools.partial(torch.empty, (), dtype=t.dtype, device=t.device)
    end.grad_fn._raw_saved_tensors[0].register_hooks(lambda t: t.shape, lambda shape: like().expand(shape))
    return end
