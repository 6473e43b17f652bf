"""Arrays of any front end on a mesh: `shard`, `constrain`, `placement`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import optree

from tensorgraft.arrays import framework_of
from tensorgraft.hub import placement as hub
from tensorgraft.hub import processes, registry
from tensorgraft.hub.placement import Mesh, Placement
from tensorgraft.parallel.meshes import Spec, as_mesh, placement_of
from tensorgraft.parallel.trees import jax_of


def shard(x: Any, mesh: Mesh, spec: Spec) -> Any:
    """Return arrays with the same values, placed over a mesh.

    Arguments:
        x: a `torch.Tensor` (of the CPU, or of the mesh's device), a `tensorgraft.array_api` array, a `jax.Array`; or a
            pytree of such, whose other leaves stay as they are.
        mesh: `tg.parallel.mesh(...)`, PyTorch's `DeviceMesh` with names, or JAX's `Mesh`.
        spec: for each dimension None, the name of an axis or a tuple of names, as in `jax.sharding.PartitionSpec`;
            missing dimensions are not split. Or PyTorch's `Shard(dim)` and `Replicate()`, one for each axis of the
            mesh.

    Returns arrays of the same kinds; tensors are on the mesh's device. Gradients flow through. Later writes into a
    tensor, or an array of the Array API, keep its placement.

    Raises ValueError for an axis that the mesh does not have, more entries than dimensions, a dimension that is not
    divisible (nothing is padded), an array on another device; TypeError for other objects. In a program of several
    processes each passes the same whole array, and keeps its pieces: RuntimeError, on every process, if the arrays
    differ.

    >>> import tensorgraft as tg, torch
    >>> mesh = tg.parallel.mesh((1, 1), ("data", "model"), device="jax")
    >>> x = tg.parallel.shard(torch.ones(4, 2), mesh, ("data", None))
    >>> print(tg.parallel.placement(x))
    ('data', None) on a mesh of 1 devices of jax (data: 1, model: 1)
    """
    mesh = as_mesh("shard", mesh)
    check_same("shard", x, mesh)
    return _map_arrays(
        "shard", x, lambda front, a: front.shard(a, mesh, placement_of(spec, mesh, tuple(a.shape), "shard"))
    )


def replicate(x: Any, mesh: Mesh) -> Any:
    """`shard(x, mesh, ())`: all of it on every device. Raises as `shard` does."""
    mesh = as_mesh("replicate", mesh)
    check_same("replicate", x, mesh)
    return _map_arrays(
        "replicate", x, lambda front, a: front.shard(a, mesh, placement_of((), mesh, a.shape, "replicate"))
    )


def shard_batch(batch: Any, mesh: Mesh, axis: str | tuple[str, ...] | None = None) -> Any:
    """Return the arrays of a batch (a pytree, for example of tensors from a `DataLoader`), split along their first
    dimension.

    In a program of several processes each passes its part, and the batch consists of all parts in the order of
    `batch_part`. (Arrays without dimensions are the same on all processes. An array that is already placed over the
    mesh is the whole batch.)

    Arguments:
        axis: an axis of the mesh, or several, which split the dimension together; by default "data" if the mesh has it,
            else the first one.

    Raises as `shard` does.
    """
    mesh = as_mesh("shard_batch", mesh)
    names = _batch_axes(mesh, axis)
    xp = registry.get(mesh.backend)

    def assemble(front: ModuleType, a: Any) -> Any:
        spec, shape = (names,) if len(a.shape) else (), tuple(a.shape)
        if processes.joined and not mesh.abstract and front.own(a, mesh) is not None:
            count = xp.parts_fed(hub.placement(mesh, spec, len(shape), "shard_batch"))[1]
            whole_shape = (shape[0] * count, *shape[1:]) if shape else ()
            return front.assembled(a, mesh, placement_of(spec, mesh, whole_shape, "shard_batch"))
        return front.shard(a, mesh, placement_of(spec, mesh, shape, "shard_batch"))

    return _map_arrays("shard_batch", batch, assemble)


def batch_part(mesh: Mesh, axis: str | tuple[str, ...] | None = None) -> tuple[int, int]:
    """Return (number of the part, number of parts) of a batch that this process passes to `shard_batch`; (0, 1) in a
    program of one process.

    For `DistributedSampler(data, rank=part, num_replicas=parts)`. Processes that do not differ along the axis have the
    same part, and pass the same data. Raises ValueError for an axis that the mesh does not have.

    >>> import tensorgraft as tg
    >>> tg.parallel.batch_part(tg.parallel.mesh(1, "data", device="jax"))
    (0, 1)
    """
    mesh = as_mesh("batch_part", mesh)
    where = hub.placement(mesh, (_batch_axes(mesh, axis),), 1, "batch_part")
    return registry.get(mesh.backend).parts_fed(where)


def process_index() -> int:
    """Return the number of this process among those over whose devices a mesh of the default backend is; starts the
    backend.

    Raises RuntimeError if the other processes do not start in time.

    >>> import tensorgraft as tg
    >>> tg.parallel.process_index(), tg.parallel.process_count()
    (0, 1)
    """
    return registry.get(registry.default()).processes()[0]


def process_count() -> int:
    """Over the devices of how many processes a mesh of the default backend is; starts the backend.

    Raises RuntimeError if the other processes do not start in time.
    """
    return registry.get(registry.default()).processes()[1]


def _batch_axes(mesh: Mesh, axis: str | tuple[str, ...] | None) -> tuple[str, ...]:
    axis = axis or ("data" if "data" in mesh.names else mesh.names[0])
    return (axis,) if isinstance(axis, str) else tuple(axis)


def check_same(name: str, x: Any, mesh: Mesh, names: Mapping[str, Any] | None = None) -> None:
    """Raises RuntimeError, on every process, where arrays that each has whole are not the same on all of them.

    `names`: the arrays by their names, where they have some."""
    if not processes.joined or mesh.abstract:
        return
    if names is None:
        arrays = [a for a in ([x] if framework_of(x) is not None else _leaves(x)) if framework_of(a) is not None]
        names = {"the array" if len(arrays) == 1 else f"array {i}": a for i, a in enumerate(arrays)}
    own_arrays = {n: a for n, x in names.items() if (a := front_end(name, x).own(x, mesh)) is not None}
    if own_arrays:
        xp = registry.get(mesh.backend)
        with xp.scope():
            xp.same_everywhere(f"places arrays on a mesh by {name}", own_arrays)


def constrain(x: Any, spec: Spec, mesh: Mesh | None = None) -> Any:
    """Return `x` with a fixed placement, instead of one that GSPMD chooses.

    For intermediate values (activations), eagerly and inside compiled functions; the gradient has the same placement.

    Arguments:
        x: a tensor on the device, an array of the Array API or of JAX, or a pytree of such.
        spec: as for `shard`.
        mesh: by default that of the model that `shard_` placed last, or of `x`.

    Raises as `shard` does, and ValueError if there is no mesh yet.
    """
    where = None if mesh is None else as_mesh("constrain", mesh)

    def constrain_one(front: ModuleType, a: Any) -> Any:
        at = where or front.mesh_of(a) or last_mesh()
        if at is None:
            raise ValueError("constrain: nothing has been placed on a mesh yet: pass mesh=")
        return front.constrain(a, placement_of(spec, at, tuple(a.shape), "constrain"))

    return _map_arrays("constrain", x, constrain_one)


def placement(x: Any) -> Placement | None:
    """Return the placement of an array; None for an array on one device. (XLA chooses placements of intermediate
    results.)

    Raises TypeError for other objects, and TracedValueError inside a compiled function, where the placement is unknown.
    """
    return front_end("placement", x).placement(x)


def bytes_by_device(x: Any) -> dict[int, int]:
    """Return {number of a device: bytes that it holds} of an array, a pytree of arrays, or of a `torch.nn.Module`'s
    parameters, buffers and gradients, each storage once. The bytes are counted from the actual arrays, not from the
    plan.

    Raises TracedValueError inside a compiled function."""
    total: dict[int, int] = {}
    seen_keys: set[int] = set()
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.nn.Module):
        tensors = [*x.parameters(), *x.buffers()]
        x = [*tensors, *(t.grad for t in tensors if t.grad is not None)]
    for leaf in _leaves(x):
        if framework_of(leaf) is None:
            continue
        key, by_device = front_end("bytes_by_device", leaf).bytes_by_device(leaf)
        if key not in seen_keys:
            seen_keys.add(key)
            for device, n in by_device.items():
                total[device] = total.get(device, 0) + n
    return total


# ---- which front end, and trees --------------------------------------------------------------------------------------


_last: list[Mesh] = []


def last_mesh() -> Mesh | None:
    """Return the mesh on which `shard_` has placed a model last."""
    return _last[-1] if _last else None


def note_mesh(mesh: Mesh) -> None:
    _last[:] = [mesh]


def front_end(name: str, x: Any) -> ModuleType:
    """Return the module that places arrays of the kind of `x`. Raises TypeError, with the caller's name, for anything
    but an array."""
    framework = framework_of(x)
    if framework == "torch":
        from tensorgraft.parallel import of_torch

        return of_torch
    if framework == "tensorgraft":
        from tensorgraft.parallel import of_arrays

        return of_arrays
    if framework == "jax":
        from tensorgraft.parallel import of_jax

        return of_jax
    raise TypeError(
        f"{name}: expected a torch.Tensor, an Array of tensorgraft.array_api or a jax.Array, got a"
        f" {type(x).__module__}.{type(x).__qualname__}"
    )


def _leaves(tree: Any) -> list[Any]:
    jax = jax_of(tree)
    return optree.tree_leaves(tree) if jax is None else jax.tree.leaves(tree)


def _map_arrays(name: str, tree: Any, fn: Callable[[ModuleType, Any], Any]) -> Any:
    """Apply `fn` to every array of a tree, which has at least one. All are computed before any result is returned."""
    if framework_of(tree) is not None:
        return fn(front_end(name, tree), tree)
    jax = jax_of(tree)
    mapped: Any = optree.tree_map if jax is None else jax.tree.map
    if not any(framework_of(x) is not None for x in _leaves(tree)):
        front_end(name, tree)
    return mapped(lambda x: x if framework_of(x) is None else fn(front_end(name, x), x), tree)
