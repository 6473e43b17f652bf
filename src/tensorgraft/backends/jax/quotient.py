"""Division as IEEE rounds it.

XLA makes a division by what was broadcast a product with its reciprocal, which is off by one unit often enough for
`round` or `floor` of a quotient to give another integer. Behind a barrier, which goes before anything is fused, it does
not see that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array


def quotient(x: Array, y: Array) -> Array:
    if dtypes.is_floating(x.dtype):
        if isinstance(x, jax.core.Tracer) and not isinstance(y, jax.Array) and not np.shape(y):
            y = spread_p.bind(x, np.asarray(y, x.dtype))
        else:
            shape = np.broadcast_shapes(x.shape, y.shape)
            y = lax.optimization_barrier(y if y.shape == shape else jnp.broadcast_to(y, shape))
    return lax.div(x, y)


# (x, y) -> the constant y in the shape of x, whatever axes `jax.vmap` will give that.
spread_p = Primitive("tensorgraft_spread")


@spread_p.def_impl
def _broadcast(x: Array, y: Array) -> Array:
    return lax.optimization_barrier(jnp.broadcast_to(y, x.shape))


@spread_p.def_abstract_eval
def _(x: Any, y: Any) -> Any:
    return jax.core.ShapedArray(x.shape, x.dtype)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[Array, Any]:
    out = spread_p.bind(*primals)
    return out, ad.Zero(jax.typeof(out).to_tangent_aval())


def _batch(args: Sequence[Array], dims: Sequence[Any]) -> tuple[Array, int]:
    (x, y), (axis, _) = args, dims
    return spread_p.bind(jnp.moveaxis(x, axis, 0), y), 0


ad.primitive_jvps[spread_p] = _jvp
batching.primitive_batchers[spread_p] = _batch
mlir.register_lowering(spread_p, mlir.lower_fun(_broadcast, multiple_results=False))
