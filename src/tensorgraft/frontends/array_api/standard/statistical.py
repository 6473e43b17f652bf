"""Statistical functions of the standard."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import Axis, accepted, axes_of, axis_of, fail, operand, orderable
from tensorgraft.frontends.array_api.core.promotion import checked, kind
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend


def summed_dtype(dtype: np.dtype) -> np.dtype:
    """Return the dtype of sums and products: truths, and integers narrower than the default dtype, become it, with
    their sign."""
    if kind(dtype) not in "bi":
        return dtype
    return dtypes.uint64 if dtype.kind == "u" else dtypes.int64


def _total(name: str, x: Array, axis: Axis, dtype: Any, keepdims: bool) -> Array:
    xp = operand(name, x)
    axes = axes_of(name, x, axis)
    resolved = summed_dtype(x.dtype) if dtype is None else checked(dtype)
    with xp.scope():
        return new_array(getattr(xp, name)(xp.astype(x._value(), resolved), axis=axes, keepdims=bool(keepdims)), xp, x)


def sum(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the sum of the elements along axes, of integers in 64 bits unless `dtype` says otherwise; truths count."""
    return _total("sum", x, axis, dtype, keepdims)


def prod(x: Array, /, *, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    """Return the product of the elements along axes, of booleans and integers in 64 bits unless `dtype` says
    otherwise."""
    return _total("prod", x, axis, dtype, keepdims)


def _extreme(name: str, x: Array, axis: Axis, keepdims: bool) -> Array:
    xp = operand(name, x, "bif")
    axes = axes_of(name, x, axis)
    if any(not x.shape[a] for a in axes):
        fail(name, (x,), f"at least one element along the axes {axes}")
    with xp.scope():
        out = getattr(xp, name)(orderable(xp, x), axis=axes, keepdims=bool(keepdims))
        return new_array(xp.astype(out, x.dtype), xp, x)


def max(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the greatest element along axes; NaN wins. Raises ValueError over nothing."""
    return _extreme("max", x, axis, keepdims)


def min(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the least element along axes; NaN wins. Raises ValueError over nothing."""
    return _extreme("min", x, axis, keepdims)


def mean(x: Array, /, *, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the mean of the elements along axes; NaN over nothing."""
    (x,) = accepted("fc", x)
    xp = operand("mean", x, "fc")
    axes = axes_of("mean", x, axis)
    with xp.scope():
        return new_array(xp.mean(x._value(), axis=axes, keepdims=bool(keepdims)), xp, x)


def _variance(xp: Backend, name: str, x: Array, axis: Axis, correction: float, keepdims: bool) -> Any:
    axes = axes_of(name, x, axis)
    return xp.var(x._value(), axis=axes, keepdims=bool(keepdims), correction=correction)


def var(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the sum of squared distances from the mean, divided by the number of elements minus `correction`."""
    (x,) = accepted("f", x)
    xp = operand("var", x, "f")
    with xp.scope():
        return new_array(_variance(xp, "var", x, axis, correction, keepdims), xp, x)


def std(x: Array, /, *, axis: Axis = None, correction: float = 0.0, keepdims: bool = False) -> Array:
    """Return the square root of the variance."""
    (x,) = accepted("f", x)
    xp = operand("std", x, "f")
    with xp.scope():
        return new_array(xp.sqrt(_variance(xp, "std", x, axis, correction, keepdims)), xp, x)


def _cumulative(name: str, hub: str, x: Array, axis: int | None, dtype: Any, initial: int | None) -> Array:
    xp = operand(name, x)
    if axis is None and x.ndim != 1:
        fail(name, (x,), "an axis, as the array is not of one dimension")
    at = axis_of(name, x, 0 if axis is None else axis)
    resolved = summed_dtype(x.dtype) if dtype is None else checked(dtype)
    with xp.scope():
        out = getattr(xp, hub)(xp.astype(x._value(), resolved), axis=at)
        if initial is not None:
            first = xp.full((*x.shape[:at], 1, *x.shape[at + 1 :]), initial, resolved)
            out = xp.concat([first, out], axis=at)
        return new_array(out, xp, x)


def cumulative_sum(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Sums of all elements up to each along `axis`, after a 0 if `include_initial`."""
    return _cumulative("cumulative_sum", "cumsum", x, axis, dtype, 0 if include_initial else None)


def cumulative_prod(x: Array, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Array:
    """Products of all elements up to each along `axis`, after a 1 if `include_initial`."""
    return _cumulative("cumulative_prod", "cumprod", x, axis, dtype, 1 if include_initial else None)


__all__ = ["cumulative_prod", "cumulative_sum", "max", "mean", "min", "prod", "std", "sum", "var"]
