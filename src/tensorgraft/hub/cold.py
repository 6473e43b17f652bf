"""Operations of the hub on the cold tier of a backend: without a compiler, until compiling them is worth its cost.

A composite, or a kernel of a front end, is computed as a whole: its operands are lent once, and only its results are
adopted. If the cold backend raises an error, the backend itself is called, so that errors are the backend's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import numpy as np

from tensorgraft.hub import tiers
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.host_copies import MOST_ELEMENTS
from tensorgraft.hub.operations import operations
from tensorgraft.hub.operations.attention import Attention
from tensorgraft.hub.operations.control_flow import ControlFlow

B = TypeVar("B", bound=type[Backend])

_MOST = 1 << 13  # signatures whose work is remembered
_heats: dict[Any, tiers.Heat] = {}


def attempt(
    xp: Backend, key: Hashable, program: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> tuple[Any] | None:
    """Return the result of `program(backend, *args, **kwargs)` on the cold tier, with arrays of `xp`, in a tuple; None
    if `xp` has to compute it: without a cold tier, in a trace, for arrays that cannot be lent, and when the signature
    is worth compiling. Call in `xp.scope()`.

    Arguments:
        key: identifies the program and its static parameters.
        args: arrays of `xp`, sequences of them, and static arguments.
    """
    host = xp.cold
    if host is None or not tiers.tiered():
        return None
    parts: list[Any] = [key, xp]
    for x in args:
        _add_to_key(xp, x, parts)
    if kwargs:
        parts += kwargs
        for x in kwargs.values():
            _add_to_key(xp, x, parts)
    signature = tuple(parts)
    try:
        heat = _heats.get(signature)
    except TypeError:  # a static argument that is not hashable
        return None
    if heat is _HOT or xp.is_tracing():
        return None
    if heat is None:
        if len(_heats) >= _MOST:
            _heats.clear()
        heat = _heats[signature] = tiers.Heat()
    lent_operands = _LentOperands(xp, host)
    try:
        lent_args = [lent_operands.of(x) for x in args]
        named = {name: lent_operands.of(x) for name, x in kwargs.items()} if kwargs else {}
    except _Unsuited:
        return None
    if heat.spent(lent_operands.elements, 0 if xp.host_visible else len(lent_operands.arrays)):
        _heats[signature] = _HOT
        return None
    try:
        with host.scope():
            out = program(host, *lent_args, **named)
    except Exception:  # the backend is called now, and raises its own error if there is one
        _heats[signature] = _HOT
        return None
    return (lent_operands.back(out),)


_HOT = tiers.Heat()  # stands for signatures that are hot, or that the cold backend cannot compute
_arrays: set[tuple[Backend, type]] = set()  # (backend, a class of its arrays)


def _add_to_key(xp: Backend, x: Any, signature: list[Any]) -> None:
    """Add the properties of an operand that belong to the signature."""
    kind = x.__class__
    if (xp, kind) in _arrays or kind is np.ndarray:
        signature += (x.shape, x.dtype)
    elif kind is tuple or kind is list:
        signature.append(len(x))
        for item in x:
            _add_to_key(xp, item, signature)
    elif kind is float or kind is complex:
        signature.append(kind)
    elif xp.is_array(x):
        _arrays.add((xp, kind))
        signature += (x.shape, x.dtype)
    else:
        signature += (kind, x)


class _Unsuited(Exception):
    """An operand cannot be lent to the cold tier."""


class _LentOperands:
    """The operands of one call as arrays of the cold backend, and the way back for its results."""

    def __init__(self, xp: Backend, host: Backend) -> None:
        self.xp, self.host = xp, host
        self.arrays: dict[int, tuple[Array, Array]] = {}  # {id of a lent array: (the lent array, its owner)}
        self.elements = 0

    def of(self, x: Any) -> Any:
        kind = x.__class__
        if (self.xp, kind) in _arrays:
            if not self.xp.host_visible and math.prod(self.xp.shape(x)) > MOST_ELEMENTS:
                raise _Unsuited
            host_array = self.xp.lend(x)
            view = None if host_array is None else self.host.over_memory(np.asarray(host_array))
            if view is None:
                raise _Unsuited
            self.arrays[id(view)] = view, x
            self.elements += view.size
            return view
        if kind is tuple or kind is list:
            return kind([self.of(item) for item in x])
        if callable(x) and not isinstance(x, type | np.dtype):
            raise _Unsuited
        return x

    def back(self, x: Any) -> Any:
        if self.host.is_array(x):
            entry = self.arrays.get(id(x))
            if entry is not None:
                return entry[1]
            values = self.host.to_numpy(x)
            # views are copied: the backend may reuse the memory of a lent array while the result still exists
            return self.xp.adopt(values if values.flags.owndata else np.array(values, order="C"))
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            return type(x)(*map(self.back, x))
        return type(x)(map(self.back, x)) if isinstance(x, tuple | list) else x


def with_cold_tier(cls: B) -> B:
    """A class decorator: the first calls of each operation of the hub are computed by `cls.cold`."""
    not_wrapped = {*vars(ControlFlow), *vars(Attention)}  # they take functions; attention has its own kernel
    for name in operations():
        if name not in not_wrapped:
            setattr(cls, name, _operation(name, getattr(cls, name)))
    return cls


def _operation(name: str, hot: Callable[..., Any]) -> Callable[..., Any]:
    def program(host: Backend, *args: Any, **kwargs: Any) -> Any:
        return getattr(host, name)(*args, **kwargs)

    state = tiers._state

    @functools.wraps(hot)
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        if state.mode == "tiered":
            if len(args) == 2 and not kwargs:  # most calls: looked up as `attempt` does, in a third of the time
                x, y = args
                if (
                    (self, x.__class__) in _arrays
                    and (self, y.__class__) in _arrays
                    and _heats.get((name, self, x.shape, x.dtype, y.shape, y.dtype)) is _HOT
                ):
                    return hot(self, x, y)
            out = attempt(self, name, program, args, kwargs)
            if out is not None:
                return out[0]
        return hot(self, *args, **kwargs)

    return method
