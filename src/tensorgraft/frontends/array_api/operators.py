"""Operators of `Array`: those of Python, reflected and in place, by the functions of their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensorgraft.frontends.array_api import elementwise, linear_algebra
from tensorgraft.frontends.array_api.array import Array
from tensorgraft.frontends.array_api.calls import SCALARS, fail

Function = Callable[..., Array]

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


def _forward(fn: Function) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any, /) -> Any:
        if other.__class__ is not Array and not isinstance(other, OPERANDS):
            return NotImplemented
        return fn(self, other)

    return method


def _reflected(fn: Function) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any, /) -> Any:
        return fn(other, self) if isinstance(other, SCALARS) else NotImplemented

    return method


def _in_place(name: str, fn: Function) -> Callable[[Array, Any], Any]:
    """Writes the storage, seen through every view of it. The result must have the dtype and the shape of the array:
    TypeError and ValueError otherwise, with nothing written."""

    def method(self: Array, other: Any, /) -> Any:
        if other.__class__ is not Array and not isinstance(other, OPERANDS):
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
    for name, method in methods.items():
        method.__name__ = method.__qualname__ = name
        setattr(Array, name, method)


_install()
