"""Classes as pytrees: of `optree` at once, of JAX and PyTorch where those are imported, and never by importing them.

What was made before a framework was imported is registered with it when the next module is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import optree

_Functions = tuple[type, Callable[..., Any], Callable[..., Any]]
_known: list[_Functions] = []
_registered = {"jax": 0, "torch": 0}  # {framework: number of classes that were registered with it}


def register(cls: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]) -> None:
    """Register a class as a pytree node. `flatten`: x -> (children, structure, names); `unflatten`: (structure,
    children) -> x."""
    namespace = getattr(optree.registry, "__GLOBAL_NAMESPACE")
    optree.register_pytree_node(cls, flatten, unflatten, path_entry_type=optree.GetAttrEntry, namespace=namespace)
    _known.append((cls, flatten, unflatten))
    catch_up()


def catch_up() -> None:
    """Tell frameworks that were imported meanwhile."""
    for name, path, register in (("jax", "jax.tree_util", _with_jax), ("torch", "torch.utils._pytree", _with_torch)):
        if _registered[name] == len(_known) or path not in sys.modules:
            continue
        module = sys.modules[path]
        if getattr(module.__spec__, "_initializing", False) or getattr(sys.modules[name].__spec__, "_initializing", 0):
            continue  # it is being imported
        begin, _registered[name] = _registered[name], len(_known)
        for entry in _known[begin:]:
            register(module, *entry)


def _with_jax(tree_util: Any, cls: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]) -> None:
    def with_keys(x: Any) -> tuple[Any, Any]:
        children, structure, names = flatten(x)
        return [(tree_util.GetAttrKey(n), c) for n, c in zip(names, children, strict=True)], structure

    tree_util.register_pytree_with_keys(cls, with_keys, unflatten, lambda x: flatten(x)[:2])


def _with_torch(pytree: Any, cls: type, flatten: Callable[..., Any], unflatten: Callable[..., Any]) -> None:
    def with_keys(x: Any) -> tuple[Any, Any]:
        children, structure, names = flatten(x)
        return [(pytree.GetAttrKey(n), c) for n, c in zip(names, children, strict=True)], structure

    def plain(x: Any) -> tuple[list[Any], Any]:
        children, structure, _ = flatten(x)
        return list(children), structure

    pytree.register_pytree_node(
        cls, plain, lambda children, structure: unflatten(structure, list(children)), flatten_with_keys_fn=with_keys
    )
