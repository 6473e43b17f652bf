"""Python numbers among the arguments of a compiled function: inputs of the program, unless the function reads their
values.

While `tg.jit` traces, such an argument is a `Number`. It is an int, float or complex for Python: every operation of
these types works, and notes that the value was read, which makes it a constant of the program. Operators and functions
of `Array`s, and `tensorgraft.random.key`, use `converted` or `array`, an input of the program, without reading the
value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.compiled.values import plain as count_as_plain
from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

DTYPES = {int: dtypes.int64, float: dtypes.float64, complex: dtypes.complex128}


def is_input(x: Any) -> bool:
    """Return True for an argument that a program can take as an input: a number as Python has it, that 64 bits hold."""
    return type(x) in DTYPES and (type(x) is not int or -(2**63) <= x < 2**63)


class Use:
    """A record of how a trace used one of its numbers. It outlives the `Number`."""

    def __init__(self, value: Any, xp: Backend, capture: tracing.ArrayCapture) -> None:
        self.value = value
        self.looked_at = False
        self.bounds = (-math.inf, math.inf)  # the range of ints for which the program is valid
        self.cell: Storage | None = None  # the input, once it is used
        self.backend = xp
        self.capture: tracing.ArrayCapture | None = capture  # None when the trace has ended

    def fits(self, low: int, high: int) -> bool:
        """Return whether the value is within bounds; if so, the program is for such values only."""
        if not low <= self.value <= high:
            return False
        self.bounds = max(low, self.bounds[0]), min(high, self.bounds[1])
        return True

    def on(self, xp: Backend, capture: tracing.ArrayCapture) -> Any:
        """Return the input, as an array of a backend inside the trace."""
        if self.cell is None:
            host = np.asarray(self.value, DTYPES[type(self.value)])
            with self.backend.eagerly():
                self.cell = Storage(self.backend.asarray(host), self.backend)
        capture.touch(self.cell)
        storage = Storage(self.cell.array, self.backend)  # a transform inside may take it along; the input stays
        storage.capture = capture
        capture_inside = tracing.now.capture
        while storage.backend is not xp and capture_inside is not None and capture_inside is not capture:
            if capture_inside.inner is xp:
                capture_inside.touch(storage)
            capture_inside = capture_inside.before
        assert storage.backend is xp
        return storage.array


class Number:
    """Stands for a Python number while a function is traced."""

    __slots__ = ("__weakref__", "_use")
    _use: Use

    def __init__(self, use: Use) -> None:
        object.__setattr__(self, "_use", use)

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # isinstance(x, int), without a look at the value
        return type(self._use.value)

    @property
    def is_live(self) -> bool:
        """Return True while the trace is going on and the value is not fixed: the number is then an input of the
        program."""
        return self._use.capture is not None and not self._use.looked_at

    def observe(self) -> Any:
        self._use.looked_at = True
        return self._use.value

    def fits(self, low: int, high: int) -> bool:
        """Return whether an integer dtype, from `low` to `high`, holds the value, without looking at more of it."""
        return self._use.fits(low, high) if self.is_live else low <= self._use.value <= high

    def converted(self, xp: Backend, dtype: np.dtype) -> Any:
        """Return a 0-d array of the backend; the caller has seen that the dtype takes numbers of this kind."""
        capture = self._use.capture
        if capture is None or self._use.looked_at:
            return xp.full((), self._use.value, dtype)
        return xp.astype(self._use.on(xp, capture), dtype)

    def traced(self, xp: Backend) -> Any:
        """Return a new 0-d array of the backend (int64, float64, complex128); None where it can be none but of the
        value."""
        if not self.is_live or xp is not self._use.backend:
            return None
        with xp.scope():
            return xp.copy(self.converted(xp, DTYPES[type(self._use.value)]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.observe(), dtype)

    def __getattr__(self, name: str) -> Any:
        kind = type(self._use.value)
        if not hasattr(kind, name):  # it depends on the type only
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        return getattr(self.observe(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.observe(), name, value)  # raises


def plain_number(x: Any) -> Any:
    """Return the plain Python number, and note that its value was read."""
    return x.observe() if isinstance(x, Number) else x


def _method(kind: type, name: str) -> Callable[..., Any]:
    operator = getattr(kind, name)

    def method(self: Number, *operands: Any) -> Any:
        if any(hasattr(type(x), "__array_namespace__") for x in operands):
            return NotImplemented  # the array's own operator takes the number
        return operator(self.observe(), *map(plain_number, operands))

    method.__name__ = name
    return method


_LEFT = {"__class__", "__delattr__", "__dir__", "__getattribute__", "__getstate__", "__init__", "__init_subclass__",
         "__new__", "__setattr__", "__subclasshook__", "__doc__", "__reduce__", "__reduce_ex__", "__sizeof__",
         "__getnewargs__", "__getformat__"}  # fmt: skip


def _reduce(self: Number, protocol: Any = None) -> Any:
    value = self.observe()
    return type(value), (value,) if not isinstance(value, complex) else (value.real, value.imag)


def _class_of(kind: type) -> type[Number]:
    names = [n for n in dir(kind) if n.startswith("__") and n not in _LEFT and callable(getattr(kind, n))]
    methods: dict[str, Any] = {name: _method(kind, name) for name in names}
    return type(f"{kind.__name__.title()}Number", (Number,),
                {"__slots__": (), **methods, "__reduce_ex__": _reduce})  # fmt: skip


_CLASSES = {kind: _class_of(kind) for kind in DTYPES}
count_as_plain(*_CLASSES.values())


def stand_for(use: Use) -> Any:
    return _CLASSES[type(use.value)](use)
