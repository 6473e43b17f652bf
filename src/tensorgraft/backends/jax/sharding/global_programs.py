"""Programs on arrays that lie on the devices of several processes, each of which has some of the pieces.

Every process runs the same program. What it has for itself beside such arrays is taken as whole on every device: the
same value on all processes, as one program computes it. Nothing is sent for that.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.array import ArrayImpl
from jax.extend import core as extend
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from tensorgraft.backends.jax.sharding import processes
from tensorgraft.backends.jax.sharding.agreement import agree
from tensorgraft.backends.jax.sharding.gloo_output import without_connections
from tensorgraft.backends.jax.tracing import is_tracing
from tensorgraft.hub.array import NativeArray as Array

jaxprs_in_params: Any = getattr(extend, "jaxprs_in_params", None) or jax.core.jaxprs_in_params  # JAX 0.9


def jit(fn: Callable[..., Any], **options: Any) -> Any:
    """Jit a function whose arrays, where this process has joined others, may be on all of them."""
    return jax.jit(fn, **options) if processes.count() == 1 else _Program(fn, options)


_known: set[str] = set()  # programs that all processes have


class _Program:
    """A function jitted by `jax.jit`, called with arrays that may be on several processes."""

    def __init__(self, fn: Callable[..., Any], options: dict[str, Any]) -> None:
        self._jitted = jax.jit(fn, **options)
        self._mesh: Mesh | None = None  # on which values are placed inside, whatever the arguments
        self._ran: set[Any] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return self._jitted(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        signature = (structure, *map(_signature, leaves))
        new = signature not in self._ran
        mesh = self._mesh or mesh_of(leaves)
        if mesh is None and new:
            mesh = self._mesh = _mesh_inside(self._jitted.trace(*args, **kwargs).jaxpr.jaxpr)
        if mesh is None:
            self._ran.add(signature)
            return self._jitted(*args, **kwargs)
        args, kwargs = jax.tree.map(functools.partial(replicated_on, mesh=mesh), (args, kwargs))
        try:
            if not new:
                return _wait(self._jitted(*args, **kwargs), mesh)
            self._agree(leaves, args, kwargs)
            with without_connections():
                out = jax.block_until_ready(self._jitted(*args, **kwargs))
        except NotImplementedError as error:  # other code takes this error to mean: not on this backend
            raise RuntimeError(f"an operation on arrays of several processes: {error}") from error
        self._ran.add(signature)
        return out

    def _agree(self, leaves: Sequence[Any], args: Any, kwargs: Any) -> None:
        """Check that all processes run the same program."""
        text = self._jitted.lower(*args, **kwargs).as_text()
        program = hashlib.sha256(text.encode()).hexdigest()
        if program not in _known:
            shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in leaves[:4] if isinstance(x, jax.Array | np.ndarray))
            ellipsis = ", ..." if len(leaves) > 4 else ""
            agree(f"runs a program on {shapes}{ellipsis}", {"the program": program})
            _known.add(program)

    def _on_mesh(self, args: Any, kwargs: Any) -> Any:
        mesh = self._mesh or mesh_of(jax.tree.leaves((args, kwargs)))
        return (
            (args, kwargs)
            if mesh is None
            else jax.tree.map(functools.partial(replicated_on, mesh=mesh), (args, kwargs))
        )

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._on_mesh(args, kwargs)
        return self._jitted.lower(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = self._on_mesh(args, kwargs)
        return self._jitted.trace(*args, **kwargs)


def _wait(out: Any, mesh: Mesh) -> Any:
    """Wait for results on a CPU, so that the next program begins when this one has ended: of several on their way those
    of some devices may hold all of XLA's threads, and wait for another device of this process whose programs find none
    (jaxlib 0.10.2)."""
    return jax.block_until_ready(out) if mesh.local_devices[0].platform == "cpu" else out


def _signature(x: Any) -> Any:
    return (x.shape, x.dtype, x.sharding, x.weak_type) if isinstance(x, jax.Array) else getattr(x, "shape", x)


def _mesh_inside(jaxpr: extend.Jaxpr) -> Mesh | None:
    """Return the mesh of several processes on which a program places values, if any."""
    for equation in jaxpr.eqns:
        sharding = equation.params.get("sharding")
        if isinstance(sharding, NamedSharding) and not sharding.is_fully_addressable:
            return sharding.mesh  # type: ignore[return-value]
        for part in jaxprs_in_params(equation.params):
            if (mesh := _mesh_inside(part)) is not None:
                return mesh
    return None


def mesh_of(leaves: Sequence[Any]) -> Mesh | None:
    """Return the mesh of the first array on devices of several processes, or None."""
    for x in leaves:
        if x.__class__ is ArrayImpl or isinstance(x, jax.ShapeDtypeStruct):
            sharding = x.sharding
            if sharding.__class__ is SingleDeviceSharding or sharding is None or sharding.is_fully_addressable:
                continue
            if isinstance(sharding, NamedSharding):
                return sharding.mesh  # type: ignore[return-value]
            return Mesh(np.array([*sharding.devices_indices_map(x.shape)]), ("devices",))
    return None


def replicated_on(x: Any, mesh: Mesh) -> Any:
    """Return an array of this process alone as one that is whole on every device of a mesh; others as they are."""
    if x.__class__ is not ArrayImpl or x.sharding.__class__ is not SingleDeviceSharding:
        return x
    return placed(x, NamedSharding(mesh, PartitionSpec()))


def placed(x: Array, sharding: NamedSharding) -> Array:
    """Return an array placed over devices of several processes, from one that is there already or that each process has
    in full."""
    if not x.is_fully_addressable:
        return _moving(sharding)(x)
    local_array = np.asarray(x) if next(iter(x.devices())).platform == "cpu" else x
    pieces = [jax.device_put(local_array[i], d) for d, i in sharding.addressable_devices_indices_map(x.shape).items()]
    return jax.make_array_from_single_device_arrays(x.shape, sharding, pieces, dtype=x.dtype)


def assembled(part: Array, sharding: NamedSharding, shape: tuple[int, ...]) -> Array:
    """Return an array of which each process has a part."""
    return jax.make_array_from_process_local_data(sharding, np.asarray(part), shape)


def gathered(x: Array) -> np.ndarray:
    """Return the values of an array, for every process: all have to ask."""
    agree(f"asks for the values of a {x.dtype}{list(x.shape)}, of which other processes have pieces", {"the array": ""})
    mesh = mesh_of([x])
    assert mesh is not None
    return np.asarray(_moving(NamedSharding(mesh, PartitionSpec()))(x))


@functools.lru_cache(maxsize=1024)
def _moving(sharding: NamedSharding) -> Any:
    def moved(x: Array) -> Array:
        return x

    return jit(moved, out_shardings=sharding)


def even(devices: Sequence[Any], count: int) -> list[Any] | None:
    """Return so many of the devices of all processes, equally many of each; None where that cannot be."""
    by_process: dict[int, list[Any]] = {}
    for d in devices:
        by_process.setdefault(d.process_index, []).append(d)
    per_process, rest = divmod(count, len(by_process))
    if rest or any(len(local_devices) < per_process for local_devices in by_process.values()):
        return None
    return list(_first(by_process, per_process))


def _first(by_process: dict[int, list[Any]], per_process: int) -> Iterator[Any]:
    for _, local_devices in sorted(by_process.items()):
        yield from local_devices[:per_process]
