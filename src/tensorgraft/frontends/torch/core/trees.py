"""Arguments and results of compiled functions as flat lists, `None` among the leaves.

`optree` flattens in C++; PyTorch registers its pytree nodes with it under the namespace "torch". A few of them
(`register_dataclass`) PyTorch's own pytree knows alone.
"""

from __future__ import annotations

from typing import Any

import optree
import torch
from torch.utils import _cxx_pytree as _  # noqa: F401  registers PyTorch's nodes with optree
from torch.utils import _pytree

from tensorgraft.compiled.function import Structure, flattening, unflatten_call

_ATOMS = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str, type(None), torch.dtype})


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    leaves, structure = optree.tree_flatten(tree, none_is_leaf=True, namespace="torch")
    for leaf in leaves:
        if leaf.__class__ not in _ATOMS and _pytree._get_node_type(leaf) in _pytree.SUPPORTED_NODES:
            return _pytree.tree_flatten(tree)
    return leaves, structure


def unflatten(structure: Structure, leaves: list[Any]) -> Any:
    return structure.unflatten(leaves)


flatten_call = flattening(_ATOMS, flatten)

__all__ = ["Structure", "flatten", "flatten_call", "unflatten", "unflatten_call"]
