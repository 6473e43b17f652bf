"""Meshes, and the placement that a specification describes on one."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensorgraft.hub import placement as hub
from tensorgraft.hub import processes, registry
from tensorgraft.hub.placement import Mesh, Placement

# For each dimension None, the name of an axis or a tuple of names (such as a `jax.sharding.PartitionSpec`); or, as in
# PyTorch, `Shard(dim)` or `Replicate()` for each axis of the mesh (without a sequence for a mesh of one axis).
Spec = Any


@dataclass(frozen=True)
class Shard:
    """A specification for an axis of the mesh: dimension `dim` is split. PyTorch's `Shard` is accepted as well."""

    dim: int


@dataclass(frozen=True)
class Replicate:
    """A specification for an axis of the mesh: every device has the same. PyTorch's `Replicate` is accepted as well."""


def mesh(shape: Sequence[int] | int, names: Sequence[str] | str, device: Any = None, abstract: bool = False) -> Mesh:
    """Return a grid of the devices of one backend, with named axes.

    Arguments:
        shape: the number of devices along each axis, for example (4, 2).
        names: the names of the axes, for example ("data", "model").
        device: `tg.device(name)`, or a backend's name; by default the default device. The mesh has the backend's first
            devices, in an order that makes neighbours adjacent (`jax.experimental.mesh_utils`).
        abstract: whether the devices need not exist, for modules and inputs on the device `meta` (`tg.parallel.plan`).

    If there are several processes, a mesh has equally many devices of each.

    Returns a `Mesh`, which is hashable; two with the same devices, shape and names are equal.

    Raises ValueError for more devices than exist, sizes below 1, and names that are not one for each axis or are equal;
    TypeError for names that are no strings; BackendNotAvailableError for a backend unknown or not installed.

    >>> import tensorgraft as tg
    >>> print(tg.parallel.mesh(1, "data", device="numpy"))
    mesh of 1 devices of numpy (data: 1)
    """
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    axes = (names,) if isinstance(names, str) else tuple(names)
    if len(sizes) != len(axes) or len(set(axes)) != len(axes) or not sizes:
        raise ValueError(f"mesh: expected different names, one for each axis of shape {sizes}")
    if not all(isinstance(name, str) for name in axes):
        raise TypeError(f"mesh: names must be strings, got {axes}")
    if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in sizes):
        raise ValueError(f"mesh: expected at least 1 device for each axis, got shape {sizes}")
    backend, count = _backend(device), math.prod(sizes)
    if abstract:
        return Mesh(sizes, axes, backend.name, tuple(range(count)), abstract=True)
    ids = backend.mesh_ids(count)
    if ids is None:
        device_count = registry.backend_class(backend.name).device_count()
        if (processes := backend.processes()[1]) > 1:
            raise ValueError(
                f"mesh: shape {sizes} requires {count} devices, but there are {processes} processes with {device_count}"
                " devices each, all of which must be used equally; abstract=True makes a mesh to plan for"
            )
        simulated = " (XLA_FLAGS=--xla_force_host_platform_device_count=N, set before JAX starts, simulates N on a CPU)"
        raise ValueError(
            f"mesh: shape {sizes} requires {count} devices, but {backend.name} has {device_count}"
            f" here{simulated if backend.name == 'jax' else ''}; abstract=True makes a mesh to plan for"
        )
    return Mesh(sizes, axes, backend.name, ids)


def as_mesh(label: str, mesh: Any) -> Mesh:
    """Return the mesh itself, or convert one of JAX (`Mesh`, `AbstractMesh`) or PyTorch (`DeviceMesh`). PyTorch's ranks
    number the devices, or the processes, if there are several with one device each.

    Raises TypeError for anything else, ValueError for a mesh without names, or of other devices."""
    if isinstance(mesh, Mesh):
        return mesh
    kind = f"{type(mesh).__module__.partition('.')[0]}.{type(mesh).__name__}"
    if kind == "jax.Mesh":
        return Mesh(mesh.devices.shape, tuple(mesh.axis_names), "jax", tuple(d.id for d in mesh.devices.flat))
    if kind == "jax.AbstractMesh":
        return Mesh(tuple(mesh.axis_sizes), tuple(mesh.axis_names), "jax", tuple(range(mesh.size)), abstract=True)
    if kind != "torch.DeviceMesh":
        raise TypeError(
            f"{label}: expected a mesh of tg.parallel.mesh, a DeviceMesh of PyTorch or a Mesh of JAX, got a"
            f" {type(mesh).__module__}.{type(mesh).__qualname__}"
        )
    if mesh.mesh_dim_names is None:
        raise ValueError(f"{label}: the axes of {mesh} have no names: init_device_mesh(..., mesh_dim_names=(...))")
    dist = sys.modules["torch.distributed"]
    if not processes.joined and dist.is_initialized() and dist.get_backend() != "fake" and dist.get_world_size() > 1:
        raise ValueError(
            f"{label}: {mesh} has {dist.get_world_size()} processes, each with its own devices, but sharded arrays"
            " require processes that share their devices (tensorgraft run --processes). PyTorch's own"
            " distribute_tensor does not"
        )
    ranks = mesh.mesh.flatten().tolist()
    # under `tensorgraft run`, a program's mesh of CUDA devices is one of the default backend
    backend = _backend("graft" if mesh.device_type == "cuda" else mesh.device_type)
    ids = backend.mesh_ids(max(ranks) + 1)
    if ids is None:
        available = registry.backend_class(backend.name).device_count()
        raise ValueError(f"{label}: {mesh} requires {max(ranks) + 1} devices, but {backend.name} has {available} here")
    return Mesh(tuple(mesh.mesh.shape), mesh.mesh_dim_names, backend.name, tuple(ids[r] for r in ranks))


def _backend(device: Any) -> Any:
    if device is None:
        return registry.get(registry.default())
    if isinstance(device, str):
        return registry.get(registry.parse(device)[0] if device != "graft" else registry.default())
    if hasattr(device, "backend"):  # a device of the Array API front end
        return device.backend
    from tensorgraft.frontends.torch.core import devices

    return devices.slot_of(device).backend


def placement_of(spec: Spec, mesh: Mesh, shape: Sequence[int], label: str) -> Placement:
    """Return the placement that a specification describes for an array of a shape. Raises ValueError and TypeError with
    messages that begin with `label`."""
    if isinstance(spec, Placement):
        resolved = spec
        if spec.mesh != mesh or len(spec.spec) != len(shape):
            raise ValueError(f"{label}: {spec} is not a placement of an array of shape {tuple(shape)} on the {mesh}")
    else:
        resolved = hub.placement(mesh, _by_names(spec, mesh, len(shape), label), len(shape), label)
    resolved.check(shape, label)
    return resolved


def _by_names(spec: Spec, mesh: Mesh, ndim: int, label: str) -> Sequence[Any]:
    """Return a specification as an entry for each dimension: None, the name of an axis, or a tuple of names."""
    if spec is None:
        return ()
    if isinstance(spec, str) or _is_torch_placement(spec):
        spec = (spec,)
    try:
        entries = tuple(spec)
    except TypeError:
        raise TypeError(
            f"{label}: expected a spec, a tuple such as ('data', None), or one of Shard(dim) and Replicate() for"
            f" each axis of the mesh, got {spec!r}"
        ) from None
    if not any(map(_is_torch_placement, entries)):
        return entries
    if len(entries) != len(mesh.names):
        raise ValueError(f"{label}: {spec!r} must have one of Shard(dim) and Replicate() for each axis of the {mesh}")
    by_dim: list[tuple[str, ...]] = [()] * ndim
    for name, entry in zip(mesh.names, entries, strict=True):
        kind = type(entry).__name__
        if kind == "Replicate":
            continue
        if kind != "Shard":
            raise TypeError(f"{label}: {entry!r} is not supported: use Shard(dim) and Replicate()")
        if not -ndim <= entry.dim < ndim:
            raise ValueError(f"{label}: {entry!r} of an array with {ndim} dimensions")
        by_dim[entry.dim % ndim] += (name,)
    return by_dim


def _is_torch_placement(x: Any) -> bool:
    """Return True for `Shard` and `Replicate`, and for the placements of PyTorch."""
    is_of_torch = type(x).__module__.startswith("torch.distributed.tensor")
    return isinstance(x, Shard | Replicate) or (is_of_torch and type(x).__name__ in ("Shard", "Replicate", "Partial"))
