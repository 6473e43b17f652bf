"""Calls of PyTorch that take a number beside their operands (`alpha=`, `value=`, a rate), given one that a traced
function has read of a tensor: autograd would keep the number.

They are composed of operators that have it as an operand. Each gives NotImplemented where PyTorch's own call will do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from tensorgraft.frontends.torch.compiled.host.scalars import beside, is_scalar, raising
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.promotion import PROMOTION, elementwise_dtypes
from tensorgraft.frontends.torch.core.scalars import tensor_of

Tensor = torch.Tensor


def _beside(x: Any, number: Any) -> Any:
    """Return a traced number as an operand in a call with `x`, anything else unchanged."""
    return beside(number, [x]) if is_scalar(number) and isinstance(x, Tensor) else number


def _add(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    return x + _beside(x, other * _beside(other, alpha))


def _sub(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    return x - _beside(x, other * _beside(other, alpha))


def _rsub(x: Any, other: Any, *, alpha: Any = 1) -> Any:
    return _beside(x, other) - x * _beside(x, alpha)


def _addcmul(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    return x + _beside(tensor1, value) * tensor1 * tensor2


def _addcdiv(x: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Tensor:
    return x + _beside(tensor1, value) * tensor1 / tensor2


def _lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    return torch.lerp(x, end, tensor_of(weight).to(x.dtype))


def _composed(rule: Callable[..., Any], writes: bool) -> Callable[..., Any]:
    """Return the call that a rule computes: 16-bit floats in float32, rounded once."""

    def call(calls: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        operands = [x, *args, *(kwargs[name] for name in _OPERANDS if name in kwargs)]
        numbers = [a for a in (*operands, *kwargs.values()) if is_scalar(a)]
        tensors = [a for a in operands if isinstance(a, Tensor)]
        if not numbers or kwargs.keys() - {*_OPERANDS, *_FACTORS} or any(t.device.type != TYPE for t in tensors):
            return NotImplemented
        if not isinstance(x, Tensor) or (rule is _lerp and len({t.dtype for t in tensors}) > 1):
            return NotImplemented
        plain = [(1.0 if isinstance(a, float) else 1) if is_scalar(a) else a for a in operands]
        _, wide, dtype = elementwise_dtypes(plain, PROMOTION.DEFAULT)
        inexact = wide.is_floating_point or wide.is_complex
        if wide is torch.bool or not (inexact or all(isinstance(a, int) for a in numbers)):
            return NotImplemented
        if writes and not torch.can_cast(dtype, x.dtype):
            return NotImplemented
        changed = {k: v.to(wide) if isinstance(v, Tensor) else v for k, v in kwargs.items()}
        out = rule(*(a.to(wide) if isinstance(a, Tensor) else a for a in (x, *args)), **changed).to(dtype)
        return x.copy_(out) if writes else out

    return call


def _dropout(calls: Any, x: Any, p: Any = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not is_scalar(p) or not isinstance(x, Tensor) or x.device.type != TYPE or inplace:
        return NotImplemented
    rate = tensor_of(p).double()
    raising(~((rate >= 0) & (rate <= 1)), rate, ValueError, "dropout probability has to be between 0 and 1")
    if not training:
        return x
    keeps = torch.rand(x.shape, device=x.device, dtype=torch.float32) >= rate
    scale = torch.where(rate < 1, 1 / (1 - rate), torch.zeros_like(rate))  # its derivative is finite, too
    return torch.where(keeps, x * (scale if x.ndim else scale.to(x.dtype)), torch.zeros_like(x))


_OPERANDS = ("other", "tensor1", "tensor2", "end", "weight")
_FACTORS = ("alpha", "value")
_RULES: dict[str, Callable[..., Any]] = {
    "add": _add, "sub": _sub, "subtract": _sub, "rsub": _rsub,
    "addcmul": _addcmul, "addcdiv": _addcdiv, "lerp": _lerp,
}  # fmt: skip
CALLS: dict[Any, Callable[..., Any]] = {
    F.dropout: _dropout,
    **{getattr(torch, name): _composed(rule, False) for name, rule in _RULES.items()},
    **{getattr(Tensor, name): _composed(rule, False) for name, rule in _RULES.items() if hasattr(Tensor, name)},
    **{f: _composed(rule, True) for name, rule in _RULES.items() if (f := getattr(Tensor, f"{name}_", None))},
}
