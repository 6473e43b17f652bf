"""Structures as PyTorch takes them apart: nodes that a program has registered count, and keys keep their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.utils._pytree import tree_flatten as flatten


def unflatten(leaves: Iterable[Any], structure: Any) -> Any:
    return structure.unflatten(leaves)


def leaves_of(tree: Any) -> list[Any]:
    return flatten(tree)[0]


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return structure.unflatten(map(function, leaves))


__all__ = ["flatten", "leaves_of", "mapped", "unflatten"]
