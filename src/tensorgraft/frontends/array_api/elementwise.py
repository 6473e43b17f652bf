"""Elementwise functions of the standard."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tensorgraft.frontends.array_api.array import Array, made
from tensorgraft.frontends.array_api.calls import backend_of, check_kind, converted, dtype_of_call, show
from tensorgraft.frontends.array_api.promotion import kind
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

Kernel = Callable[..., Any]  # (the backend, its arrays of one dtype) -> an array of it


def _unary(name: str, kinds: str, kernel: Kernel | None = None, same: str = "") -> Callable[[Array], Array]:
    """`same`: kinds of which the result is the operand's values."""

    def fn(x: Array, /) -> Array:
        if x.__class__ is not Array:
            backend_of(name, x)
            raise TypeError(f"{name}: expected an array, got {x!r}")
        xp = x._cell.backend
        dtype = x.dtype
        k = kind(dtype)
        if k not in kinds:
            check_kind(name, kinds, dtype, (x,))
        with xp.scope():
            value = x._value()
            if k in same:
                return made(xp.copy(value), xp)
            out = getattr(xp, name)(value) if kernel is None else kernel(xp, value)
            return Array(Storage(xp.own(out) if xp.mutable else out, xp))

    fn.__name__ = fn.__qualname__ = name
    return fn


def _binary(name: str, kinds: str, kernel: Kernel | None = None) -> Callable[[Any, Any], Array]:
    def fn(x1: Any, x2: Any, /) -> Array:
        if x1.__class__ is Array and x2.__class__ is Array and x1._cell.backend is x2._cell.backend:
            xp = x1._cell.backend
            dtype = x1.dtype
            same = dtype == x2.dtype
        else:
            xp, dtype, same = backend_of(name, x1, x2), None, False
        if not same:
            dtype = dtype_of_call(name, (x1, x2))
        if kind(dtype) not in kinds:
            check_kind(name, kinds, dtype, (x1, x2))
        with xp.scope():
            a = x1._value() if same else converted(xp, x1, dtype)
            b = x2._value() if same else converted(xp, x2, dtype)
            try:
                out = getattr(xp, name)(a, b) if kernel is None else kernel(xp, a, b)
            except Exception:
                _check_broadcast(name, x1, x2)
                raise
            return Array(Storage(xp.own(out) if xp.mutable else out, xp))

    fn.__name__ = fn.__qualname__ = name
    return fn


def _check_broadcast(name: str, *operands: Any) -> None:
    """Where a backend has raised: say so if the shapes were the reason."""
    import numpy as np

    try:
        np.broadcast_shapes(*(x.shape for x in operands if isinstance(x, Array)))
    except ValueError:
        raise ValueError(f"{name}({show(operands)}): the shapes do not broadcast") from None


def _bool_or(name: str) -> Kernel:
    """Comparisons of complex and bool arrays through a common order-free kernel: only equality has them."""
    return lambda xp, a, b: getattr(xp, name)(a, b)


def _floor_divide(xp: Backend, a: Any, b: Any) -> Any:
    return xp.floor_divide(a, b)


def _copied(xp: Backend, x: Any) -> Any:
    return xp.copy(x)


def _false(xp: Backend, x: Any) -> Any:
    return xp.full(xp.shape(x), False, dtypes.bool_)


def _true(xp: Backend, x: Any) -> Any:
    return xp.full(xp.shape(x), True, dtypes.bool_)


def _on_inexact(name: str, otherwise: Kernel) -> Kernel:
    """Predicates of NaN and infinity: integers have neither."""
    return lambda xp, x: getattr(xp, name)(x) if dtypes.is_inexact(xp.dtype_of(x)) else otherwise(xp, x)


# name -> (kinds, kernel or None for the hub's method of that name, kinds returned as they are)
UNARY: dict[str, tuple[Any, ...]] = {
    "abs": ("ifc", lambda xp, x: x if xp.dtype_of(x).kind == "u" else xp.abs(x)),
    **{
        n: ("fc",)
        for n in (
            *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log1p"),
            *("log2", "log10", "reciprocal", "sin", "sinh", "sqrt", "tan", "tanh"),
        )
    },
    "bitwise_invert": ("bi", lambda xp, x: xp.bitwise_invert(x)),
    **{n: ("if", None, "i") for n in ("ceil", "floor", "round", "trunc")},
    "round": ("ifc", lambda xp, x: _round(xp, x), "i"),
    "conj": ("ifc", None, "if"),
    "imag": ("c",),
    "real": ("ifc", None, "if"),
    "isfinite": ("ifc", _on_inexact("isfinite", _true)),
    "isinf": ("ifc", _on_inexact("isinf", _false)),
    "isnan": ("ifc", _on_inexact("isnan", _false)),
    "logical_not": ("b",),
    "negative": ("ifc",),
    "positive": ("ifc", _copied),
    "sign": ("ifc",),
    "signbit": ("f",),
    "square": ("ifc",),
}
BINARY: dict[str, tuple[Any, ...]] = {
    "add": ("ifc",),
    "atan2": ("f",),
    **{n: ("bi",) for n in ("bitwise_and", "bitwise_or", "bitwise_xor")},
    **{n: ("i",) for n in ("bitwise_left_shift", "bitwise_right_shift")},
    "copysign": ("f",),
    "divide": ("fc",),
    "equal": ("bifc",),
    "floor_divide": ("if", _floor_divide),
    **{n: ("if",) for n in ("greater", "greater_equal", "less", "less_equal", "maximum", "minimum")},
    "hypot": ("f",),
    "logaddexp": ("f",),
    **{n: ("b",) for n in ("logical_and", "logical_or", "logical_xor")},
    "multiply": ("ifc",),
    "nextafter": ("f",),
    "not_equal": ("bifc",),
    "pow": ("ifc",),
    "remainder": ("if",),
    "subtract": ("ifc",),
}


def _round(xp: Backend, x: Any) -> Any:
    """Halves to even; complex numbers in both parts."""
    if dtypes.is_complex(xp.dtype_of(x)):
        return xp.complex(xp.round(xp.real(x)), xp.round(xp.imag(x)))
    return xp.round(x)


for _name, _row in UNARY.items():
    globals()[_name] = _unary(_name, *_row)
for _name, _row in BINARY.items():
    globals()[_name] = _binary(_name, *_row)


def clip(x: Array, /, min: Any = None, max: Any = None) -> Array:
    """Bounds that are no wider than the dtype of `x` can hold; the result has that dtype."""
    xp = backend_of("clip", *(v for v in (x, min, max) if v is not None))
    check_kind("clip", "if", x.dtype, (x,))
    for bound in (min, max):
        if isinstance(bound, Array):
            check_kind("clip", kind(x.dtype), bound.dtype, (x, bound))
    with xp.scope():
        low, high = (
            None if v is None else converted(xp, v, x.dtype if not isinstance(v, Array) else _no_wider(x, v))
            for v in (min, max)
        )
        return made(xp.clip(xp.copy(x._value()), low, high), xp)


def _no_wider(x: Array, bound: Array) -> Any:
    return x.dtype


def where(condition: Array, x1: Any, x2: Any, /) -> Array:
    """`x1` where `condition` (bool) holds, else `x2`; all three broadcast."""
    xp = backend_of("where", condition, x1, x2)
    if not isinstance(condition, Array) or condition.dtype != dtypes.bool_:
        raise TypeError(f"where({show((condition, x1, x2))}): the condition must be an array of booleans")
    dtype = dtype_of_call("where", (x1, x2))
    with xp.scope():
        return made(xp.where(condition._value(), converted(xp, x1, dtype), converted(xp, x2, dtype)), xp)


def _reflected(fn: Callable[..., Array]) -> Callable[[Array, Any], Any]:
    return lambda self, other: fn(other, self)


def _operator(fn: Callable[..., Array]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def method(self: Array, other: Any) -> Any:
        return fn(self, other)

    return method
