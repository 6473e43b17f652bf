"""Forward-mode derivatives that are operators of PyTorch."""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import wide
from tensorgraft.hub.value import AnyArray, Value, with_operators


def _halves(xp: Any, x: AnyArray, dim: int) -> tuple[AnyArray, AnyArray]:
    x, n = wide(xp, x), xp.shape(x)[dim] // 2
    return xp.take_slice(x, dim, 0, n), xp.take_slice(x, dim, n, 2 * n)


@kernel("glu_jvp", meta=lambda glu, x, dx, dim: torch.empty_like(glu))
@with_operators
def _glu_jvp(xp: Any, glu: Value, x: Value, dx: Value, dim: int) -> Value:
    (_, b), (da, db) = _halves(xp, x, dim), _halves(xp, dx, dim)
    gate = xp.sigmoid(b)
    return da * gate + wide(xp, glu) * (db - gate * db)


@kernel("glu_backward_jvp", meta=lambda grad_x, *rest: torch.empty_like(grad_x))
@with_operators
def _glu_backward_jvp(
    xp: Any, grad_x: Value, grad_glu: Value, x: Value, dgrad_glu: Value, dx: Value, dim: int
) -> Value:
    """Differentiate (g s, g s a (1 - s)), s the sigmoid of the second half b of `x`, along `dx` and `dgrad_glu`."""
    (a, b), (da, db), (grad_a, _) = (_halves(xp, v, dim) for v in (x, dx, grad_x))
    s = xp.sigmoid(b)
    rest = 1 - s
    slope = rest * db  # the derivative of log s
    first = wide(xp, dgrad_glu) * s + grad_a * slope
    inner = da * rest - a * s * slope
    second = first * (a * rest) + grad_a * inner
    return xp.concat([first, second], dim)
