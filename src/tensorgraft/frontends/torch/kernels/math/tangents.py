"""Forward-mode derivatives that PyTorch has as operators of their own."""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.kernels.common import wide
from tensorgraft.hub.array import Array


def _halves(xp: Any, x: Array, dim: int) -> tuple[Array, Array]:
    x, n = wide(xp, x), xp.shape(x)[dim] // 2
    return xp.take_slice(x, dim, 0, n), xp.take_slice(x, dim, n, 2 * n)


@kernel("glu_jvp", meta=lambda glu, x, dx, dim: torch.empty_like(glu))
def _glu_jvp(xp: Any, glu: Array, x: Array, dx: Array, dim: int) -> Array:
    (_, b), (da, db) = _halves(xp, x, dim), _halves(xp, dx, dim)
    gate = xp.sigmoid(b)
    return xp.add(xp.multiply(da, gate), xp.multiply(wide(xp, glu), xp.subtract(db, xp.multiply(gate, db))))


@kernel("glu_backward_jvp", meta=lambda grad_x, *rest: torch.empty_like(grad_x))
def _glu_backward_jvp(
    xp: Any, grad_x: Array, grad_glu: Array, x: Array, dgrad_glu: Array, dx: Array, dim: int
) -> Array:
    """Differentiate (g s, g s a (1 - s)), s the sigmoid of the second half b of `x`, along `dx` and `dgrad_glu`."""
    (a, b), (da, db), (grad_a, _) = (_halves(xp, v, dim) for v in (x, dx, grad_x))
    s = xp.sigmoid(b)
    rest = xp.subtract(1, s)
    slope = xp.multiply(rest, db)  # of log s
    first = xp.add(xp.multiply(wide(xp, dgrad_glu), s), xp.multiply(grad_a, slope))
    inner = xp.subtract(xp.multiply(da, rest), xp.multiply(xp.multiply(a, s), slope))
    second = xp.add(xp.multiply(first, xp.multiply(a, rest)), xp.multiply(grad_a, inner))
    return xp.concat([first, second], dim)
