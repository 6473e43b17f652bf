"""Shapes and dtypes of the results of a function of `Array`s, without computing them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import optree

from tensorgraft.frontends.array_api.core import devices, tracing
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.hub.abstract import AbstractBackend, ShapeDtype
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage


class _ShapesOf(AbstractBackend):
    """The abstract backend in the place of a backend that computes."""

    def __init__(self, real: Backend) -> None:
        super().__init__()
        self.real = real

    def lifted(self, x: Any) -> ShapeDtype:
        return x if isinstance(x, ShapeDtype) else ShapeDtype(self.real.shape(x), self.real.dtype_of(x))

    def vmap(self, fn: Callable[..., Any], /, *arrays: Any) -> tuple[Any, ...]:
        """Evaluate one slice, since all slices have the same shapes."""
        out = fn(self, *(x.like(*x.shape[1:]) for x in arrays))
        return tuple(y.like(arrays[0].shape[0], *y.shape) for y in out)


@functools.cache
def _shapes_of(real: Backend) -> _ShapesOf:
    shapes = _ShapesOf(real)
    devices.alias_device(shapes, real)
    return shapes


def eval_shape(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], named_function: Any) -> Any:
    """Run `fn(*args, **kwargs)` on the abstract backend, with a `ShapeDtype` for each array in its arguments and its
    result. Side effects are undone. `named_function`: the function named in errors."""
    leaves: list[Any]
    call: Any = (fn, args, kwargs)
    leaves, structure = optree.tree_flatten(call)
    known = [x._cell.backend for x in leaves if isinstance(x, Array)]
    if any(xp is not known[0] for xp in known):
        names = ", ".join(dict.fromkeys(str(x.device) for x in leaves if isinstance(x, Array)))
        raise ValueError(f"filter_eval_shape: the arrays are on several devices ({names}): move them with to_device")
    real = known[0] if known else devices.default().backend
    if isinstance(real, _ShapesOf):  # inside of another
        real = real.real
    inner = _shapes_of(real)
    cells: dict[int, Storage] = {}  # arguments that share a storage
    with tracing.capturing(real, inner, name="filter_eval_shape", fn=named_function) as capture:
        for i, x in enumerate(leaves):
            if isinstance(x, ShapeDtype):
                cell, geometry = Storage(x, inner), None
            elif isinstance(x, Array):
                cell, geometry = cells.setdefault(id(x._cell), Storage(inner.lifted(x._cell.array), inner)), x._geometry
            else:
                continue
            cell.capture = capture
            capture.arguments.add(id(cell))
            cells[id(cell)] = cell
            leaves[i] = Array(cell, geometry)
        call_tree: Any = optree.tree_unflatten(structure, leaves)
        inner_fn, positional, named = call_tree
        out = inner_fn(*positional, **named)
        return optree.tree_map(lambda x: ShapeDtype(x.shape, x.dtype) if isinstance(x, Array) else x, out)
