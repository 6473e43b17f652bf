"""Functions that NumPy has and the array API standard lacks, composed of functions of the standard. Parameters have
NumPy's names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tensorgraft.array_api as xp
from tensorgraft.array_api import Array
from tensorgraft.frontends.array_api.core.calls import accepted
from tensorgraft.frontends.array_api.core.promotion import kind
from tensorgraft.frontends.array_api.standard.elementwise import rounded

Axis = int | tuple[int, ...] | None


def _flat(x: Array, axis: Axis) -> tuple[Array, Any]:
    """Return (array, axis), or (the flattened array, 0) if `axis` is None, which in NumPy means all elements."""
    return (xp.reshape(x, (-1,)), 0) if axis is None else (x, axis)


# ---- shapes ----------------------------------------------------------------------------------------------------------


def concatenate(arrays: Sequence[Array], axis: int | None = 0) -> Array:
    return xp.concat(arrays, axis=axis)


def transpose(a: Array, axes: Sequence[int] | None = None) -> Array:
    return xp.permute_dims(a, tuple(reversed(range(a.ndim))) if axes is None else axes)


def swapaxes(a: Array, axis1: int, axis2: int) -> Array:
    order = list(range(a.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return xp.permute_dims(a, order)


def squeeze(a: Array, axis: Axis = None) -> Array:
    return xp.squeeze(a, axis=tuple(i for i, n in enumerate(a.shape) if n == 1) if axis is None else axis)


def atleast_1d(*arys: Array) -> Any:
    out = tuple(xp.reshape(x, (1,)) if not x.ndim else x for x in arys)
    return out if len(out) > 1 else out[0]


def atleast_2d(*arys: Array) -> Any:
    out = tuple(x if x.ndim > 1 else xp.reshape(x, (1, -1)) for x in arys)
    return out if len(out) > 1 else out[0]


def vstack(tup: Sequence[Array]) -> Array:
    return xp.concat([atleast_2d(x) for x in tup], axis=0)


def hstack(tup: Sequence[Array]) -> Array:
    arrays = [atleast_1d(x) for x in tup]
    return xp.concat(arrays, axis=0 if arrays[0].ndim == 1 else 1)


def column_stack(tup: Sequence[Array]) -> Array:
    return xp.concat([xp.reshape(x, (-1, 1)) if x.ndim < 2 else x for x in tup], axis=1)


def diagonal(a: Array, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    return xp.linalg.diagonal(xp.moveaxis(a, (axis1, axis2), (-2, -1)), offset=offset)


def trace(a: Array, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    return xp.linalg.trace(xp.moveaxis(a, (axis1, axis2), (-2, -1)), offset=offset, dtype=dtype)


def size(a: Array, axis: int | None = None) -> int:
    return a.size if axis is None else a.shape[axis]


# ---- values ----------------------------------------------------------------------------------------------------------


def where(condition: Array, x: Any = None, y: Any = None) -> Any:
    if x is None:
        return xp.nonzero(condition)
    return xp.where(xp.astype(condition, xp.bool, copy=False), x, y)


def round_(a: Array, decimals: int = 0) -> Array:
    return rounded(a, decimals)


def take(a: Array, indices: Any, axis: int | None = None) -> Array:
    source, axis = _flat(a, axis)
    index_array = xp.asarray(indices, device=a.device)
    out = xp.take(source, xp.reshape(index_array, (-1,)), axis=axis)
    axis %= source.ndim
    return xp.reshape(out, (*source.shape[:axis], *index_array.shape, *source.shape[axis + 1 :]))


def unique(
    ar: Array,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    equal_nan: bool = True,
) -> Any:
    """Return the sorted distinct elements, followed by the results that `return_*` request. All NaN are one value, the
    last, unless `equal_nan` is False."""
    values, first, inverse, counts = xp.unique_all(ar)
    last = values.size - int(xp.count_nonzero(xp.isnan(values)))  # the position of the first NaN
    if equal_nan and last < values.size - 1:
        values, first, inverse = values[: last + 1], first[: last + 1], xp.minimum(inverse, last)
        counts = xp.concat([counts[:last], xp.sum(counts[last:], keepdims=True)])
    requested = (True, return_index, return_inverse, return_counts)
    out = tuple(
        part for part, wanted_part in zip((values, first, inverse, counts), requested, strict=True) if wanted_part
    )
    return out if len(out) > 1 else out[0]


def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    """Return for each element whether |a - b| <= atol + rtol |b|, as NumPy does; infinities are close to themselves."""
    a, b = accepted("fc", a, b)
    is_near = xp.logical_and(xp.less_equal(xp.abs(xp.subtract(a, b)), atol + rtol * xp.abs(b)), xp.isfinite(b))
    is_near = xp.logical_or(xp.equal(a, b), is_near)
    return xp.logical_or(is_near, xp.logical_and(xp.isnan(a), xp.isnan(b))) if equal_nan else is_near


def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    return bool(xp.all(isclose(a, b, rtol, atol, equal_nan)))


def array_equal(a1: Array, a2: Array, equal_nan: bool = False) -> bool:
    if a1.shape != a2.shape:
        return False
    equal = a1 == a2
    return bool(xp.all(xp.logical_or(equal, xp.logical_and(xp.isnan(a1), xp.isnan(a2))) if equal_nan else equal))


def average(a: Array, axis: Axis = None, weights: Array | None = None, keepdims: bool = False) -> Array:
    if weights is None:
        return xp.mean(a, axis=axis, keepdims=keepdims)
    if weights.shape != a.shape and isinstance(axis, int):
        weights = xp.reshape(weights, tuple(n if i == axis % a.ndim else 1 for i, n in enumerate(a.shape)))
    a, weights = accepted("fc", a, weights)
    weights = xp.broadcast_to(weights, a.shape)
    total = xp.sum(weights, axis=axis, keepdims=keepdims)
    return xp.sum(a * weights, axis=axis, keepdims=keepdims) / total


def shares_memory(a: Any, b: Any) -> bool:
    """Return True if two arrays share memory: two `Array`s if they have a storage in common, others by
    `np.may_share_memory`."""
    if isinstance(a, Array) and isinstance(b, Array):
        return not {id(cell) for cell in a._cells()}.isdisjoint(id(cell) for cell in b._cells())
    return np.may_share_memory(np.asarray(a), np.asarray(b))


def cumsum(a: Array, axis: int | None = None, dtype: Any = None) -> Array:
    source, axis = _flat(a, axis)
    return xp.cumulative_sum(source, axis=axis, dtype=dtype)


def cumprod(a: Array, axis: int | None = None, dtype: Any = None) -> Array:
    source, axis = _flat(a, axis)
    return xp.cumulative_prod(source, axis=axis, dtype=dtype)


def median(a: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the median, or NaN if one of the elements is NaN."""
    middle = nanmedian(a, axis, keepdims)
    has_nan = xp.any(xp.isnan(a), axis=axis, keepdims=keepdims)
    return xp.where(has_nan, xp.asarray(math.nan, dtype=middle.dtype, device=a.device), middle)


# ---- without NaN -----------------------------------------------------------------------------------------------------


def _filled(a: Array, value: float) -> tuple[Array, Array]:
    """Return (the array with NaN replaced by `value`, a mask of the elements that were no NaN)."""
    valid = xp.logical_not(xp.isnan(a))
    return (xp.where(valid, a, value) if kind(a.dtype) in "fc" else a), valid


def nansum(a: Array, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    return xp.sum(_filled(a, 0.0)[0], axis=axis, dtype=dtype, keepdims=keepdims)


def nanprod(a: Array, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    return xp.prod(_filled(a, 1.0)[0], axis=axis, dtype=dtype, keepdims=keepdims)


def nancumsum(a: Array, axis: int | None = None, dtype: Any = None) -> Array:
    return cumsum(_filled(a, 0.0)[0], axis, dtype)


def nancumprod(a: Array, axis: int | None = None, dtype: Any = None) -> Array:
    return cumprod(_filled(a, 1.0)[0], axis, dtype)


def nanmean(a: Array, axis: Axis = None, dtype: Any = None, keepdims: bool = False) -> Array:
    if dtype is not None:
        a = xp.astype(a, dtype)
    values, valid = _filled(a, 0.0)
    total = xp.sum(values, axis=axis, keepdims=keepdims)
    total = total if kind(total.dtype) in "fc" else xp.astype(total, xp.float64)
    return total / xp.astype(xp.count_nonzero(valid, axis=axis, keepdims=keepdims), total.dtype)


def nanvar(a: Array, axis: Axis = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Array:
    mean = nanmean(a, axis, dtype, True)
    values, valid = _filled(xp.astype(a, mean.dtype), 0.0)
    square = xp.where(valid, xp.abs(values - mean) ** 2, 0.0)
    count = xp.count_nonzero(valid, axis=axis, keepdims=keepdims)
    freedom = xp.astype(count, square.dtype) - ddof
    out = xp.sum(square, axis=axis, keepdims=keepdims) / freedom
    return xp.where(freedom > 0, out, math.nan)


def nanstd(a: Array, axis: Axis = None, dtype: Any = None, ddof: float = 0, keepdims: bool = False) -> Array:
    return xp.sqrt(nanvar(a, axis, dtype, ddof, keepdims))


def _nan_extreme(a: Array, axis: Axis, keepdims: bool, fill_value: float, extreme: Callable[..., Array]) -> Array:
    values, valid = _filled(a, fill_value)
    out = extreme(values, axis=axis, keepdims=keepdims)
    if kind(a.dtype) != "f":
        return out
    return xp.where(xp.any(valid, axis=axis, keepdims=keepdims), out, math.nan)


def nanmax(a: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    return _nan_extreme(a, axis, keepdims, -math.inf, xp.max)


def nanmin(a: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    return _nan_extreme(a, axis, keepdims, math.inf, xp.min)


def _nan_position(
    a: Array, axis: int | None, keepdims: bool, fill_value: float, position: Callable[..., Array]
) -> Array:
    values, valid = _filled(a, fill_value)
    if not xp.all(xp.any(valid, axis=axis)):
        raise ValueError("All-NaN slice encountered")
    return position(values, axis=axis, keepdims=keepdims)


def nanargmax(a: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    return _nan_position(a, axis, keepdims, -math.inf, xp.argmax)


def nanargmin(a: Array, axis: int | None = None, keepdims: bool = False) -> Array:
    return _nan_position(a, axis, keepdims, math.inf, xp.argmin)


def nanmedian(a: Array, axis: Axis = None, keepdims: bool = False) -> Array:
    """Return the middle of the sorted elements that are no NaN, or the mean of the two in the middle. Sorting puts NaN
    last."""
    if kind(a.dtype) != "f":
        a = xp.astype(a, xp.float64)
    axes = tuple(range(a.ndim)) if axis is None else tuple(n % a.ndim for n in np.atleast_1d(axis).tolist())
    rest = tuple(n for n in range(a.ndim) if n not in axes)
    lines = xp.reshape(xp.permute_dims(a, (*rest, *axes)), (*(a.shape[n] for n in rest), -1))
    ordered = xp.sort(lines, axis=-1)
    count = xp.count_nonzero(xp.logical_not(xp.isnan(lines)), axis=-1, keepdims=True)
    last = max(ordered.shape[-1] - 1, 0)
    low, high = (xp.take_along_axis(ordered, xp.clip(i, 0, last)) for i in ((count - 1) // 2, count // 2))
    out = low + (high - low) * 0.5
    out = xp.where(low == high, low, out)[..., 0]  # the difference of two infinities is NaN
    return xp.reshape(out, tuple(1 if n in axes else a.shape[n] for n in range(a.ndim))) if keepdims else out


# ---- products --------------------------------------------------------------------------------------------------------


def dot(a: Array, b: Array) -> Array:
    if not a.ndim or not b.ndim:
        return xp.multiply(a, b)
    return xp.tensordot(a, b, axes=((a.ndim - 1,), (max(b.ndim - 2, 0),)))


def inner(a: Array, b: Array) -> Array:
    return xp.multiply(a, b) if not a.ndim or not b.ndim else xp.tensordot(a, b, axes=((a.ndim - 1,), (b.ndim - 1,)))


def outer(a: Array, b: Array) -> Array:
    return xp.linalg.outer(xp.reshape(a, (-1,)), xp.reshape(b, (-1,)))


def norm(x: Array, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Array:
    if axis is None and (ord is None or x.ndim == 1):
        return xp.linalg.vector_norm(x, ord=2 if ord is None else ord, keepdims=keepdims)
    if isinstance(axis, int) or (axis is not None and len(axis) == 1):
        return xp.linalg.vector_norm(x, axis=axis, ord=2 if ord is None else ord, keepdims=keepdims)
    axes = (0, 1) if axis is None else tuple(axis)
    out = xp.linalg.matrix_norm(xp.moveaxis(x, axes, (-2, -1)), ord="fro" if ord is None else ord, keepdims=keepdims)
    return xp.moveaxis(out, (-2, -1), axes) if keepdims else out


def divmod_(x1: Any, x2: Any) -> tuple[Array, Array]:
    return xp.floor_divide(x1, x2), xp.remainder(x1, x2)


def _scaled(factor: float) -> Callable[[Array], Array]:
    """Return the function that multiplies an array by a factor."""
    return lambda x: xp.multiply(accepted("fc", x)[0], factor)


# {NumPy's name: function}. The last ones print or save values, which they read on the host.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{
        f.__name__: f
        for f in (
            allclose,
            array_equal,
            atleast_1d,
            atleast_2d,
            average,
            column_stack,
            concatenate,
            cumprod,
            cumsum,
            diagonal,
            dot,
            hstack,
            inner,
            isclose,
            median,
            nanargmax,
            nanargmin,
            nancumprod,
            nancumsum,
            nanmax,
            nanmean,
            nanmedian,
            nanmin,
            nanprod,
            nanstd,
            nansum,
            nanvar,
            outer,
            size,
            squeeze,
            swapaxes,
            take,
            trace,
            transpose,
            unique,
            vstack,
            where,
        )
    },
    "round": round_,
    "around": round_,
    "ravel": lambda a: xp.reshape(a, (-1,)),
    "copy": lambda a: xp.asarray(a, copy=True),
    "array": lambda object, dtype=None, device=None: xp.asarray(object, dtype=dtype, device=device, copy=True),
    "ptp": lambda a, axis=None, keepdims=False: (
        xp.max(a, axis=axis, keepdims=keepdims) - xp.min(a, axis=axis, keepdims=keepdims)
    ),
    "tile": lambda A, reps: xp.tile(A, (reps,) if isinstance(reps, int) else reps),
    "may_share_memory": shares_memory,
    "shares_memory": shares_memory,
    "shape": lambda a: a.shape,
    "ndim": lambda a: a.ndim,
    "iscomplexobj": lambda x: kind(x.dtype) == "c",
    "isrealobj": lambda x: kind(x.dtype) != "c",
    "linalg.norm": norm,
    "deg2rad": _scaled(math.pi / 180),
    "radians": _scaled(math.pi / 180),
    "degrees": _scaled(180 / math.pi),
    "rad2deg": _scaled(180 / math.pi),
    "divmod": divmod_,
    "array2string": lambda a, **options: np.array2string(np.asarray(a), **options),
    "array_repr": lambda arr: repr(arr),
    "array_str": lambda a: str(a),
    "save": lambda file, arr: np.save(file, np.asarray(arr)),
    "savetxt": lambda fname, X, **options: np.savetxt(fname, np.asarray(X), **options),
}
