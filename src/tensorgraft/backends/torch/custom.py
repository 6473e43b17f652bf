"""Functions with derivatives by rule, for `torch.func` and autograd. See `hub.transforms.Transforms.custom_vjp`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from tensorgraft.hub.array import NativeArray as Array


def custom_function(xp: Any, ruled: Any, fn: Any, backward: Any, forward: Any) -> Callable[..., tuple[Array, ...]]:
    """PyTorch's cotangents are conjugated, the hub's are transposed; tangents are the same. `ruled` is the backend that
    rules are called with."""

    class Custom(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*arrays: Array) -> tuple[Array, ...]:
            # results have memory of their own
            return tuple([r.clone() if any(r is x for x in arrays) else r for r in fn(xp, *arrays)])

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Array, ...], output: tuple[Array, ...]) -> None:
            ctx.count = len(inputs)
            ctx.mark_non_differentiable(*[r for r in output if not _is_inexact(r)])
            ctx.save_for_backward(*inputs, *output)
            ctx.save_for_forward(*inputs, *output)

        @staticmethod
        def backward(ctx: Any, *cotangents: Array | None) -> Any:
            arguments, results = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
            seeds = [_or_zeros(g, r).conj().resolve_conj() for g, r in zip(cotangents, results, strict=True)]
            gradients = backward(ruled, arguments, results, seeds)
            return tuple(
                [g.conj().resolve_conj() if g is not None and _is_inexact(x) else None
                 for g, x in zip(gradients, arguments, strict=True)]
            )  # fmt: skip

        @staticmethod
        def jvp(ctx: Any, *tangents: Array | None) -> Any:
            # without the tangents that the rule is about
            saved = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            arguments, results = saved[: ctx.count], saved[ctx.count :]
            moving = [_or_zeros(t, x) for t, x in zip(tangents, arguments, strict=True)]
            moved = forward(ruled, arguments, results, moving)
            return tuple([t if _is_inexact(r) else None for t, r in zip(moved, results, strict=True)])

    def call(*arrays: Array) -> tuple[Array, ...]:
        outputs: Sequence[Array] = Custom.apply(*arrays)
        return tuple(outputs)

    return call


def _or_zeros(g: Array | None, x: Array) -> Array:
    return torch.zeros_like(x) if g is None or not _is_inexact(x) else g


def _is_inexact(x: Array) -> bool:
    return x.is_floating_point() or x.is_complex()
