"""How a function of the standard reaches the hub: its operands on one backend, in one dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorgraft.frontends.array_api.array import Array
from tensorgraft.frontends.array_api.promotion import KINDS, default_dtype, kind, of_scalar, promote
from tensorgraft.hub.backend import Backend

SCALARS = (bool, int, float, complex)


def backend_of(name: str, *operands: Any) -> Backend:
    """The backend of the operands that are arrays. Raises TypeError where none is one, or one is something else;
    ValueError where they are on several devices."""
    found = None
    for x in operands:
        if x.__class__ is Array:
            xp = x._cell.backend
            if found is None:
                found = xp
            elif xp is not found:
                places = ", ".join(dict.fromkeys(str(o.device) for o in operands if isinstance(o, Array)))
                raise ValueError(f"{name}: the arrays are on several devices ({places}): move them with to_device")
        elif not isinstance(x, SCALARS):
            raise TypeError(
                f"{name}: expected arrays of tensorgraft.array_api, got a {type(x).__module__}.{type(x).__qualname__}:"
                " asarray makes one of it"
            )
    if found is None:
        raise TypeError(f"{name}: at least one operand must be an array")
    return found


def dtype_of_call(name: str, operands: Sequence[Any]) -> Any:
    """The dtype to which the operands are promoted."""
    dtype = None
    for x in operands:
        if x.__class__ is Array:
            try:
                dtype = x.dtype if dtype is None else promote(dtype, x.dtype)
            except TypeError as error:
                raise TypeError(f"{name}({show(operands)}): {error}") from None
    for x in operands:
        if x.__class__ is not Array:
            try:
                dtype = of_scalar(x, dtype)
            except TypeError as error:
                raise TypeError(f"{name}({show(operands)}): {error}") from None
    return dtype


def check_kind(name: str, kinds: str, dtype: Any, operands: Sequence[Any]) -> None:
    if kind(dtype) not in kinds:
        wanted = " or ".join(KINDS[k] for k in kinds)
        raise TypeError(f"{name}({show(operands)}): expected a {wanted} dtype")


def converted(xp: Backend, x: Any, dtype: Any) -> Any:
    """An operand as an array of the backend of a dtype."""
    if x.__class__ is Array:
        value = x._value()
        return value if x.dtype == dtype else xp.astype(value, dtype)
    return xp.full((), x, dtype)


def show(operands: Sequence[Any]) -> str:
    """Operands in an error message: arrays as dtype[shape]."""
    return ", ".join(
        f"{x.dtype}[{', '.join(map(str, x.shape))}]" if isinstance(x, Array) else repr(x) for x in operands
    )


__all__ = [
    "SCALARS",
    "backend_of",
    "check_kind",
    "converted",
    "default_dtype",
    "dtype_of_call",
    "show",
]
