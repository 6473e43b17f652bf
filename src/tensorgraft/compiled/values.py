"""Plain Python values, which are constants of a trace and are compared exactly: 0.0 differs from -0.0, NaN equals
itself, 2 differs from 2.0. Other objects are compared by identity."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

_SCALARS: set[type] = {bool, int, float, complex, str, bytes, type(None)}


def plain(*kinds: type) -> None:
    """Register further types whose values are plain, such as PyTorch's dtypes."""
    _SCALARS.update(kinds)


def is_scalar(value: Any) -> bool:
    return type(value) in _SCALARS


def is_plain(value: Any) -> bool:
    """Return True for a scalar, or a tuple or a frozen set of plain values."""
    kind = type(value)
    return kind in _SCALARS or ((kind is tuple or kind is frozenset) and all(map(is_plain, value)))


def exact(value: Any) -> Any:
    """Return a key of a plain value that is equal for exactly the same values."""
    kind = value.__class__
    if kind is float:
        return kind, value.hex()
    if kind is complex:
        return kind, value.real.hex(), value.imag.hex()
    return kind, kind(map(exact, value)) if kind is tuple or kind is frozenset else value


class SameObject:
    """A key of an object that compares by identity, whatever the object's `==` does, and keeps the object alive."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)

    def __repr__(self) -> str:
        return f"another {type(self.of).__name__}"


class Replaceable:
    """A placeholder for a value that each call looks up again; the trace depends only on its kind."""

    def __init__(self, kind: Any, kind_of: Callable[[Any], Any]) -> None:
        self.kind, self._kind_of = kind, kind_of

    def holds(self, value: Any) -> bool:
        return bool(self._kind_of(value) == self.kind)


def is_same_value(a: Any, b: Any) -> bool:
    """Return True for the same object, the same plain value, or an object of the kind of a `Replaceable`."""
    if b.__class__ is Replaceable:
        return bool(b.holds(a))
    return a is b or (type(a) is type(b) and is_plain(a) and bool(exact(a) == exact(b)))


def keys_of(objects: Iterable[Any]) -> tuple[Any, ...]:
    """Return keys of plain values, and identities of other objects, which the caller has to keep alive."""
    return tuple(exact(v) if is_plain(v) else id(v) for v in objects)
