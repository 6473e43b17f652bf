"""Programs of `torch.export`: ATen operators, parameters and buffers, in one file."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.export import Dim, export, save

from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.formats import Format
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.structure import filled, taken
from tensorgraft.exporting.subject import Subject
from tensorgraft.exporting.traced_loops import inline_numbers
from tensorgraft.hub import dtypes
from tensorgraft.hub.recorded.block import leaves


def _program(converted: Converted, subject: Subject) -> torch.nn.Module:
    """Return a module that is called as the program, whose arguments have the program's names."""
    structure = subject.structure

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = taken(structure, (args, kwargs))
        return converted.call([found[k] for k in sorted(found)])

    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("self", kinds[0])]
    parameters += [inspect.Parameter(name, kinds[0]) for name in subject.positional_names()]
    parameters += [inspect.Parameter(name, kinds[1]) for name in structure[1]]
    forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    module = type(subject.name, (torch.nn.Module,), {"forward": forward})()
    if isinstance(converted.holder, torch.nn.Module):
        module.program = converted.holder
    return module


def _write(
    converted: Converted, subject: Subject, sizes: OpenSizes, path: str, options: Mapping[str, Any]
) -> list[str]:
    arrays = [tensor_of(x, subject) for x in sizes.tracing_arrays()]
    structure = subject.structure
    args, kwargs = filled(structure, arrays)
    shapes = filled(structure, [
        {axis: Dim.AUTO if isinstance(n, str) else Dim.STATIC for axis, n in enumerate(sizes.shape(k))}
        for k in range(len(arrays))
    ])  # fmt: skip
    module = converted.direct
    flat = structure == (tuple(range(len(arrays))), {})
    if isinstance(module, torch.nn.Module) and flat and _is_plain(module, args):
        by_argument = shapes[0]
    else:
        module = _program(converted, subject)
        by_argument = {**dict(zip(subject.positional_names(), shapes[0], strict=True)), **shapes[1]}
    with torch.no_grad():  # a program that changes the mode itself becomes one that cannot be loaded
        exported = export(module, args, kwargs, dynamic_shapes=by_argument)
    _fix_specialised(exported, sizes)
    inline_numbers(exported)
    save(exported, path)
    return []


def tensor_of(x: Any, subject: Subject) -> torch.Tensor:
    if isinstance(x, torch.Tensor):
        return x
    values = np.array(subject.source.numpy(x))
    if values.dtype == dtypes.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def _is_plain(module: torch.nn.Module, args: Any) -> bool:
    """Return True if a module returns tensors in tuples, lists and dictionaries."""

    def check(x: Any) -> bool:
        if type(x) in (tuple, list, dict):
            return all(map(check, x.values() if type(x) is dict else x))
        return isinstance(x, torch.Tensor)

    buffers = {name: b.clone() for name, b in module.named_buffers()}
    with torch.no_grad():
        out = module(*args)
        for name, b in module.named_buffers():
            b.copy_(buffers[name])
    return check(out)


def _fix_specialised(exported: Any, sizes: OpenSizes) -> None:
    """Fix the sizes that PyTorch has made constants."""
    structure = filled(sizes.subject.structure, [*range(len(sizes.subject.arrays))])
    order = [*leaves(structure)]  # PyTorch sorts no dictionaries, JAX does
    names = dict(zip(order, exported.graph_signature.user_inputs, strict=True))
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    for g in sizes.open():
        for array, axis in sizes.groups[g].axes:
            extent = nodes[names[array]].meta["val"].shape[axis]
            if not isinstance(extent, torch.SymInt) or extent.node.maybe_as_int() is not None:
                sizes.fix([g], f"torch.export makes axis {axis} of {sizes.subject.names[array]} a constant")
                break


FORMAT = Format("pt2", "torch", "torch", ".pt2", _write)
