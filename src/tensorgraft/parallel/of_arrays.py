"""Arrays of the Array API on a mesh."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.hub.placement import Mesh, Placement
from tensorgraft.storage import Storage, pin


def _check(name: str, x: Array, mesh: Mesh) -> None:
    if x._cell.backend.name != mesh.backend:
        raise ValueError(
            f"{name}: an array of shape {x.shape} is on {x.device}, but the {mesh} is on another device: move it"
            " with x.to_device(...)"
        )


def shard(x: Array, mesh: Mesh, placement: Placement) -> Array:
    _check("shard", x, mesh)
    array = constrain(x, placement)
    pin(array._cell, array._cell.array, placement)
    return array


def own(x: Array, mesh: Mesh) -> Any:
    """Return the array that this process has for itself; None for one that is spread already, or being traced."""
    _check("shard", x, mesh)
    value, xp = x._value(), x._cell.backend
    return None if xp.is_traced(value) or placement(x) is not None else value


def assembled(x: Array, mesh: Mesh, placement: Placement) -> Array:
    xp = x._cell.backend
    with xp.scope():
        array = new_array(xp.assembled(x._value(), placement), xp, x)
    pin(array._cell, array._cell.array, placement)
    return array


def constrain(x: Array, placement: Placement) -> Array:
    _check("constrain", x, placement.mesh)
    xp = x._cell.backend
    with xp.scope():
        return new_array(xp.constrain(x._value(), placement), xp, x)


def mesh_of(x: Array) -> Mesh | None:
    where = placement(x)
    return None if where is None else where.mesh


def placement(x: Array) -> Placement | None:
    xp = x._cell.backend
    with xp.scope():
        return xp.placement(x._value())


def bytes_by_device(x: Array) -> tuple[int, dict[int, int]]:
    cell: Storage = x._cell
    return id(cell), cell.backend.bytes_by_device(cell.array)
