"""Marks that tell primitives from composites."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def primitive(method: F) -> F:
    """Mark a method of the hub that every backend must write."""
    method.is_primitive = True
    return method


def shape_query(method: F) -> F:
    """Mark a method that tells a number of an array's shape, and computes nothing."""
    method.is_told = True
    return method


def primitives(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the primitives that `cls` inherits or declares, by name."""
    methods = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if getattr(member, "is_primitive", False):
                methods[name] = member
    return methods


def composites(cls: type) -> dict[str, Callable[..., Any]]:
    """Return the composites of the hub (public methods that are no primitives), by name."""
    methods: dict[str, Callable[..., Any]] = {}
    for base in cls.__mro__:
        if base.__module__.startswith(__package__):
            for name, member in vars(base).items():
                if not name.startswith("_") and callable(member) and not getattr(member, "is_primitive", False):
                    methods.setdefault(name, member)
    return methods
