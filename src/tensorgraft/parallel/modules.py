"""`tg.parallel.shard_` of PyTorch's modules."""

from __future__ import annotations

import dataclasses
import fnmatch
import gc
import math
import weakref
from typing import Any

import torch

from tensorgraft.devices import device
from tensorgraft.frontends.torch.core import sharded_tensors
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.hub.placement import Mesh, Placement, placement
from tensorgraft.parallel.matching import resolved, specs_by_name
from tensorgraft.parallel.meshes import placement_of
from tensorgraft.parallel.of_torch import check_device, constrain, shard
from tensorgraft.parallel.placing import check_same
from tensorgraft.parallel.plans import EVERY_AXIS, Output, Plan

Tensor = torch.Tensor


def shard_module(model: torch.nn.Module, mesh: Mesh, plan: Plan) -> torch.nn.Module:
    """See `tg.parallel.shard_`."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    parts = dict(model.named_modules())
    entry_of = specs_by_name([name for name, _ in named], plan, list(parts))
    placements: dict[int, tuple[str, Tensor, Placement]] = {}  # {id of a tensor: (name, tensor, placement)}
    for name, t in named:
        entry = entry_of(name)
        if t.device.type != "cpu" or mesh.abstract:
            check_device(f"shard_: {name}", t, mesh)
        elif t.grad_fn is not None or t.layout != torch.strided:
            raise ValueError(f"shard_: {name} cannot be moved, since it is {t.layout}, computed")
        if not sharded_tensors.fills(t):
            raise ValueError(f"shard_: {name} is a view of a larger storage: make a copy (.clone()) first")
        where = resolved(entry, name, tuple(t.shape), mesh)
        if id(t) in placements:  # tied
            before, _, other = placements[id(t)]
            if entry is None or where == other:
                continue
            if entry_of(before) is not None:
                raise ValueError(
                    f"shard_: {before} and {name} are the same parameter, but plan has different specs for them"
                )
        placements[id(t)] = name, t, where
    outputs = [(part, entry) for pattern, entry in plan.items() if isinstance(entry, Output)
               for part in (parts[n] for n in fnmatch.filter(parts, pattern))]  # fmt: skip
    for _, entry in outputs:
        placement(mesh, entry.spec, len(entry.spec), "shard_: Output")
        placement(mesh, (_batch_axes(entry, mesh),), 1, "shard_: Output")
    check_same("shard_", model, mesh, {name: t for name, t, _ in placements.values()})
    for _, t, where in placements.values():
        _place_tensor(t, where)
    _place_states(placements, mesh)
    for hooked in _hooks.pop(model, []):  # hooks of an earlier plan
        hooked.remove()
    _hooks[model] = [part.register_forward_hook(OutputHook(mesh, entry)) for part, entry in outputs]
    sharded_tensors.retrace_functions()
    return model


_hooks: weakref.WeakKeyDictionary[torch.nn.Module, list[Any]] = weakref.WeakKeyDictionary()


def _place_tensor(t: Tensor, where: Placement) -> None:
    if t.device.type == "cpu":  # one after the other, so that no device has all of a model
        t.data = shard(t.detach(), where.mesh, where)
    else:
        sharded_tensors.place(t, where)
    if t.is_leaf and t.device.type != "meta":
        sharded_tensors.hook(t)
    if t.grad is not None and t.grad.device == t.device and sharded_tensors.fills(t.grad):
        sharded_tensors.place(t.grad, where)


def _place_states(placements: dict[int, tuple[str, Tensor, Placement]], mesh: Mesh) -> None:
    """Place what optimizers that were made before keep of the parameters."""
    for optimizer in [x for x in gc.get_objects() if issubclass(type(x), torch.optim.Optimizer)]:
        for p, state in optimizer.state.items():
            if id(p) not in placements or not isinstance(state, dict):
                continue
            for key, value in state.items():
                if isinstance(value, Tensor) and value.device.type == "cpu" and value.shape == p.shape and value.dim():
                    state[key] = shard(value, mesh, placements[id(p)][2])
                elif isinstance(value, Tensor) and value.device.type in (TYPE, "meta") and sharded_tensors.fills(value):
                    like = value.shape == p.shape
                    where = placements[id(p)][2] if like else placement_of((), mesh, tuple(value.shape), "shard_")
                    sharded_tensors.place(value, where)


def _batch_axes(entry: Output, mesh: Mesh) -> tuple[str, ...]:
    return mesh.names if entry.batch == (EVERY_AXIS,) else entry.batch


class OutputHook:
    """A hook that places the output of a submodule by a plan. (A class, so that a module with such hooks can be
    pickled.)"""

    def __init__(self, mesh: Mesh, entry: Output) -> None:
        self.mesh, self.spec, self.axes = mesh, entry.spec, _batch_axes(entry, mesh)

    def __call__(self, module: torch.nn.Module, args: Any, out: Any) -> Any:
        mesh = self.mesh
        if not isinstance(out, Tensor) or out.device != device(mesh.backend) or not out.dim():
            return out  # elsewhere while it is recorded
        if self.axes:
            batch = next((x for x in args if isinstance(x, Tensor) and x.dim() > 1), None)
            parts = math.prod(mesh.extents[name] for name in self.axes)
            if batch is None or out.dim() < 2 or len(batch) != len(out) or len(out) % parts:
                return out
            by_batch = placement(mesh, (self.axes,), out.dim(), "shard_")
            return constrain(out, dataclasses.replace(by_batch, free=tuple(range(1, out.dim()))))
        if out.dim() != len(self.spec):
            return out
        label = f"the output of {type(module).__name__}"
        return constrain(out, placement_of(self.spec, mesh, tuple(out.shape), label))
