"""Creation functions of the standard."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core import exchange, tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import (
    SCALARS,
    arrays_of,
    backend_of,
    broadcast_shape,
    fail,
    of_python,
    operand,
    shape_of,
)
from tensorgraft.frontends.array_api.core.devices import default, device_of, resolve
from tensorgraft.frontends.array_api.core.promotion import STANDARD, checked, default_dtype, kind, of_scalar
from tensorgraft.frontends.array_api.core.traced_numbers import Number
from tensorgraft.frontends.array_api.standard.data_types import astype, result_type
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Shape = int | Sequence[int]


# ---- from other objects ----------------------------------------------------------------------------------------------


def asarray(obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array of anything: an array, Python scalars and nested sequences of them (or of arrays), arrays of
    NumPy and of installed backends, objects with DLPack or the buffer protocol.

    Without `device`, arrays stay on theirs, and all else goes to the default one. `copy`: None copies where needed,
    True always, False never (ValueError where a copy is needed). NumPy's and PyTorch's arrays are shared on their own
    backends: writes are seen on both sides.
    """
    dtype = None if dtype is None else checked(dtype)
    x = _existing_array(obj, dtype, device, copy)
    if dtype is not None and x.dtype != dtype:
        if copy is False:
            raise ValueError(
                f"asarray: an array of {x.dtype} can become one of {dtype} only by a copy, but copy=False was given"
            )
        x = astype(x, dtype)
    return x


def _existing_array(obj: Any, dtype: np.dtype | None, device: Any, copy: bool | None) -> Array:
    target = None if device is None else resolve(device).backend
    if isinstance(obj, Array):
        return _placed_on(obj, target, copy)
    if isinstance(obj, (*SCALARS, list, tuple)):
        if copy is False:
            raise ValueError("asarray: Python objects can become an array only by a copy, but copy=False was given")
        return _of_python(obj, dtype, target)
    native = exchange.backend_that_made(obj)
    if native is not None and not isinstance(obj, np.ndarray | np.generic):
        if target is None or target is native:
            return exchange.wrapped(obj, native, copy)
        return exchange.shared_between(obj, native, target, copy)
    target = target or default().backend
    if native is None and hasattr(obj, "__dlpack__"):
        return exchange.imported(obj, target, copy)
    values = np.asarray(obj)
    if native is None and values.dtype.kind in "OSUMmV" and values.dtype not in STANDARD:
        raise TypeError(
            f"asarray: a {type(obj).__module__}.{type(obj).__qualname__} is neither an array nor a sequence of numbers"
        )
    host = resolve("numpy").backend
    return (
        exchange.wrapped(values, host, copy) if target is host else exchange.shared_between(values, host, target, copy)
    )


def _placed_on(x: Array, target: Backend | None, copy: bool | None) -> Array:
    """Return an array on a backend, itself where it may be."""
    xp = x._cell.backend
    if target is not None and device_of(target) != x.device:
        if copy is not False:
            return exchange.moved_to(x, target)
        if tracing.level_of(x._cell) is not None:
            raise ValueError(
                f"copy=False, but inside of a transform an array on {x.device} can move to {device_of(target)}"
                " only by a copy"
            )
        return exchange.shared_between(x.native, xp, target, copy)
    if not copy:
        return x
    with xp.scope():
        return new_array(xp.copy(x._value()), xp)


def _of_python(obj: Any, dtype: np.dtype | None, target: Backend | None) -> Array:
    leaves: list[Any] = []
    _collect(obj, leaves)
    if leaves and not isinstance(obj, SCALARS):
        if target is not None:
            obj = _moved_leaves(obj, target)
            _collect(obj, leaves := [])
        return _stacked(obj, dtype or result_type(*leaves), backend_of("asarray", *leaves))
    xp = target or default().backend
    if isinstance(obj, Number) and (traced_value := obj.traced(xp)) is not None:
        x = new_array(traced_value, xp)
        return x if dtype is None or (kind(dtype) != "c" and x.dtype.kind == "c") else astype(x, dtype)
    if isinstance(obj, SCALARS):
        inferred = default_dtype(obj)
        values = np.asarray(obj, inferred if dtype is None or kind(dtype) == "b" else None)
    else:
        try:
            values = np.asarray(obj) if obj else np.zeros(0)
        except ValueError:
            raise ValueError("asarray: the nested sequences have different lengths") from None
    if values.dtype not in STANDARD and values.dtype.kind in "OSUMmV":
        if values.dtype.kind == "O" and _ints(obj):
            raise OverflowError("asarray: a Python int is out of range of every integer dtype")
        raise TypeError("asarray: expected numbers, booleans or arrays in the nested sequences")
    if dtype is not None:
        values = values.astype(dtype) if values.dtype.kind != "c" or dtype.kind == "c" else _refused(values, dtype)
    with xp.scope():
        return new_array(xp.asarray(values), xp)


def _refused(values: np.ndarray, dtype: np.dtype) -> Any:
    raise TypeError(f"asarray: complex numbers cannot be converted to {dtype}")


def _ints(obj: Any) -> bool:
    return all(map(_ints, obj)) if isinstance(obj, list | tuple) else isinstance(obj, int)


def _collect(obj: Any, leaves: list[Any]) -> None:
    """Append the elements of nested sequences to `leaves`, if any of them is an array."""
    scalars: list[Any] = []
    pending = [obj]
    while pending:
        x = pending.pop()
        if isinstance(x, list | tuple):
            pending.extend(x)
        else:
            scalars.append(x)
    if any(isinstance(x, Array) for x in scalars):
        leaves.extend(x for x in scalars)


def _moved_leaves(obj: Any, target: Backend) -> Any:
    """Return nested sequences with their arrays on a device."""
    if isinstance(obj, list | tuple):
        return [_moved_leaves(x, target) for x in obj]
    return _placed_on(obj, target, None) if isinstance(obj, Array) else obj


def _stacked(obj: Any, dtype: np.dtype, xp: Backend) -> Array:
    """Nested sequences with arrays of one backend in them."""
    if not isinstance(obj, list | tuple):
        return astype(obj, dtype, copy=False) if isinstance(obj, Array) else _of_python(obj, dtype, xp)
    parts = [_stacked(x, dtype, xp) for x in obj]
    if len({x.shape for x in parts}) > 1:
        raise ValueError(
            f"asarray: the nested sequences have different lengths, {', '.join(str(x.shape) for x in parts)}"
        )
    with xp.scope():
        return new_array(xp.stack([x._value() for x in parts]), xp)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """Return an array of an object with `__dlpack__`, on its own device's backend: without a copy unless `copy`, or
    where the memory could be written on one side while the other takes it for a value."""
    target = None if device is None else resolve(device).backend
    if isinstance(x, Array):
        if target is None or device_of(target) == x.device:
            return _placed_on(x, target, copy) if copy else Array(x._cell, x._geometry)
        if tracing.level_of(x._cell) is not None:
            return _placed_on(x, target, copy)
        return exchange.shared_between(x.native, x._cell.backend, target, copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack: a {type(x).__module__}.{type(x).__qualname__} has no __dlpack__")
    native = exchange.backend_that_made(x)
    if native is None:
        return exchange.imported(x, target, copy)
    if target is None or target is native:
        return exchange.wrapped(x, native, copy)
    return exchange.shared_between(x, native, target, copy)


# ---- from shapes -----------------------------------------------------------------------------------------------------


def full(shape: Shape, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    """Return an array filled with `fill_value`, a Python scalar whose kind determines the default dtype."""
    fill_value = of_python(fill_value)
    if not isinstance(fill_value, SCALARS):
        if not isinstance(fill_value, Array) or fill_value.ndim:
            raise TypeError(f"full: expected a Python scalar to fill with, got {fill_value!r}")
        return _full_of(fill_value, shape, dtype, device)
    return _filled("full", shape, fill_value, default_dtype(fill_value) if dtype is None else checked(dtype), device)


def _full_of(value: Array, shape: Shape, dtype: Any, device: Any) -> Array:
    """Return an array filled with a 0-d array, whose value need not be known."""
    extents = shape_of("full", shape)
    resolved = value.dtype if dtype is None else checked(dtype)
    if kind(value.dtype) == "c" and kind(resolved) != "c":
        raise TypeError(f"full: {value!r} is not a value of {resolved}")
    value = _placed_on(value, None if device is None else resolve(device).backend, None)
    xp = value._cell.backend
    with xp.scope():
        return new_array(xp.copy(xp.broadcast_to(xp.astype(value._value(), resolved), extents)), xp)


def _filled(name: str, shape: Shape, value: Any, dtype: np.dtype, device: Any) -> Array:
    extents = shape_of(name, shape)
    if kind(dtype) == "i" and isinstance(value, int) and not isinstance(value, bool):
        of_scalar(value, dtype)  # raises OverflowError
    if isinstance(value, complex) and kind(dtype) != "c":
        raise TypeError(f"{name}: {value} is not a value of {dtype}")
    xp = tracing.creation_backend(resolve(device).backend)
    filler = value.traced(xp) if isinstance(value, Number) else None
    with xp.scope():
        if filler is not None:
            return new_array(xp.copy(xp.broadcast_to(xp.astype(filler, dtype), extents)), xp)
        return new_array(xp.full(extents, value, dtype), xp)


def zeros(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    return _filled("zeros", shape, 0, dtypes.float64 if dtype is None else checked(dtype), device)


def ones(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    return _filled("ones", shape, 1, dtypes.float64 if dtype is None else checked(dtype), device)


def empty(shape: Shape, *, dtype: Any = None, device: Any = None) -> Array:
    """Zeros: backends make no arrays without values."""
    return _filled("empty", shape, 0, dtypes.float64 if dtype is None else checked(dtype), device)


def full_like(x: Array, /, fill_value: Any, *, dtype: Any = None, device: Any = None) -> Array:
    operand("full_like", x)
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    operand("zeros_like", x)
    return zeros(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def ones_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    operand("ones_like", x)
    return ones(x.shape, dtype=dtype or x.dtype, device=device or x.device)


def empty_like(x: Array, /, *, dtype: Any = None, device: Any = None) -> Array:
    operand("empty_like", x)
    return zeros(x.shape, dtype=dtype or x.dtype, device=device or x.device)


# ---- ranges ----------------------------------------------------------------------------------------------------------


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: Any = None
) -> Array:
    """start, start + step, ... up to `stop`, which is not in it (from 0 where `stop` is not given)."""
    if stop is None:
        start, stop = 0, start
    start, stop, step = numbers = tuple(_known(v) for v in (start, stop, step))
    for v in numbers:
        if not isinstance(v, int | float):
            raise TypeError(f"arange: expected Python numbers, got {v!r}")
    if not step:
        raise ValueError("arange: the step must not be 0")
    all_ints = all(isinstance(v, int) for v in numbers)
    resolved = (dtypes.int64 if all_ints else dtypes.float64) if dtype is None else checked(dtype)
    n = len(range(*map(int, numbers))) if all_ints else max(math.ceil((stop - start) / step), 0)
    wide = resolved if resolved == dtypes.uint64 else dtypes.int64 if all_ints else dtypes.float64
    xp = tracing.creation_backend(resolve(device).backend)
    with xp.scope():
        steps = xp.multiply(xp.iota(n, wide), xp.full((), step, wide))
        return new_array(xp.astype(xp.add(steps, xp.full((), start, wide)), resolved), xp)


def _known(v: Any) -> Any:
    """Return a number given as a 0-d array, which must have a value by now, or as a scalar of NumPy."""
    v = of_python(v)
    if not isinstance(v, Array) or v.ndim or kind(v.dtype) not in "if":
        return v
    return operator.index(v) if kind(v.dtype) == "i" else float(v)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: Any = None, device: Any = None, endpoint: bool = True
) -> Array:
    """Return `num` evenly spaced numbers, the last of which is `stop` if `endpoint`."""
    start, stop = of_python(start), of_python(stop)
    for v in (start, stop):
        if not isinstance(v, int | float | complex):
            raise TypeError(f"linspace: expected Python numbers, got {v!r}")
    num = operator.index(num)
    if num < 0:
        raise ValueError(f"linspace: expected num not to be negative, got {num}")
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    wide = dtypes.complex128 if is_complex else dtypes.float64
    resolved = wide if dtype is None else checked(dtype)
    parts = num - 1 if endpoint else num
    xp = tracing.creation_backend(resolve(device).backend)
    with xp.scope():
        at = xp.astype(xp.iota(num, dtypes.float64), wide)
        distance = xp.full((), (stop - start) / parts if parts > 0 else 0.0, wide)
        out = xp.add(xp.multiply(at, distance), xp.full((), start, wide))
        if endpoint and num > 1:
            last = xp.equal(xp.iota(num, dtypes.int64), num - 1)
            out = xp.where(last, xp.full((), stop, wide), out)
        return new_array(xp.astype(out, resolved), xp)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: Any = None) -> Array:
    """Ones on diagonal `k`, else zeros."""
    rows, columns = shape_of("eye", (n_rows, n_rows if n_cols is None else n_cols))
    resolved = dtypes.float64 if dtype is None else checked(dtype)
    xp = tracing.creation_backend(resolve(device).backend)
    with xp.scope():
        return new_array(xp.eye(rows, columns, resolved, operator.index(k)), xp)


def tril(x: Array, /, *, k: int = 0) -> Array:
    """Return the lower triangles of matrices, diagonal `k` included."""
    return _triangle("tril", x, k)


def triu(x: Array, /, *, k: int = 0) -> Array:
    """Return the upper triangles of matrices, diagonal `k` included."""
    return _triangle("triu", x, k)


def _triangle(name: str, x: Array, k: int) -> Array:
    xp = operand(name, x)
    if x.ndim < 2:
        fail(name, (x,), "an array of at least two dimensions")
    diagonal = operator.index(k)
    with xp.scope():
        return new_array(getattr(xp, name)(x._value(), diagonal), xp, x)


def meshgrid(*arrays: Array, indexing: str = "xy") -> tuple[Array, ...]:
    """Coordinates of a grid over one-dimensional arrays of one dtype; "xy" exchanges the first two axes."""
    if indexing not in ("xy", "ij"):
        raise ValueError(f"meshgrid: expected indexing 'xy' or 'ij', got {indexing!r}")
    if not arrays:
        return ()
    xp, _ = arrays_of("meshgrid", *arrays, kinds="bifc")
    if any(x.ndim != 1 for x in arrays):
        fail("meshgrid", arrays, "arrays of one dimension")
    n = len(arrays)
    order = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    shape = tuple(arrays[a].size for a in order)
    broadcast_shape("meshgrid", arrays, [shape])
    out = []
    with xp.scope():
        for i, x in enumerate(arrays):
            coordinates = xp.reshape(x._value(), tuple(x.size if a == i else 1 for a in order))
            out.append(new_array(xp.broadcast_to(coordinates, shape), xp, x))
    return tuple(out)


__all__ = [
    "arange",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "from_dlpack",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]
