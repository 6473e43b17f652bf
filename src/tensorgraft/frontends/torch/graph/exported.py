"""Programs of `torch.export` as modules that run on the device, whatever device they were captured on."""

from __future__ import annotations

import copy
import itertools
import warnings
from typing import Any, TypeGuard

import torch
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from tensorgraft.frontends.torch.graph.nodes import CONTROL_FLOW
from tensorgraft.frontends.torch.sparse.parts import is_sparse


def is_exported(program: Any) -> TypeGuard[torch.export.ExportedProgram | GraphModule]:
    """Return True for an `ExportedProgram`, or the result of its `module()`."""
    return isinstance(program, torch.export.ExportedProgram | GraphModule)


def copied(module: torch.nn.Module, memo: dict[int, Any] | None = None) -> Any:
    """Return a deep copy of a module. PyTorch warns of its own classes where it copies a graph, and has no deep copies
    of compressed sparse tensors, and of sparse parameters."""
    memo = {} if memo is None else memo
    for t in itertools.chain(module.parameters(), module.buffers()):
        if is_sparse(t) and id(t) not in memo:
            clone = t.detach().clone()
            memo[id(t)] = torch.nn.Parameter(clone, t.requires_grad) if isinstance(t, torch.nn.Parameter) else clone
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return copy.deepcopy(module, memo)


def on_device(program: torch.export.ExportedProgram | GraphModule, device: torch.device) -> torch.nn.Module:
    """Return a module that makes its tensors on `device`. Its parameters and buffers are the program's own, which stays
    as it is."""
    root = program.module() if isinstance(program, torch.export.ExportedProgram) else program
    tensors = itertools.chain(root.parameters(), root.buffers())
    module = copied(root, {id(t): t for t in tensors})

    def moved(a: Any) -> Any:
        return device if isinstance(a, torch.device) else a

    for part in module.modules():
        if isinstance(part, GraphModule):
            for node in part.graph.nodes:
                node.args, node.kwargs = map_aggregate(node.args, moved), map_aggregate(node.kwargs, moved)
                if getattr(node.target, "namespace", None) == "higher_order":
                    node.target = CONTROL_FLOW.get(node.target.name(), node.target)
            part.recompile()
    return module
