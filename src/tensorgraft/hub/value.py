"""Arrays with operators: in a function marked `with_operators` arrays are `Value`s, and formulas read as such.

    @with_operators
    def slope(xp, y, g, a, b):
        return g * b * a ** xp.where(b == 0, 1, b - 1)

is called with a backend and its arrays, and returns arrays. Inside, `xp` is a `ValueBackend`, which has the backend's
operations on values; each operator is the operation of the backend that bears its name, Python numbers included.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations import operations
from tensorgraft.hub.operations.elementwise import ELEMENTWISE, PREDICATES, UNARY


def _operator(name: str) -> tuple[Any, Any]:
    """Return the methods `value op other` and `other op value`."""

    def method(self: Value, other: Any) -> Value:
        xp = self.backend
        return Value(getattr(xp, name)(self.array, other.array if type(other) is Value else other), xp)

    def reflected(self: Value, other: Any) -> Value:
        return Value(getattr(self.backend, name)(other, self.array), self.backend)

    return method, reflected


def _bitwise(name: str) -> tuple[Any, Any]:
    """Return the operators of bits, which are those of logic where the values are bool."""

    def named(value: Value) -> str:
        return f"{'logical' if value.dtype.kind == 'b' else 'bitwise'}_{name}"

    def method(self: Value, other: Any) -> Value:
        xp = self.backend
        return Value(getattr(xp, named(self))(self.array, other.array if type(other) is Value else other), xp)

    def reflected(self: Value, other: Any) -> Value:
        return Value(getattr(self.backend, named(self))(other, self.array), self.backend)

    return method, reflected


class Value:
    """An array and the backend that computes with it. `xp.where`, not `if`, asks about its elements.

    >>> import numpy as np
    >>> from tensorgraft.hub import registry
    >>> xp = ValueBackend(registry.get("numpy"))
    >>> x = xp.asarray(np.array([1.0, 2.0]))
    >>> (2 * x**2 + 1).array.tolist()
    [3.0, 9.0]
    """

    __slots__ = ("array", "backend")
    __array_ufunc__ = None  # NumPy's arrays and numbers leave mixed operations to this class
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: Array, backend: Backend) -> None:
        self.array = array
        self.backend = backend

    @property
    def shape(self) -> tuple[int, ...]:
        return self.backend.shape(self.array)

    @property
    def ndim(self) -> int:
        return len(self.backend.shape(self.array))

    @property
    def dtype(self) -> np.dtype:
        return self.backend.dtype_of(self.array)

    def __bool__(self) -> bool:
        raise TypeError("a value of the hub has no truth: it may be traced (xp.where chooses by elements)")

    def __repr__(self) -> str:
        return f"Value({self.array!r})"

    def __neg__(self) -> Value:
        return Value(self.backend.negative(self.array), self.backend)

    def __abs__(self) -> Value:
        return Value(self.backend.abs(self.array), self.backend)

    def __invert__(self) -> Value:
        xp = self.backend
        return Value((xp.logical_not if self.dtype.kind == "b" else xp.bitwise_invert)(self.array), self.backend)

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide")
    __mod__, __rmod__ = _operator("remainder")
    __pow__, __rpow__ = _operator("pow")
    __matmul__, __rmatmul__ = _operator("matmul")
    __lshift__, __rlshift__ = _operator("bitwise_left_shift")
    __rshift__, __rrshift__ = _operator("bitwise_right_shift")
    __and__, __rand__ = _bitwise("and")
    __or__, __ror__ = _bitwise("or")
    __xor__, __rxor__ = _bitwise("xor")
    __lt__, __le__ = _operator("less")[0], _operator("less_equal")[0]
    __gt__, __ge__ = _operator("greater")[0], _operator("greater_equal")[0]
    __eq__, __ne__ = _operator("equal")[0], _operator("not_equal")[0]


class ValueBackend:
    """A backend whose operations take and return `Value`s. What is no operation it has from `backend`."""

    __slots__ = ("backend",)

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self.backend, name)
        if not isinstance(attribute, types.MethodType):
            return attribute

        def method(*args: Any, **kwargs: Any) -> Any:
            return attribute(*map(array_of, args), **{name: array_of(a) for name, a in kwargs.items()})

        return method

    def is_array(self, x: Any, /) -> bool:
        return type(x) is Value

    def host_call(self, fn: Callable[..., Any], operands: Sequence[Value], results: Sequence[Any], /) -> list[Value]:
        return _value(self, self.backend.host_call(fn, [array_of(x) for x in operands], results))


def _unary(name: str) -> Callable[..., Value]:
    return lambda self, x: Value(getattr(self.backend, name)(x.array if type(x) is Value else x), self.backend)


def _binary(name: str) -> Callable[..., Value]:
    def method(self: ValueBackend, x: Any, y: Any) -> Value:
        a, b = x.array if type(x) is Value else x, y.array if type(y) is Value else y
        return Value(getattr(self.backend, name)(a, b), self.backend)

    return method


def _operation(name: str) -> Callable[..., Any]:
    def method(self: ValueBackend, *args: Any, **kwargs: Any) -> Any:
        out = getattr(self.backend, name)(*[_array(self, a) for a in args], **_arrays(self, kwargs))
        return _value(self, out)

    return method


_LISTS = (tuple, list)
_MAKERS = ("asarray", "lifted", "custom_vjp", "vmap", "jvp")  # methods that return arrays and are no operations
for _name in {*operations(), *_MAKERS} - {"host_call"}:
    _arity = 0 if _name not in ELEMENTWISE else 1 if _name in UNARY or _name in PREDICATES else 2
    setattr(ValueBackend, _name, (_operation, _unary, _binary)[_arity](_name))


def array_of(x: Value | Array) -> Array:
    """Return the array of a value; an array as it is."""
    return x.array if type(x) is Value else x


def _value(xp: ValueBackend, x: Any) -> Any:
    """Return `x` with its arrays as values."""
    if xp.backend.is_array(x):
        return Value(x, xp.backend)
    if isinstance(x, _LISTS):
        return _like(x, [_value(xp, v) for v in x])
    return {k: _value(xp, v) for k, v in x.items()} if type(x) is dict else x


def _array(xp: ValueBackend, x: Any) -> Any:
    """Return `x` with its values as arrays; a function, which a backend calls with arrays, gets values."""
    if type(x) is Value:
        return x.array
    if isinstance(x, _LISTS):
        return _like(x, [_array(xp, v) for v in x])
    if type(x) is dict:
        return _arrays(xp, x)
    return _function(xp, x) if isinstance(x, _FUNCTIONS) else x


def _like(x: Any, items: list[Any]) -> Any:
    """Return a list, a tuple, or a named tuple like `x`."""
    return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)


def _arrays(xp: ValueBackend, xs: dict[str, Any]) -> dict[str, Any]:
    return {name: _array(xp, x) for name, x in xs.items()}


_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)


def _function(xp: ValueBackend, fn: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a body of a loop, a branch, or a rule (a function whose first argument is the backend) to a function of
    arrays."""

    def call(*args: Any) -> Any:
        if args and isinstance(args[0], Backend):
            return with_operators(fn)(*args)
        return _array(xp, fn(*[_value(xp, a) for a in args]))

    return call


def with_operators(fn: Callable[..., Any], host: Sequence[int] = ()) -> Callable[..., Any]:
    """Make of a function of a `ValueBackend` and values one of a backend and arrays. Called with a `ValueBackend`, as
    functions of values call each other, it is `fn`. `host`: positions of operands that stay NumPy's arrays.
    """

    @functools.wraps(fn)
    def call(xp: Any, *args: Any, **kwargs: Any) -> Any:
        if type(xp) is ValueBackend:
            return fn(xp, *args, **kwargs)
        view = ValueBackend(xp)
        is_array = xp.is_array
        operands = [Value(a, xp) if is_array(a) else _value(view, a) if isinstance(a, _LISTS) else a for a in args]
        for i in host:
            if i < len(args):
                operands[i] = args[i]
        if kwargs:
            kwargs = {k: Value(a, xp) if is_array(a) else a for k, a in kwargs.items()}
        out = fn(view, *operands, **kwargs)
        return out.array if type(out) is Value else _array(view, out)

    call.is_formula = True
    return call


def is_formula(fn: Callable[..., Any]) -> bool:
    """Return True if `fn` is a function of arrays that `with_operators` has made."""
    return getattr(fn, "is_formula", False)


AnyArray = TypeVar("AnyArray", Array, Value)
"""The arguments and results of a function of a backend's operations, which functions of values may call, too."""
