"""Operators, solvers and solutions as pytrees, registered in every namespace so that each transform takes them
apart."""

from __future__ import annotations

import functools
from typing import Any

import optree
from optree.registry import __GLOBAL_NAMESPACE as _GLOBAL

_register: Any = optree.register_pytree_node


def register(cls: type, flatten: Any, unflatten: Any) -> None:
    """Register a class as pytree node. `flatten`: object -> (children, static data, names of the children);
    `unflatten`: (class, static data, children) -> object."""
    _register(cls, flatten, functools.partial(unflatten, cls), namespace=_GLOBAL)
