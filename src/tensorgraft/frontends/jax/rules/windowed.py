"""Convolutions, and reductions over windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.frontends.jax.rules.associative_scan import Combine, combine_function
from tensorgraft.frontends.jax.rules.reduction import identity, is_identity
from tensorgraft.frontends.jax.rules.scalar_functions import scalar_function
from tensorgraft.frontends.jax.rules.structural import permuted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations.windowed import window_count

Ints = Sequence[int]
Pads = Sequence[tuple[int, int]]


@rule("conv_general_dilated")
def conv_general_dilated(
    xp: Backend,
    x: Array,
    w: Array,
    *,
    window_strides: Ints,
    padding: Pads,
    lhs_dilation: Ints,
    rhs_dilation: Ints,
    dimension_numbers: Any,
    feature_group_count: int,
    batch_group_count: int,
    out: Any,
    **_: Any,
) -> Array:
    lhs, rhs, result = dimension_numbers
    shape, dtype = tuple(out[0].shape), np.dtype(out[0].dtype)
    if 0 in shape:
        return xp.zeros(shape, dtype)
    convolved = xp.convolution(
        permuted(xp, xp.astype(x, dtype), lhs),
        permuted(xp, xp.astype(w, dtype), rhs),
        tuple(window_strides),
        tuple((int(low), int(high)) for low, high in padding),
        tuple(lhs_dilation),
        tuple(rhs_dilation),
        feature_group_count,
        batch_group_count,
    )
    return permuted(xp, convolved, np.argsort(result).tolist())


# ---- windowed reductions -------------------------------------------------------------------------------------------


def pad_with(xp: Backend, x: Array, value: Any, padding: Pads, base_dilation: Ints) -> Array:
    """Return `x` with gaps and borders of a value."""
    config = tuple((int(low), int(high), d - 1) for (low, high), d in zip(padding, base_dilation, strict=True))
    return xp.pad(x, value, config) if any(map(any, config)) else x


def folded_windows(
    xp: Backend, arrays: Sequence[Array], combine: Combine, window: Ints, strides: Ints, dilation: Ints
) -> Sequence[Array]:
    """Return arrays of one shape, reduced together over windows, in their order. A window is folded along its last axis
    first, so that the extents of a window add up, and do not multiply."""
    for axis in reversed(range(len(window))):
        k, stride, step = window[axis], strides[axis], dilation[axis]
        if k > 1 or stride > 1:
            arrays = _reduced_along(xp, arrays, axis, combine, k, stride, step)
    return arrays


def _reduced_along(
    xp: Backend, arrays: Sequence[Array], axis: int, combine: Combine, window: int, stride: int, dilation: int
) -> Sequence[Array]:
    n = xp.shape(arrays[0])[axis]
    out = window_count(n, window, stride, dilation)

    def slice_all(arrays_: Sequence[Array], start: int, stop: int, step: int = 1) -> Sequence[Array]:
        return [xp.take_slice(x, axis, start, stop, step) for x in arrays_]

    if not out:
        return slice_all(arrays, 0, 0)
    total: Sequence[Array] | None = None
    if window <= 4 or (stride > 1 and window <= 2 * stride):
        for k in range(0, window * dilation, dilation):
            piece = slice_all(arrays, k, k + (out - 1) * stride + 1, stride)
            total = piece if total is None else combine(xp, total, piece)
        assert total is not None
        return total
    # windows of powers of two out of two of half the length each, then one of `window` out of those
    power, offset, length, rest = arrays, 0, 1, window
    while True:
        if rest & 1:
            piece = slice_all(power, offset * dilation, offset * dilation + n - dilation * (window - 1))
            total = piece if total is None else combine(xp, total, piece)
            offset += length
        rest >>= 1
        if not rest:
            break
        size = xp.shape(power[0])[axis]
        power = combine(xp, slice_all(power, 0, size - length * dilation), slice_all(power, length * dilation, size))
        length *= 2
    assert total is not None
    return total if stride == 1 else slice_all(total, 0, (out - 1) * stride + 1, stride)


def _reduced_windows(
    xp: Backend, x: Array, name: str, window: Ints, strides: Ints, padding: Pads, dilation: Ints
) -> Array:
    """Compute a reduction that has a name, of an array that is padded with its identity."""
    dtype = xp.dtype_of(x)
    native = name == "sum" or (name in ("max", "min") and not dtypes.is_complex(dtype))
    if native and not dtypes.is_bool(dtype):
        return xp.reduce_window(x, name, tuple(window), tuple(strides), tuple(padding), tuple(dilation))
    x = pad_with(xp, x, identity(name, dtype), padding, (1,) * len(window))
    return folded_windows(xp, [x], combine_function(name, dtype), window, strides, dilation)[0]


def _windows(name: str) -> Callable[..., Any]:
    def run(
        xp: Backend,
        x: Array,
        *,
        window_dimensions: Ints,
        window_strides: Ints,
        padding: Pads,
        base_dilation: Ints,
        window_dilation: Ints,
        out: Any,
        **_: Any,
    ) -> Array:
        dtype = xp.dtype_of(x)
        if 0 in out[0].shape:
            return xp.zeros(tuple(out[0].shape), dtype)
        padding = tuple((int(low), int(high)) for low, high in padding)
        if any(d > 1 for d in base_dilation):
            x = pad_with(xp, x, identity(name, dtype), padding, base_dilation)
            padding = ((0, 0),) * len(padding)
        return _reduced_windows(xp, x, name, window_dimensions, window_strides, padding, window_dilation)

    return run


for _name in ("sum", "max", "min"):
    rule(f"reduce_window_{_name}")(_windows(_name))


@rule("reduce_window")
def reduce_window(
    xp: Backend,
    *operands: Array,
    jaxpr: Any,
    consts: Sequence[Any],
    window_dimensions: Ints,
    window_strides: Ints,
    padding: Pads,
    base_dilation: Ints,
    window_dilation: Ints,
    out: Any,
    known: Any,
    **_: Any,
) -> Sequence[Array]:
    """Reduce windows by any function. Every window starts from the initial values; gaps and borders are passed over, as
    XLA does."""
    half = len(operands) // 2
    arrays, initial = operands[:half], operands[half:]
    shape = tuple(out[0].shape)
    starts = [xp.broadcast_to(x, shape) for x in initial]
    if 0 in shape or 0 in window_dimensions:
        return starts
    function = scalar_function(jaxpr, consts)
    name = function.monoid if half == 1 else None
    windows = (window_dimensions, window_strides, window_dilation)
    if name is not None:
        x = pad_with(xp, arrays[0], identity(name, xp.dtype_of(arrays[0])), padding, base_dilation)
        none = ((0, 0),) * len(shape)
        outputs = [_reduced_windows(xp, x, name, window_dimensions, window_strides, none, window_dilation)]
        return outputs if is_identity(known[half], name) else function.combine(xp, starts, outputs)
    if not any(low > 0 or high > 0 for low, high in padding) and all(d == 1 for d in base_dilation):
        inner = [pad_with(xp, x, 0, padding, base_dilation) for x in arrays]
        return function.combine(xp, starts, folded_windows(xp, inner, function.combine, *windows))
    is_present = pad_with(xp, xp.full(xp.shape(arrays[0]), True, dtypes.bool_), False, padding, base_dilation)
    inner = [is_present, *(pad_with(xp, x, 0, padding, base_dilation) for x in arrays)]
    any_present, *outputs = folded_windows(xp, inner, of_present(function.combine), *windows)
    return [xp.where(any_present, a, b) for a, b in zip(function.combine(xp, starts, outputs), starts, strict=True)]


def of_present(combine: Combine) -> Combine:
    """Extend `combine` to elements that may be missing: the first operand is a mask of those that are present."""

    def combine_present(xp: Backend, a: Sequence[Array], b: Sequence[Array]) -> Sequence[Array]:
        combined = combine(xp, a[1:], b[1:])
        one = [xp.where(a[0], u, v) for u, v in zip(a[1:], b[1:], strict=True)]
        is_both = xp.logical_and(a[0], b[0])
        return [xp.logical_or(a[0], b[0]), *(xp.where(is_both, u, v) for u, v in zip(combined, one, strict=True))]

    return combine_present
