"""`tg.parallel.shard_`: the weights of a model, by their names."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tensorgraft.arrays import framework_of
from tensorgraft.hub.placement import Mesh
from tensorgraft.parallel.matching import resolved, specs_by_name
from tensorgraft.parallel.meshes import as_mesh
from tensorgraft.parallel.placing import check_same, front_end, note_mesh
from tensorgraft.parallel.plans import Output, Plan


def shard_(model: Any, mesh: Mesh, plan: Plan) -> Any:
    """Place the weights of a model over a mesh: all of them or, on an error, none.

    Parameters remain the same objects: tied ones stay tied, and existing optimizers keep them. Gradients, and the
    present and future state of optimizers, have the placement of their parameters. Steps, `load_state_dict` and other
    writes do not change placements. Functions of `tg.jit` are traced again.

    Arguments:
        model: a `torch.nn.Module` on the mesh's device, or on the CPU, from which parameters, buffers and the state of
            optimizers are moved one after the other, so that no device ever has all of them; or a pytree of
            `tensorgraft.array_api` or JAX arrays (a `tg.Module`, an Equinox model, parameters of Flax), of which a new
            one is returned. Modules of Flax's nnx are changed in place.
        mesh: `tg.parallel.mesh(...)`.
        plan: a mapping of patterns of names (`fnmatch`: "*.mlp.*") to specs as `tg.parallel.shard` takes them, to
            functions (name, shape, mesh) -> spec, or to `Output(spec)` for the results of a submodule of that name; the
            first pattern that matches a name counts. Or a plan made by `data_parallel`, `fully_sharded`,
            `tensor_parallel` or `sequence_parallel`. Parameters and buffers that no pattern matches are replicated on
            every device. Names in a pytree are its paths, with dots.

    Returns the model.

    Raises ValueError for a pattern that matches no name, invalid specs (see `shard`), a parameter that is on another
    device or only a part of its storage, or one whose names have two specs; TypeError for other models; RuntimeError,
    on every process, if processes have different parameters.

    >>> import tensorgraft as tg, torch
    >>> model = torch.nn.Linear(4, 2).to(tg.device("jax"))
    >>> mesh = tg.parallel.mesh(1, "model", device="jax")
    >>> model = tg.parallel.shard_(model, mesh, {"weight": (None, "model")})
    >>> tg.parallel.placement(model.weight).spec
    ((), ('model',))
    """
    mesh = as_mesh("shard_", mesh)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from tensorgraft.parallel import modules

        placed = modules.shard_module(model, mesh, plan)
    else:
        placed = _shard_tree(model, mesh, plan)
    note_mesh(mesh)
    return placed


def _shard_tree(tree: Any, mesh: Mesh, plan: Plan) -> Any:
    from tensorgraft.parallel import trees

    leaves, structure = trees.flatten(tree)
    arrays = {name: x for name, x in leaves if framework_of(x) in ("jax", "tensorgraft")}
    if not arrays:
        raise TypeError(
            f"shard_: expected a torch.nn.Module or a pytree of arrays of tensorgraft.array_api or JAX, got a"
            f" {type(tree).__module__}.{type(tree).__qualname__}"
        )
    if isinstance(plan, Mapping):  # without plans for outputs, which trees do not have
        plan = {p: entry for p, entry in plan.items() if not (isinstance(entry, Output) and entry.batch)}
    entry_of = specs_by_name(list(arrays), plan)
    placements = {name: resolved(entry_of(name), name, tuple(x.shape), mesh) for name, x in arrays.items()}
    check_same("shard_", tree, mesh, arrays)

    def sharded_leaves() -> Iterator[Any]:
        for name, x in leaves:
            yield front_end("shard_", x).shard(x, mesh, placements[name]) if name in placements else x

    return structure(list(sharded_leaves()))
