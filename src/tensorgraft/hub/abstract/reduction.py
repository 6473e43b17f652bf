"""Rules of reductions, scans and Fourier transforms: operations along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract.array import ShapeDtype, axes_of, axis_of, check, check_kinds, fail

# name -> kinds of dtype, as in `hub.operations.elementwise`
KINDS = {
    **dict.fromkeys(("sum", "prod", "cumsum", "cumprod"), "ifc"),
    **dict.fromkeys(("max", "min", "cummax", "cummin", "argmax", "argmin"), "bif"),
    **dict.fromkeys(("any", "all"), "b"),
}


def _reduced(op: str, x: ShapeDtype, axis: Any, keepdims: bool) -> ShapeDtype:
    check_kinds(op, KINDS[op], x)
    reduced_axes = axes_of(op, x, axis)
    if keepdims:
        return x.like(*(1 if a in reduced_axes else n for a, n in enumerate(x.shape)))
    return x.like(*(n for a, n in enumerate(x.shape) if a not in reduced_axes))


def reduce(op: str, x: ShapeDtype, axis: Any = None, keepdims: bool = False) -> ShapeDtype:
    return _reduced(op, x, axis, keepdims)


def position(op: str, x: ShapeDtype, axis: int, keepdims: bool = False) -> ShapeDtype:
    out = _reduced(op, x, axis, keepdims)
    check(x.shape[axis], op, (x, axis), "an axis that is not empty")
    return ShapeDtype(out.shape, dtypes.int64)


def scan(op: str, x: ShapeDtype, axis: int) -> ShapeDtype:
    check_kinds(op, KINDS[op], x)
    axis_of(op, x, axis)
    return x


def _with_extent(x: ShapeDtype, axis: int, n: int) -> tuple[int, ...]:
    return (*x.shape[:axis], n, *x.shape[axis + 1 :])


def fft(op: str, x: ShapeDtype, axis: int) -> ShapeDtype:
    check_kinds(op, "c", x)
    axis_of(op, x, axis)
    return x


def rfft(op: str, x: ShapeDtype, axis: int) -> ShapeDtype:
    check_kinds(op, "f", x)
    if x.dtype.itemsize < 4:
        fail(op, (x,), "float32 or float64", TypeError)
    axis = axis_of(op, x, axis)
    return ShapeDtype(_with_extent(x, axis, x.shape[axis] // 2 + 1), dtypes.complex_dtype(x.dtype))


def irfft(op: str, x: ShapeDtype, n: int, axis: int) -> ShapeDtype:
    check_kinds(op, "c", x)
    axis = axis_of(op, x, axis)
    check(x.shape[axis] == n // 2 + 1, op, (x, n, axis), f"{n // 2 + 1} values along the axis")
    return ShapeDtype(_with_extent(x, axis, n), dtypes.real_dtype(x.dtype))


RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all"), reduce),
    **dict.fromkeys(("argmax", "argmin"), position),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin"), scan),
    **dict.fromkeys(("fft", "ifft"), fft),
    "rfft": rfft,
    "irfft": irfft,
}
