"""Utility functions of the standard."""

from __future__ import annotations

import operator

from tensorgraft.frontends.array_api.core import indexing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import Axis, arrays_of, axes_of, axis_of, fail, operand
from tensorgraft.frontends.array_api.standard import elementwise
from tensorgraft.frontends.array_api.standard.manipulation import concat
from tensorgraft.hub import dtypes


def _as_bools(name: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    xp = operand(name, x)
    axes = axes_of(name, x, axis)
    with xp.scope():
        return new_array(
            getattr(xp, name)(xp.astype(x._value(), dtypes.bool_), axis=axes, keepdims=bool(keepdims)), xp, x
        )


def all(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether every element is true: not equal to zero."""
    return _as_bools("all", x, axis, keepdims)


def any(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return whether some element is true: not equal to zero."""
    return _as_bools("any", x, axis, keepdims)


def diff(
    x: Array, /, *, axis: int = -1, n: int = 1, prepend: Array | None = None, append: Array | None = None
) -> Array:
    """Return differences of neighbours along `axis`, `n` times; `prepend` and `append` are joined to the array
    before."""
    parts = [v for v in (prepend, x, append) if v is not None]
    arrays_of("diff", *parts, kinds="ifc")
    at = axis_of("diff", x, axis)
    n = operator.index(n)
    if n < 0:
        fail("diff", (x,), f"n not to be negative, got {n}")
    out = concat(parts, axis=at) if len(parts) > 1 else x
    before = (slice(None),) * at
    for _ in range(n):
        upper, sooner = (indexing.get(out, (*before, s)) for s in (slice(1, None), slice(None, -1)))
        out = elementwise.subtract(upper, sooner)  # type: ignore[attr-defined]
    return out if out is not x else elementwise.positive(x)  # type: ignore[attr-defined]


__all__ = ["all", "any", "diff"]
