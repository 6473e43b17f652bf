"""Lists and tuples of arguments.

A function inside another that calls itself is a reference cycle: what it closes over (tensors!) would live until the
garbage collector runs. These are functions of the module, and close over nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch


def map_nested(fn: Callable[[Any], Any], a: Any) -> Any:
    """Apply `fn` to every leaf of nested lists and tuples, which become lists."""
    return [map_nested(fn, x) for x in a] if isinstance(a, list | tuple) else fn(a)


def flatten(a: Any) -> Iterator[Any]:
    """Yield the leaves of nested lists and tuples."""
    if isinstance(a, list | tuple):
        for x in a:
            yield from flatten(x)
    else:
        yield a


def tensors_in(args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors of a call, in the order in which keys, plans and cells number them."""
    values = [*args, *(a for name, a in kwargs.items() if name != "generator")]
    return [a for a in flatten(values) if isinstance(a, torch.Tensor)]
