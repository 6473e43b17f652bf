"""New tensors: empty, filled, counted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.frontends.torch.core.tensors import numpy_dtype
from tensorgraft.frontends.torch.kernels.common import check_fits, number
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.value import Value, with_operators


def _default(xp: Any) -> np.dtype:
    return numpy_dtype(torch.get_default_dtype())


def _check_representable(x: torch.Tensor, value: Any) -> None:
    if isinstance(value, int | float | complex) and x.dtype not in (torch.bool, torch.complex64, torch.complex128):
        check_fits(value, numpy_dtype(x.dtype))


def _full_fits(size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> None:
    if dtype is None and isinstance(fill_value, float):
        dtype = torch.get_default_dtype()
    if dtype is not None and dtype.is_floating_point and isinstance(fill_value, int | float):
        unbounded = math.isinf(fill_value) and math.isinf(dtypes.lowest(numpy_dtype(dtype)))
        if torch.finfo(dtype).max < abs(fill_value) and not unbounded:
            raise RuntimeError(f"value cannot be converted to type {dtype} without overflow")
    elif dtype is not None and isinstance(fill_value, int | float | complex) and dtype is not torch.bool:
        check_fits(fill_value, numpy_dtype(dtype))


def _scalar_fits(s: Any, *, dtype: torch.dtype | None = None, **_: Any) -> None:
    """Refuse a number that does not fit an integer dtype; as in `x[i] = s`, one too large for a float is infinite."""
    if dtype is not None and isinstance(s, int | float | complex) and dtype is not torch.bool:
        check_fits(s, numpy_dtype(dtype))


@kernel("fill.Scalar", dynamic=("value",), check=_check_representable)
def _fill(xp: Any, x: Array, value: Any) -> Array:
    return xp.full(xp.shape(x), number(xp, value, xp.dtype_of(x)), xp.dtype_of(x))


@kernel("fill.Tensor")
def _fill_tensor(xp: Any, x: Array, value: Array) -> Array:
    return xp.broadcast_to(number(xp, value, xp.dtype_of(x)), xp.shape(x))


@kernel("zero")
def _zero(xp: Any, x: Array) -> Array:
    return xp.zeros_like(x)


@kernel("full", dynamic=("fill_value",), check=_full_fits)
def _full(xp: Any, size: list[int], fill_value: Any, dtype: np.dtype | None = None) -> Array:
    if dtype is None:  # PyTorch infers it from the number
        dtype = _inferred(xp, fill_value)
    return xp.full(tuple(size), number(xp, fill_value, dtype), dtype)


def _inferred(xp: Any, value: Any) -> np.dtype:
    kind = np.dtype(type(value)) if isinstance(value, int | float | complex) else xp.dtype_of(value)
    if dtypes.is_bool(kind) or dtypes.is_integer(kind):
        return kind
    return dtypes.complex_dtype(_default(xp)) if dtypes.is_complex(kind) else _default(xp)


def _counted(start: Any, end: Any, step: Any = 1, *, dtype: Any = None, **_: Any) -> dict[str, Any] | None:
    """Return the number of elements of a range of integers that does not begin at 0, as an argument; None for other
    ranges."""
    if any(n.__class__ is not int for n in (start, end, step)) or not start or not step:
        return None
    count = -(-(end - start) // step)
    of_integers = dtype is None or not (dtype.is_floating_point or dtype.is_complex)
    return {"count": count} if of_integers and count > 0 else None


def _range(start: Any, end: Any, step: Any = 1, *, out: Any = None, dtype: Any = None, **_: Any) -> Any:
    """Return the sizes of a range. PyTorch's meta function is in Python, and imports its compiler, which takes a
    second. Raises ValueError for arguments that may be invalid, for which CPU PyTorch raises its error."""
    import torch

    if any(n.__class__ not in (int, float) for n in (start, end, step)) or not math.isfinite(start + end + step):
        raise ValueError
    if not step or (end - start) * step < 0:
        raise ValueError
    integers = all(n.__class__ is int for n in (start, end, step))
    if out is not None:
        dtype = out.dtype
    elif dtype is None:
        dtype = torch.int64 if integers else torch.get_default_dtype()
    if dtype.is_complex or dtype == torch.bool:
        raise ValueError
    if dtype == torch.int64 and not integers:
        start, end, step, integers = int(start), int(end), int(step), True
        if not step:
            raise ValueError
    n = -((start - end) // step) if integers else math.ceil((end - start) / step)
    return torch.empty(n, dtype=dtype, device="meta") if out is None else out.resize_(n)


@kernel("arange.start_step", positions=("start", "end"), moves=_counted, meta=_range)
@with_operators
def _arange(
    xp: Any, start: Any, end: Any, step: Any = 1, dtype: np.dtype | None = None, count: int | None = None
) -> Value:
    if count is not None:
        values = xp.iota(count, dtypes.int64) * step
        return xp.astype(values + number(xp, start, dtypes.int64), dtype or dtypes.int64)
    integers = all(isinstance(n, int) for n in (start, end, step))
    dtype = dtype or (dtypes.int64 if integers else _default(xp))
    if dtype == dtypes.int64 and not integers:  # PyTorch cuts them before it counts, for this dtype alone
        start, end, step, integers = int(start), int(end), int(step), True
    n = -(-(end - start) // step) if integers else math.ceil((end - start) / step)
    wide = (
        dtype if dtypes.is_integer(dtype) and integers else dtypes.int64 if dtypes.is_integer(dtype) else dtypes.float64
    )
    at = xp.iota(max(n, 0), dtypes.int64)
    # PyTorch computes integer ranges with integer ends
    values = at * int(step) + int(start) if dtypes.is_integer(dtype) else xp.astype(at, wide) * step + start
    return xp.astype(values, dtype)


@with_operators
def _spaced(xp: Any, start: Any, end: Any, steps: int, dtype: np.dtype) -> Value:
    """Return `steps` numbers from `start` to `end`, in double precision; the ends as `dtype` has them where it is
    integer."""
    wide = dtypes.complex128 if dtypes.is_complex(dtype) else dtypes.float64
    start, end = (_end(xp, x, dtype, wide) for x in (start, end))
    count = xp.iota(steps, dtypes.int64)
    at = xp.astype(count, wide)
    if steps == 1:
        return xp.full_like(at, start)
    if isinstance(start, _NUMBERS) and isinstance(end, _NUMBERS):
        step = (end - start) / max(steps - 1, 1)
    else:
        start, end = (xp.full((), x, wide) if isinstance(x, _NUMBERS) else x for x in (start, end))
        step = (end - start) / max(steps - 1, 1)
    left = at * step + start
    right = end - (steps - 1 - at) * step  # symmetric, as PyTorch's
    return xp.where(count < steps // 2, left, right)


_NUMBERS = (int, float, complex)


def _end(xp: Any, x: Any, dtype: np.dtype, wide: np.dtype) -> Any:
    if isinstance(x, _NUMBERS):
        return int(x) if dtypes.is_integer(dtype) else x  # type: ignore[arg-type]
    return xp.astype(xp.astype(x, dtypes.int64) if dtypes.is_integer(dtype) else x, wide)


def _interpolated(xp: Any, start: Any, end: Any, dtype: np.dtype | None) -> np.dtype:
    for name, x in (("start", start), ("end", end)):
        if not isinstance(x, _NUMBERS) and xp.ndim(x):
            raise RuntimeError(
                "linspace only supports 0-dimensional start and end tensors, but got"
                f" {name} with {xp.ndim(x)} dimension(s)."
            )
    complex_ends = any(
        isinstance(x, complex) if isinstance(x, _NUMBERS) else dtypes.is_complex(xp.dtype_of(x)) for x in (start, end)
    )
    return dtype or (dtypes.complex_dtype(_default(xp)) if complex_ends else _default(xp))


def _linspace(xp: Any, start: Any, end: Any, steps: int, dtype: np.dtype | None = None) -> Array:
    dtype = _interpolated(xp, start, end, dtype)
    return xp.astype(_spaced(xp, start, end, steps, dtype), dtype)


def _logspace(xp: Any, start: Any, end: Any, steps: int, base: float = 10.0, dtype: np.dtype | None = None) -> Array:
    dtype = _interpolated(xp, start, end, dtype)
    exponents = _spaced(xp, start, end, steps, dtype)
    return xp.astype(xp.pow(xp.full_like(exponents, base), exponents), dtype)


for _name, _fn in (("linspace", _linspace), ("logspace", _logspace)):
    kernel(_name)(_fn)
    kernel(*(f"{_name}.{ends}" for ends in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")), meta=False)(_fn)


@kernel("eye", "eye.m")
def _eye(xp: Any, n: int, m: int | None = None, dtype: np.dtype | None = None) -> Array:
    return xp.eye(n, n if m is None else m, dtype or _default(xp))


@kernel("scalar_tensor", dynamic=("s",), check=_scalar_fits)
def _scalar_tensor(xp: Any, s: Any, dtype: np.dtype | None = None) -> Array:
    dtype = dtype or _default(xp)
    return xp.full((), number(xp, s, dtype), dtype)


@kernel("_efficientzerotensor")
def _zero_tensor(xp: Any, size: list[int], dtype: np.dtype | None = None) -> Array:
    return xp.zeros(tuple(size), dtype or _default(xp))
