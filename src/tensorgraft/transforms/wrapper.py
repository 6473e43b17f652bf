"""The base of the filtered transforms: pytrees around a function, which take arrays of any framework."""

from __future__ import annotations

from typing import Any

import optree

from tensorgraft.arrays import describe, framework_of, is_inexact_array
from tensorgraft.transforms.filters import partition
from tensorgraft.transforms.module import Module, Partial


class WrappedFunction(Module):
    """A transformed function, of which the function is a child: arrays that it holds are seen by other transforms.

    As a decorator of a method it passes the module on.
    """

    fn: Any

    def __check_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"expected a function to transform, got a {type(self.fn).__qualname__}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    @property
    def __wrapped__(self) -> Any:
        return self.fn

    @property
    def __name__(self) -> str:
        return name_of(self.fn)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else Partial(self, instance)


def name_of(fn: Any) -> str:
    """Return the name of a function in messages."""
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None)
    return name if isinstance(name, str) else type(fn).__qualname__


def adopted(tree: Any) -> Any:
    """Return a pytree whose arrays are `Array`s: NumPy's copied to the device of the others, others where they are."""
    from tensorgraft.frontends.array_api.core.array import Array
    from tensorgraft.frontends.array_api.standard.creation import asarray

    leaves, structure = optree.tree_flatten(tree)
    kinds = [framework_of(x) for x in leaves]
    if all(kind in (None, "tensorgraft") for kind in kinds):
        return tree
    leaves = [
        x if kind in (None, "tensorgraft", "numpy") else asarray(x) for x, kind in zip(leaves, kinds, strict=True)
    ]
    device = next((x.device for x in leaves if isinstance(x, Array)), None)
    leaves = [asarray(x, device=device, copy=True) if k == "numpy" else x for x, k in zip(leaves, kinds, strict=True)]
    return optree.tree_unflatten(structure, leaves)


def smooth(tree: Any) -> tuple[Any, Any]:
    """Return (what has a derivative, the rest)."""
    return partition(tree, is_inexact_array)


def describe_leaves(tree: Any) -> str:
    """Return the leaves of a pytree in an error message."""
    leaves = optree.tree_leaves(tree)
    return ", ".join(describe(x) if framework_of(x) else type(x).__qualname__ for x in leaves) or "no leaves"
