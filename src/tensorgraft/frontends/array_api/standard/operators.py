"""Operators of `Array`, reflected and in place, which call the functions of their names; indexing; moves between
devices.

Operands are `Array`s, numbers, and arrays of NumPy, which are moved to the device, as are values in assignments and
indices. Arrays of other frameworks raise TypeError on either side, because they have devices of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core import exchange, indexing
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.frontends.array_api.core.calls import SCALARS, fail, of_python
from tensorgraft.frontends.array_api.standard import elementwise, linear_algebra, utility
from tensorgraft.frontends.array_api.standard.data_types import astype
from tensorgraft.hub import dtypes

Function = Callable[..., Any]

OPERANDS = (Array, *SCALARS)
UNARY = {"abs": "abs", "neg": "negative", "pos": "positive", "invert": "bitwise_invert"}
COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
# with a reflected one and one in place
BINARY = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "matmul": "matmul",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}


def _forward(fn: Function) -> Callable[..., Any]:
    def method(self: Array, other: Any, /) -> Any:
        if other.__class__ is not Array and not isinstance(other, OPERANDS):
            other = _operand(fn.__name__, self, other)
            if other is NotImplemented:
                return NotImplemented
        return fn(self, other)

    return method


def _reflected(fn: Function) -> Callable[..., Any]:
    def method(self: Array, other: Any, /) -> Any:
        if not isinstance(other, SCALARS):
            other = _operand(fn.__name__, self, other)
            if other is NotImplemented:
                return NotImplemented
        return fn(other, self)

    return method


def _operand(name: str, x: Array, other: Any) -> Any:
    """Return a number of NumPy as one of Python, an array of NumPy on the device of `x`. Other objects are left to
    their own operators, but the arrays of a framework are refused at once: it might read the values of ours, quietly,
    and go on with them."""
    other = of_python(other)
    if isinstance(other, OPERANDS):
        return other
    if type(other) is np.ndarray:
        return indexing.from_host(x._cell.backend, other)
    if exchange.backend_that_made(other) is None:
        return NotImplemented
    kind = f"{type(other).__module__.partition('.')[0]}.{type(other).__qualname__}"
    raise TypeError(
        f"unsupported operand of {name}: expected an array of tensorgraft.array_api or a number, got a {kind}:"
        f" convert it with asarray(it, device={str(x.device)!r})"
    )


def _to_a_power(power: Callable[[Array, Any], Any]) -> Callable[..., Any]:
    """Refuse `pow(x, y, modulus)`, which is for Python's ints only, as in NumPy and PyTorch."""

    def method(self: Array, other: Any, modulus: Any = None, /) -> Any:
        return power(self, other) if modulus is None else NotImplemented

    return method


def _quotient_and_remainder(x: Any, y: Any) -> tuple[Array, Array]:
    return elementwise.floor_divide(x, y), elementwise.remainder(x, y)  # type: ignore[attr-defined]


def _in_place(name: str, fn: Function) -> Callable[[Array, Any], Any]:
    """Writes the storage, seen through every view of it. The result must have the dtype and the shape of the array:
    TypeError and ValueError otherwise, with nothing written."""

    def method(self: Array, other: Any, /) -> Any:
        if other.__class__ is not Array and not isinstance(other, OPERANDS):
            other = _operand(name, self, other)
            if other is NotImplemented:
                return NotImplemented
        out = fn(self, other)
        if out.dtype != self.dtype:
            fail(
                name,
                (self, other),
                f"operands whose result can be written into {self.dtype}, not {out.dtype}",
                TypeError,
            )
        if out.shape != self.shape:
            fail(name, (self, other), f"operands whose result has the shape {self.shape}, not {out.shape}")
        with self._cell.backend.scope():
            self._write(out._cell.array)
        return self

    return method


def _round(self: Array, ndigits: int | None = None) -> Array:
    """Halves to even: whole numbers as int64, of `ndigits` decimals in the dtype of the array, as JAX's arrays."""
    out = elementwise.rounded(self, ndigits or 0)
    return astype(out, dtypes.int64) if ndigits is None and out.dtype.kind not in "iu" else out


def _contains(self: Array, value: Any, /) -> bool:
    """Return whether some element equals the value, as in NumPy and PyTorch."""
    equal = self == value
    return bool(utility.any(equal)) if isinstance(equal, Array) else equal


def _install() -> None:
    functions = {**vars(elementwise), "matmul": linear_algebra.matmul}
    methods: dict[str, Callable[..., Any]] = {}
    for name, function in UNARY.items():
        methods[f"__{name}__"] = lambda self, fn=functions[function]: fn(self)
    for name, function in (COMPARISONS | BINARY).items():
        methods[f"__{name}__"] = _forward(functions[function])
    for name, function in BINARY.items():
        methods[f"__r{name}__"] = _reflected(functions[function])
        methods[f"__i{name}__"] = _in_place(f"__i{name}__", functions[function])
    methods["__pow__"] = _to_a_power(methods["__pow__"])
    methods["__round__"], methods["__contains__"] = _round, _contains
    methods["__getitem__"], methods["__setitem__"], methods["to_device"] = (
        indexing.get,
        indexing.put,
        exchange.to_device,
    )
    methods["__divmod__"] = _forward(_quotient_and_remainder)
    methods["__rdivmod__"] = _reflected(_quotient_and_remainder)
    for name, method in methods.items():
        method.__name__ = method.__qualname__ = name
        setattr(Array, name, method)


_install()
