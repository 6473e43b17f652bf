"""`tg.parallel.auto` chooses a plan by the sizes of parameters and devices."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tensorgraft.hub import registry
from tensorgraft.hub.placement import Mesh
from tensorgraft.parallel.limits import limit_in_force
from tensorgraft.parallel.matching import resolved, specs_by_name
from tensorgraft.parallel.meshes import as_mesh
from tensorgraft.parallel.models import shard_
from tensorgraft.parallel.plans import data_parallel, fully_sharded, tensor_parallel

_COPIES = 4  # arrays for a trained parameter: itself, its gradient, two moments
_SHARE = 0.5  # of a device's memory for these; the rest is for activations


@dataclass(frozen=True)
class Choice:
    """A plan that `auto` has chosen (a dictionary, which may be changed), and the reason in words."""

    plan: dict[str, Any]
    why: str
    bytes_per_device: int = 0

    def __str__(self) -> str:
        return self.why

    def __iter__(self) -> Iterator[str]:
        return iter(self.plan)


def auto(module: Any, mesh: Mesh, memory: int | None = None) -> Choice:
    """Choose a plan for training a module by the sizes of its parameters, and place the module by it (`shard_`).

    The plan is `data_parallel` if parameters, gradients and two moments take at most half of a device's memory.
    Otherwise they are split over the mesh (`fully_sharded`). If the mesh has an axis "model" and the layers are known,
    these are split along that axis (`tensor_parallel`), and the rest over the other axes.

    Arguments:
        module: a `torch.nn.Module` on the mesh's device.
        mesh: `tg.parallel.mesh(...)`.
        memory: bytes of a device; by default those of `memory_limit`, those that the backend reports, or the host's
            memory divided by the number of its devices.

    Returns the `Choice`: `.plan`, `.why`, `.bytes_per_device` (of parameters, gradients and moments).

    Raises ValueError, before anything is placed, if the parameters do not fit when they are split; and as `shard_`
    does.
    """
    mesh = as_mesh("auto", mesh)
    total = sum(p.numel() * p.element_size() for p in module.parameters())
    trained = sum(p.numel() * p.element_size() for p in module.parameters() if p.requires_grad)
    state = total + (_COPIES - 1) * trained
    capacity = _memory(mesh) if memory is None else memory
    sizes = f"parameters, gradients and moments are {_size(state)}, a device has {_size(capacity)}"
    if state <= _SHARE * capacity:
        choice = Choice(data_parallel(), f"data_parallel: {sizes}, and half of it is enough for all of them", state)
        shard_(module, mesh, choice.plan)
        return choice
    plan = fully_sharded()
    why = f"fully_sharded: {sizes}: each device keeps a part of every parameter"
    if mesh.extents.get("model", 1) > 1:
        try:
            layers = tensor_parallel(module)
        except ValueError:
            layers = {}
        if layers:
            rest = tuple(name for name in mesh.names if name != "model")
            plan = {**layers, **(fully_sharded(*rest) if rest else {"*": ()})}
            why = f"tensor_parallel along 'model', the rest fully_sharded: {sizes}, and the mesh has an axis for layers"
    bytes_each = _COPIES * _share(module, mesh, plan)
    if bytes_each > capacity:
        raise ValueError(
            f"auto: {sizes}, and of {mesh.size} devices each would have {_size(bytes_each)}: a larger mesh, or a"
            " smaller model, is needed"
        )
    shard_(module, mesh, plan)
    return Choice(plan, f"{why}, {_size(bytes_each)} of them", bytes_each)


def _share(module: Any, mesh: Mesh, plan: dict[str, Any]) -> int:
    """Return the bytes of the parameters on one device under a plan."""
    named = dict(module.named_parameters())
    entry_of = specs_by_name(list(named), plan, [name for name, _ in module.named_modules()])
    sizes = 0
    for name, p in named.items():
        shape = tuple(p.shape)
        sizes += math.prod(resolved(entry_of(name), name, shape, mesh).shard_shape(shape)) * p.element_size()
    return sizes


def _memory(mesh: Mesh) -> int:
    limit = limit_in_force() or registry.get(mesh.backend).memory_stats().get("limit")
    if limit:
        return limit
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // registry.device_count(mesh.backend)


def _size(n: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.4g} {unit}"
        n /= 1000
    return f"{n:.4g} TB"
