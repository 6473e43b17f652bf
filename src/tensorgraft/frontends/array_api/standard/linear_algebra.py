"""Products of the standard's linear algebra functions."""

from __future__ import annotations

from collections.abc import Sequence

from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import arrays_of, axis_of, broadcast_shape, converted, fail
from tensorgraft.frontends.array_api.standard.manipulation import matrix_transpose


def matmul(x1: Array, x2: Array, /) -> Array:
    """Products of (batches of) matrices; arrays of one dimension are vectors."""
    xp, dtype = arrays_of("matmul", x1, x2)
    operands = (x1, x2)
    if not x1.ndim or not x2.ndim:
        fail("matmul", operands, "arrays of at least one dimension")
    if x1.shape[-1] != x2.shape[-2 if x2.ndim > 1 else 0]:
        fail("matmul", operands, "the last axis of the first as long as the last but one of the second")
    if x1.ndim > 1 and x2.ndim > 1:
        broadcast_shape("matmul", operands, [x.shape[:-2] for x in operands])
    with xp.scope():
        if x2.ndim == 2 and not (xp.mutable or xp.compound):
            a, left = (x1.T, 0) if _is_turned(x1) else (x1, x1.ndim - 1)
            b, right = (x2.T, 1) if _is_turned(x2) else (x2, 0)
            return new_array(xp.dot_general(converted(xp, a, dtype), converted(xp, b, dtype), ((left,), (right,))), xp)
        return new_array(xp.matmul(converted(xp, x1, dtype), converted(xp, x2, dtype)), xp)


def _is_turned(x: Array) -> bool:
    """Return True for a transposed view of rows, which can be multiplied without a copy."""
    return (
        x.ndim == 2 and x._geometry is not None and x.shape[0] > 1 and x._geometry.strides[0] < x._geometry.strides[1]
    )


def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Return the product summed over pairs of axes: the last `axes` of the first with the first of the second, or those
    named."""
    xp, dtype = arrays_of("tensordot", x1, x2)
    operands = (x1, x2)
    if isinstance(axes, int):
        if not 0 <= axes <= min(x1.ndim, x2.ndim):
            fail("tensordot", operands, f"no more axes than each array has, got axes={axes}")
        left, right = tuple(range(x1.ndim - axes, x1.ndim)), tuple(range(axes))
    else:
        left, right = (
            tuple(axis_of("tensordot", x, a) for a in named) for x, named in zip(operands, axes, strict=True)
        )
    if len(left) != len(right) or any(x1.shape[a] != x2.shape[b] for a, b in zip(left, right, strict=False)):
        fail("tensordot", operands, f"as many axes of each, of equal extents, got axes={axes}")
    with xp.scope():
        return new_array(xp.dot_general(converted(xp, x1, dtype), converted(xp, x2, dtype), (left, right)), xp)


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Products of vectors along `axis` (counted from the end), the first one conjugate; other axes broadcast."""
    xp, dtype = arrays_of("vecdot", x1, x2)
    operands = (x1, x2)
    at = axis_of("vecdot", x1, axis) - x1.ndim, axis_of("vecdot", x2, axis) - x2.ndim
    if axis >= 0 and x1.ndim != x2.ndim:
        fail("vecdot", operands, f"an axis counted from the end, got {axis}")
    if x1.shape[at[0]] != x2.shape[at[1]]:
        fail("vecdot", operands, f"axis {axis} of both to be equally long")
    broadcast_shape("vecdot", operands, [x.shape for x in operands])
    with xp.scope():
        a, b = converted(xp, x1, dtype), converted(xp, x2, dtype)
        if dtype.kind == "c":
            a = xp.conj(a)
        product = xp.multiply(a, b)
        return new_array(xp.sum(product, axis=xp.ndim(product) + at[0]), xp)


__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]
