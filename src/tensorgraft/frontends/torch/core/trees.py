"""Arguments and results of compiled functions as flat lists, `None` among the leaves.

`optree` flattens in C++; PyTorch registers its pytree nodes with it under the namespace "torch". Only PyTorch's own
pytree knows a few of them (those of `register_dataclass`), and flattens trees that contain them.
"""

from __future__ import annotations

import types
from collections import deque
from typing import Any

import optree
import torch
from torch.utils import _cxx_pytree as _  # noqa: F401  registers PyTorch's nodes with optree
from torch.utils import _pytree

from tensorgraft.compiled.expanded import expanding
from tensorgraft.compiled.function import Boxed, Leaves, Structure, call_of, flattening, unflatten_call
from tensorgraft.compiled.objects import containers
from tensorgraft.compiled.values import exact, is_plain

_ATOMS = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, type(None), torch.dtype})


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    structure: Any
    try:
        leaves, structure = optree.tree_flatten(tree, none_is_leaf=True, namespace="torch")
    except RecursionError:
        raise
    except RuntimeError:  # keys that are tensors, which cannot be sorted
        leaves, structure = _pytree.tree_flatten(tree)
    else:
        for leaf in leaves:
            if leaf.__class__ not in _ATOMS and leaf.__class__ in _pytree.SUPPORTED_NODES:
                leaves, structure = _pytree.tree_flatten(tree)
                break
    return leaves, structure if structure in _without_tensors else _by_identity(tree, leaves, structure)


class TensorKeys:
    """A structure with tensors among its dictionary keys. It is equal to another if both have the same tensor objects
    as keys, at the same places among the leaves; their values are not compared."""

    def __init__(self, structure: Structure, keys: tuple[Any, ...]) -> None:
        self._structure, self._keys, self._hash = structure, keys, hash(structure)

    def __eq__(self, other: object) -> bool:
        # tensors are hashed by identity, so equal hashes mean equal structures except for the order of the tensors
        return isinstance(other, TensorKeys) and self._hash == other._hash and self._keys == other._keys

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return str(self._structure)

    def unflatten(self, leaves: list[Any]) -> Any:
        return self._structure.unflatten(leaves)


_without_tensors: set[Structure] = set()  # structures known to have no tensors among their keys


def _by_identity(tree: Any, leaves: list[Any], structure: Structure) -> Structure:
    """Return `structure`, wrapped in `TensorKeys` if dictionaries in the tree have tensors as keys."""
    keys = [key for x in containers(tree) if isinstance(x, dict) for key in x]
    tensors = {id(key) for key in keys if isinstance(key, torch.Tensor)}
    if tensors:
        keys = [id(key) if isinstance(key, torch.Tensor) else key for key in keys]
        return TensorKeys(structure, (*keys, *(id(x) if id(x) in tensors else None for x in leaves)))
    if len(_without_tensors) < 1024:
        _without_tensors.add(structure)
    return structure


def flatten_results(tree: Any) -> tuple[list[Any], Structure]:
    """Flatten the result of a function; sizes are leaves, which otherwise would be tuples."""
    if not any(type(x) is torch.Size for x in containers(tree)):
        return flatten(tree)
    is_size = lambda x: type(x) is torch.Size  # noqa: E731
    return optree.tree_flatten(tree, is_leaf=is_size, none_is_leaf=True, namespace="torch")


def numbers_in(tree: Any) -> list[Any]:
    """Return exact keys for dictionary keys that are no strings, and for the static data of the program's pytree
    classes."""
    values: list[Any] = []
    stack = [tree]
    while stack:
        x = stack.pop()
        if isinstance(x, dict | list | tuple | deque):
            if isinstance(x, dict):
                values += [exact(key) for key in x if key.__class__ is not str and is_plain(key)]
            stack.extend(x.values() if isinstance(x, dict) else x)
        elif x.__class__ in _pytree.SUPPORTED_NODES:
            parts, context = _pytree.SUPPORTED_NODES[x.__class__].flatten_fn(x)
            stack.extend(parts)
            values += [exact(context)] if is_plain(context) and context is not None else []
    return values


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    return structure.unflatten(leaves)


_WHOLE = (
    torch.Tensor,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.Generator,
    type,
    types.ModuleType,
    types.FunctionType,
)


def is_whole(x: Any) -> bool:
    """Return whether an object among the arguments is a leaf as a whole: its contents have guards of their own."""
    return isinstance(x, _WHOLE)


flatten_call = flattening(
    _ATOMS,
    expanding(flatten, _ATOMS, is_whole, lambda x: isinstance(x, torch.Tensor)),
)


__all__ = [
    "Boxed",
    "Leaves",
    "Structure",
    "call_of",
    "flatten",
    "flatten_call",
    "flatten_results",
    "is_whole",
    "numbers_in",
    "unflatten",
    "unflatten_call",
]
