"""Tensors of PyTorch programs on a mesh."""

from __future__ import annotations

from typing import Any

import torch

from tensorgraft.devices import device
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.core import sharded_tensors, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, to_array
from tensorgraft.frontends.torch.kernels.placed import constrain as _constrained
from tensorgraft.hub.placement import Mesh, Placement

Tensor = torch.Tensor


def check_device(name: str, x: Tensor, mesh: Mesh) -> None:
    """Raises ValueError for a tensor that is not on the device of a mesh, `meta` for one that is abstract."""
    if (mesh.abstract and not state.now.planning) or x.device.type == "meta":
        if not mesh.abstract or x.device.type != "meta":
            raise ValueError(
                f"{name}: a tensor of shape {tuple(x.shape)} is on {x.device}, but the mesh is a {mesh}: meta"
                " tensors require a mesh made with abstract=True, which accepts no others"
            )
        return
    if x.device != device(mesh.backend):
        raise ValueError(
            f"{name}: a tensor of shape {tuple(x.shape)} is on {x.device}, but the {mesh} is on"
            f" {device(mesh.backend)}: move it there first (.to(tg.device({mesh.backend!r})))"
        )


def shard(x: Tensor, mesh: Mesh, placement: Placement) -> Tensor:
    if x.device.type == "cpu" and not mesh.abstract:
        x = x.to(device(mesh.backend))
    check_device("shard", x, mesh)
    if mesh.abstract and not state.now.planning:
        out = x.detach().clone(memory_format=torch.contiguous_format)
        sharded_tensors.place(out, placement)
        return out
    out = _constrained(x, placement)
    sharded_tensors.place(out, placement)
    return out


def own(x: Tensor, mesh: Mesh) -> Any:
    """Return the array of a tensor that this process has for itself; None for one that is spread already, or being
    traced."""
    if state.now.capture is not None or x.device.type not in ("cpu", TYPE):
        return None
    if x.device.type == TYPE and placement(x) is not None:
        return None
    return to_array(x.detach().to(device(mesh.backend)), codes=True)


def assembled(x: Tensor, mesh: Mesh, placement: Placement) -> Tensor:
    if x.requires_grad:
        raise ValueError(
            f"shard_batch: a tensor of shape {tuple(x.shape)} requires a gradient, but each process has only its"
            " part of the batch: use tg.parallel.shard with the whole batch in each process"
        )
    slot = slot_of(device(mesh.backend))
    array = own(x, mesh)
    with slot.backend.scope():
        out = from_array(slot.backend.assembled(array, placement), slot)
    sharded_tensors.place(out, placement)
    return out


def constrain(x: Tensor, placement: Placement) -> Tensor:
    check_device("constrain", x, placement.mesh)
    return _constrained(x, placement)


def mesh_of(x: Tensor) -> Mesh | None:
    if x.device.type != TYPE or state.now.capture is not None:
        return None
    where = placement(x)
    return None if where is None else where.mesh


def placement(x: Tensor) -> Placement | None:
    if x.device.type == "meta":
        return sharded_tensors.pinned(x)
    if x.device.type != TYPE:
        return None
    if state.now.capture is not None:
        raise TracedValueError("placement: the placement of a tensor is unknown while a function is being compiled")
    return cell_of(x).backend.placement(to_array(x.detach(), codes=True))


def bytes_by_device(x: Tensor) -> tuple[int, dict[int, int]]:
    if x.device.type != TYPE:
        return x.untyped_storage().data_ptr(), {}
    cell = cell_of(x)
    return id(cell), cell.backend.bytes_by_device(cell.array)
