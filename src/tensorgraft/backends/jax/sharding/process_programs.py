"""Programs that several processes run together, each with one device and its own arrays.

Each process has its own arrays, on its device. In a program of all processes they are declared as replicated, and JAX
does not check that the values are equal; inside, `lax` collectives along the axes of a mesh receive the values of each
process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.array import ArrayImpl
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from tensorgraft import warning_filters
from tensorgraft.backends.jax.quotient import quotient
from tensorgraft.backends.jax.sharding.gloo_output import without_connections
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.collectives import CollectiveCall

_OF_BOOLS = {"sum": "or", "max": "or", "product": "and", "min": "and"}
_OF_ROWS: dict[str, Callable[[Array], Array]] = {  # XLA has no such collectives
    "product": lambda rows: lax.reduce_prod(rows, (0,)),
    "and": lambda rows: lax.reduce_and(rows, (0,)),
    "or": lambda rows: lax.reduce_or(rows, (0,)),
    "xor": lambda rows: lax.reduce_xor(rows, (0,)),
}


def computed(call: CollectiveCall, x: Array, axes: tuple[str, ...], n: int) -> Array:
    """Compute a collective of an array of this process, among the `n` that lie along `axes`."""
    if call.kind == "all_gather":
        return lax.all_gather(x, axes)
    if call.kind == "all_to_all":
        return lax.all_to_all(x, axes, 0, 0)
    if call.kind == "broadcast":
        bits, from_bits = _bits(x)
        is_root = lax.axis_index(axes) == call.root
        return from_bits(lax.psum(jnp.where(is_root, bits, jnp.zeros_like(bits)), axes))
    if call.kind == "reduce_scatter":
        if call.reduction in ("sum", "avg") and x.dtype != np.bool_:
            return _average(call, lax.psum_scatter(x, axes), n)
        return lax.dynamic_index_in_dim(_reduced(call, x, axes, n), lax.axis_index(axes), keepdims=False)
    return _reduced(call, x, axes, n)


def at_home(call: CollectiveCall, x: Array, n: int) -> Array:
    """Compute a collective that needs no other process: in a group of one, or of no elements."""
    if call.kind == "all_gather":
        return jnp.broadcast_to(x, (n, *x.shape))
    return x[0] if call.kind == "reduce_scatter" else x


def _reduced(call: CollectiveCall, x: Array, axes: tuple[str, ...], n: int) -> Array:
    name = _OF_BOOLS.get(call.reduction, call.reduction) if x.dtype == np.bool_ else call.reduction
    if name in ("sum", "avg"):
        return _average(call, lax.psum(x, axes), n)
    if name in ("min", "max"):
        return (lax.pmin if name == "min" else lax.pmax)(x, axes)
    return _OF_ROWS[name](lax.all_gather(x, axes))


def _average(call: CollectiveCall, total: Array, n: int) -> Array:
    if call.reduction != "avg":
        return total
    if total.dtype.kind == "c":  # divided as complex numbers, they are rounded more than once
        return lax.complex(quotient(total.real, n), quotient(total.imag, n))
    return lax.div(total, jnp.asarray(n, total.dtype)) if total.dtype.kind in "iu" else quotient(total, n)


def _bits(x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Integers, which a sum with zeros leaves as they are, and the way back."""
    dtype = x.dtype
    if dtype == np.bool_:
        return x.astype(np.uint8), lambda bits: bits.astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer):
        return x, lambda bits: bits
    if dtype.kind != "c":
        unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
        return lax.bitcast_convert_type(x, unsigned), lambda bits: lax.bitcast_convert_type(bits, dtype)
    parts, join = _bits(jnp.stack([x.real, x.imag]))
    return parts, lambda bits: lax.complex(*join(bits))


class ProcessPrograms:
    """Programs that run on every device of a mesh at once, each of which is of another process."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.devices = tuple(d.id for d in mesh.devices.flat)
        self._sharding = NamedSharding(mesh, PartitionSpec())
        (self.here,) = self._sharding.addressable_devices
        self._own_sharding = SingleDeviceSharding(self.here)

    def each(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return the program in which each process computes `fn` of its own arrays."""
        p = PartitionSpec()
        return jax.shard_map(fn, mesh=self.mesh, in_specs=p, out_specs=p, check_vma=False)

    def out(self, arrays: Sequence[Array]) -> list[Array]:
        """This process's arrays, as such a program takes them."""
        local = [
            x if getattr(x, "sharding", None) == self._own_sharding else jax.device_put(x, self.here) for x in arrays
        ]
        return [ArrayImpl(x.aval, self._sharding, [x], committed=True, _skip_checks=True) for x in local]

    def compiled(
        self,
        fn: Callable[..., tuple[Array, ...]],
        agree: Callable[[Sequence[Array]], contextlib.AbstractContextManager[Callable[[Sequence[Array]], None]]],
        scope: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
        donate: Sequence[int] = (),
        options: dict[str, Any] | None = None,
    ) -> Callable[..., tuple[Array, ...]]:
        """Compile `each(fn)` as a function from arrays of this process to arrays of this process. The processes agree
        on each call before it runs."""
        program = jax.jit(self.each(fn), donate_argnums=tuple(donate), compiler_options=options)
        ran: set[Any] = set()

        def run(*arrays: Array) -> tuple[Array, ...]:
            with agree(arrays) as watch_results, scope():
                pieces = self.out(arrays)
                signature = tuple((x.shape, x.dtype, x.weak_type) for x in pieces)
                if signature in ran:
                    results = program(*pieces)
                else:
                    # `donate` allows, it does not ask: XLA says where it found no use for the memory
                    silent = warning_filters.ignored("Some donated buffers were not usable")
                    with warning_filters.remembered(), silent, without_connections():
                        results = jax.block_until_ready(program(*pieces))
                    ran.add(signature)
                watch_results(results)
            return self.back(results)

        return run

    def lowered(self, fn: Callable[..., Any], arrays: Sequence[Array], **options: Any) -> Any:
        return jax.jit(self.each(fn), **options).lower(*self.out(arrays))

    @staticmethod
    def back(arrays: Sequence[Array]) -> tuple[Array, ...]:
        """Return this process's arrays from the results of the program."""
        return tuple(x._arrays[0] for x in arrays)
