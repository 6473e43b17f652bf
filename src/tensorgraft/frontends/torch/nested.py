"""Lists and tuples of arguments.

A function inside another that calls itself is a reference cycle: what it closes over (tensors!) would live until the
garbage collector runs. These are functions of the module, and close over nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def map_nested(fn: Callable[[Any], Any], a: Any) -> Any:
    """`fn` of every leaf of nested lists and tuples, which become lists."""
    return [map_nested(fn, x) for x in a] if isinstance(a, list | tuple) else fn(a)


def flatten(a: Any) -> Iterator[Any]:
    """The leaves of nested lists and tuples."""
    if isinstance(a, list | tuple):
        for x in a:
            yield from flatten(x)
    else:
        yield a
