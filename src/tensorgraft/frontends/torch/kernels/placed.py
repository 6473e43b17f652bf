"""`constrain`: a tensor whose pieces lie where a placement says, as an operator of the device with derivatives."""

from __future__ import annotations

from typing import Any

import torch
from torch.library import Library

from tensorgraft.frontends.torch.core.operator import Operator
from tensorgraft.frontends.torch.core.spec import Spec
from tensorgraft.frontends.torch.dispatch.entry import entry
from tensorgraft.hub.array import Array
from tensorgraft.hub.placement import Placement

Tensor = torch.Tensor

_placements: dict[Placement, int] = {}  # an operator takes numbers
_by_number: list[Placement] = []


def _number(placement: Placement) -> int:
    number = _placements.setdefault(placement, len(_by_number))
    if number == len(_by_number):
        _by_number.append(placement)
    return number


def _constrain(xp: Any, x: Array, placement: int) -> Array:
    out = xp.constrain(x, _by_number[placement])
    return xp.copy(x) if out is x else out  # two storages with one array would give its memory away twice


_library = Library("graft", "FRAGMENT")
_library.define("constrain(Tensor self, int placement) -> Tensor")
_op = torch.ops.graft.constrain.default
_library.impl("constrain", lambda x, placement: torch.empty(x.size(), dtype=x.dtype, device=x.device), "Meta")
_library.impl("constrain", entry(Operator(_op, Spec(_constrain, uncompiled=True))), "PrivateUse1")


class _Constrain(torch.autograd.Function):
    """Linear, and its own transpose: gradients and tangents lie as the tensor does."""

    @staticmethod
    def forward(x: Tensor, number: int) -> Tensor:
        return _op(x, number)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.number = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Constrain.apply(gradient, ctx.number), None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _Constrain.apply(tangent, ctx.number)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, None], x: Tensor, number: int) -> tuple[Tensor, int | None]:
        axis = in_dims[0]
        if axis is None:
            return _Constrain.apply(x, number), None
        constraint = _by_number[number]
        free = tuple(d + (d >= axis) for d in constraint.free)
        batched = Placement(constraint.mesh, (*constraint.spec[:axis], (), *constraint.spec[axis:]), free)
        return _Constrain.apply(x, _number(batched)), axis


def constrain(x: Tensor, placement: Placement) -> Tensor:
    """See `tg.parallel.constrain`; `x` is on the device of the placement's mesh."""
    return _Constrain.apply(x, _number(placement))
