"""Operands of the standard's functions, brought to the hub: on one backend, in one dtype, along axes that exist."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.array_api.core import traced_value_errors, tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.promotion import KINDS, kind, of_scalar, promote
from tensorgraft.frontends.array_api.core.traced_numbers import Number
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.backend import common

SCALARS = (bool, int, float, complex)
LOOSE = ("b", "f", "fc")  # kinds for which `accepted` has conversions
Axis = int | Sequence[int] | None


def fail(name: str, operands: Sequence[Any], expected: str, error: type[Exception] = ValueError) -> NoReturn:
    raise error(f"{name}({show(operands)}): expected {expected}")


def show(operands: Sequence[Any]) -> str:
    """Operands in an error message: arrays as dtype[shape]."""
    return ", ".join(
        f"{x.dtype}[{', '.join(map(str, x.shape))}]" if isinstance(x, Array) else repr(x) for x in operands
    )


def operand(name: str, x: Any, kinds: str = "bifc") -> Backend:
    """Return the backend of the only operand of a call. Raises TypeError for an operand that is no array, or of another
    kind."""
    if x.__class__ is not Array and not isinstance(x, Array):
        not_an_array(name, x)
    if kind(x.dtype) not in kinds:
        check_kind(name, kinds, x.dtype, (x,))
    return x._cell.backend


def backend_of(name: str, *operands: Any) -> Backend:
    """Return the backend of the operands that are arrays; the others are Python scalars.

    Raises TypeError where none is an array, or one is something else; ValueError where they are on several devices.
    """
    backend = None
    for x in operands:
        if isinstance(x, Array):
            xp = x._cell.backend
            if backend is None:
                backend = xp
            elif xp is not backend:
                shared = common(backend, xp)
                if shared is not None:
                    backend = shared
                    continue
                arrays = [o for o in operands if isinstance(o, Array)]
                if tracing.join(*[cell for o in arrays for cell in o._cells()]):
                    return next((xp for o in arrays if (xp := o._cell.backend).compound), arrays[0]._cell.backend)
                devices = ", ".join(dict.fromkeys(str(o.device) for o in operands if isinstance(o, Array)))
                raise ValueError(f"{name}: the arrays are on several devices ({devices}): move them with to_device")
        elif not isinstance(x, SCALARS):
            not_an_array(name, x)
    if backend is None:
        raise TypeError(f"{name}({show(operands)}): expected an array among the operands")
    return backend


def accepted(kinds: str, *operands: Any) -> tuple[Any, ...]:
    """Return the operands of a function of `kinds`, beyond the standard where NumPy and JAX agree.

    One of floating-point numbers alone takes arrays of integers and truths in the default dtype, unless another one is
    of floating-point numbers; one of truths takes numbers, which are true where they are not zero.
    """
    arrays = [x for x in operands if isinstance(x, Array)]
    if kinds == "b":
        return tuple(_in(dtypes.bool_, x) if isinstance(x, Array) else bool(x) for x in operands)
    if kinds not in LOOSE or any(kind(x.dtype) in "fc" for x in arrays):
        return operands
    return tuple(_in(dtypes.float64, x) if isinstance(x, Array) else x for x in operands)


def orderable(xp: Backend, x: Array) -> Any:
    """Return the values in a dtype that backends have an order for: truths as 0 and 1."""
    return xp.astype(x._value(), dtypes.uint8) if x.dtype == dtypes.bool_ else x._value()


def _in(dtype: np.dtype, x: Array) -> Array:
    xp = x._cell.backend
    with xp.scope():
        return x if x.dtype == dtype else new_array(xp.astype(x._value(), dtype), xp)


def of_python(x: Any) -> Any:
    """A scalar of NumPy, or an array of it without dimensions, is the Python number that it holds, as it is to PyTorch:
    it has no dtype to promote to. (NumPy makes such arrays of scalars that it compares.)"""
    if not isinstance(x, np.generic) and not (type(x) is np.ndarray and not x.ndim):
        return x
    value = x.item()
    if isinstance(value, np.floating | np.complexfloating):  # wider than Python's
        value = float(x) if isinstance(value, np.floating) else complex(x)
    return value if isinstance(value, SCALARS) else x


def not_an_array(name: str, x: Any) -> NoReturn:
    raise TypeError(
        f"{name}: expected an array of tensorgraft.array_api, got a {type(x).__module__}.{type(x).__qualname__}:"
        " convert it with asarray"
    )


def arrays_of(name: str, *operands: Any, kinds: str = "ifc") -> tuple[Backend, np.dtype]:
    """Return (the backend, the common dtype) of operands that are all arrays."""
    for x in operands:
        if not isinstance(x, Array):
            not_an_array(name, x)
    xp = backend_of(name, *operands)
    dtype = dtype_of_call(name, operands)
    check_kind(name, kinds, dtype, operands)
    return xp, dtype


def dtype_of_call(name: str, operands: Sequence[Any]) -> np.dtype:
    """Return the dtype to which the operands, of which one is an array, are promoted."""
    try:
        return common_dtype([x.dtype if isinstance(x, Array) else x for x in operands])
    except (TypeError, OverflowError) as error:
        raise type(error)(f"{name}({show(operands)}): {error}") from None


def common_dtype(dtypes_and_scalars: Sequence[Any]) -> np.dtype:
    """Return the dtype of a call of arrays of dtypes, and Python scalars."""
    dtype = None
    for x in dtypes_and_scalars:
        if isinstance(x, np.dtype):
            dtype = x if dtype is None else promote(dtype, x)
    assert dtype is not None
    for x in dtypes_and_scalars:
        if not isinstance(x, np.dtype):
            dtype = of_scalar(x, dtype)
    return dtype


def check_kind(name: str, kinds: str, dtype: np.dtype, operands: Sequence[Any]) -> None:
    if kind(dtype) not in kinds:
        fail(name, operands, f"a {' or '.join(KINDS[k] for k in kinds)} dtype", TypeError)


def converted(xp: Backend, x: Any, dtype: np.dtype) -> Any:
    """Return an operand as an array of the backend of a dtype."""
    if isinstance(x, Array):
        value = x._value()
        return value if x.dtype == dtype else xp.astype(value, dtype)
    return x.converted(xp, dtype) if isinstance(x, Number) else xp.full((), x, dtype)


# ---- axes and shapes -------------------------------------------------------------------------------------------------


def axis_of(name: str, x: Array, axis: Any, ndim: int | None = None) -> int:
    """Return `axis`, counted from the start, of `ndim` axes (those of `x` if None). Raises AxisError, TypeError."""
    n = x.ndim if ndim is None else ndim
    try:
        at = operator.index(axis)
    except TypeError:
        fail(name, (x,), f"an axis that is an int, got {axis!r}", TypeError)
    if not -n <= at < n:
        raise np.exceptions.AxisError(f"{name}({show((x,))}): axis {at} is out of bounds for {n} dimensions")
    return at % n


def axes_of(name: str, x: Array, axis: Axis, ndim: int | None = None) -> tuple[int, ...]:
    """Return the axes that `axis` means (None: all), counted from the start."""
    n = x.ndim if ndim is None else ndim
    if axis is None:
        return tuple(range(n))
    axes = tuple(axis_of(name, x, a, n) for a in (axis if isinstance(axis, tuple | list) else (axis,)))
    if len(set(axes)) != len(axes):
        fail(name, (x,), f"axes that differ, got {axis}")
    return axes


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """Return a shape, or the extent of a one-dimensional one. Raises TypeError, ValueError for a negative extent,
    ShapeError for one that is being traced."""
    extents = extents_of(name, shape)
    if any(n < 0 for n in extents):
        raise ValueError(f"{name}: the shape {extents} has a negative extent")
    return extents


def extents_of(name: str, shape: Any) -> tuple[int, ...]:
    """Return the ints of a shape, negative ones too. Raises TypeError, ShapeError."""
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    try:
        return tuple([operator.index(n) for n in sizes])
    except TypeError:
        raise TypeError(f"{name}: expected a shape, an int or a tuple of ints, got {shape!r}") from None
    except TracedValueError:
        traced = next(n for n in sizes if isinstance(n, Array) and not is_known(n))
    raise traced_value_errors.shape_needed(name, shape, traced)


def is_known(x: Array) -> bool:
    """Return True if the array has values by now."""
    try:
        x._host()
    except TracedValueError:
        return False
    return True


def broadcast_shape(name: str, operands: Sequence[Array], shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        fail(name, operands, "shapes that broadcast: on each axis, from the last, equal extents or 1")


__all__ = [
    "LOOSE",
    "SCALARS",
    "Axis",
    "accepted",
    "arrays_of",
    "axes_of",
    "axis_of",
    "backend_of",
    "broadcast_shape",
    "check_kind",
    "common_dtype",
    "converted",
    "dtype_of_call",
    "extents_of",
    "fail",
    "is_known",
    "new_array",
    "not_an_array",
    "of_python",
    "operand",
    "orderable",
    "shape_of",
    "show",
]
