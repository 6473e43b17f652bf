"""Equations of programs with unknown extents, in operations that compilers of StableHLO have for these.

JAX writes `x[:, 8:16]` as a gather, which TensorFlow Lite takes for known extents only, and `lax.top_k` as a call or a
sort, which neither it nor TensorFlow does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core

from tensorgraft.frontends.jax.jaxpr_interpreter import bind, interpret

_MOST_ROUNDS = 16  # of a search of the greatest values, each of which reads all
_SMALL = 64  # elements of arrays that are computed while the program is traced


def lowered(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return a program, the bodies of its loops and branches included, in which equations are rewritten."""
    if not _is_rewritten(closed):
        return closed
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in closed.in_avals]
    return jax.make_jaxpr(lambda *xs: interpret(closed.jaxpr, closed.consts, xs, _compute))(*specs)


def _is_rewritten(closed: core.ClosedJaxpr) -> bool:
    return any(
        equation.primitive.name in _RULES or any(map(_is_rewritten, _bodies(equation)))
        for equation in closed.jaxpr.eqns
    )


def _bodies(equation: Any) -> list[core.ClosedJaxpr]:
    values = [x for value in equation.params.values() for x in (value if isinstance(value, tuple) else (value,))]
    return [x for x in values if isinstance(x, core.ClosedJaxpr)]


def _compute(equation: Any, operands: list[Any]) -> Sequence[Any]:
    rule = _RULES.get(equation.primitive.name)
    results = None if rule is None else rule(equation, *operands)
    if results is not None:
        return results
    if any(map(_is_rewritten, _bodies(equation))):
        equation = equation.replace(params={name: _lowered(value) for name, value in equation.params.items()})
    sizes = [np.size(x) for x in operands if not isinstance(x, jax.core.Tracer)]
    if operands and len(sizes) == len(operands) and sum(sizes) <= _SMALL and not _bodies(equation):
        shapes = [n for v in equation.outvars for n in v.aval.shape]
        if all(isinstance(n, int) and n <= _SMALL for n in shapes):
            with jax.ensure_compile_time_eval():  # starts of slices stay numbers
                return bind(equation, operands)
    return bind(equation, operands)


def _lowered(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_lowered, value))
    return lowered(value) if isinstance(value, core.ClosedJaxpr) else value


def _window(equation: Any, x: Any, start: Any) -> Sequence[Any] | None:
    """Return the result of a gather of one window that lies inside of the array, as a slice."""
    p, numbers = equation.params, equation.params["dimension_numbers"]
    in_bounds = p["mode"] in (lax.GatherScatterMode.PROMISE_IN_BOUNDS, lax.GatherScatterMode.CLIP)
    batched = getattr(numbers, "operand_batching_dims", ())
    if np.ndim(start) != 1 or not in_bounds or batched or all(isinstance(n, int) for n in x.shape):
        return None
    sizes, at = p["slice_sizes"], dict(zip(numbers.start_index_map, range(len(numbers.start_index_map)), strict=True))
    if isinstance(start, jax.core.Tracer):
        out = lax.dynamic_slice(x, [start[at[axis]] if axis in at else 0 for axis in range(x.ndim)], sizes)
    else:
        known = [int(np.asarray(start)[at[axis]]) if axis in at else 0 for axis in range(x.ndim)]
        if p["mode"] == lax.GatherScatterMode.CLIP:
            return None
        out = lax.slice(x, known, [b + n for b, n in zip(known, sizes, strict=True)])
    return [lax.squeeze(out, numbers.collapsed_slice_dims)]


def _greatest(equation: Any, x: Any) -> Sequence[Any] | None:
    """Return the greatest values in the total order of floats, and their places: one in each round."""
    k, axis = equation.params["k"], equation.params.get("axis", -1) % x.ndim
    if not isinstance(k, int) or k > _MOST_ROUNDS or all(isinstance(n, int) for n in x.shape):
        return None
    is_float = jnp.issubdtype(x.dtype, np.floating)
    integer = np.dtype(f"int{8 * x.dtype.itemsize}") if is_float else x.dtype
    if not jnp.issubdtype(integer, np.integer):
        return None
    key = _signed(lax.bitcast_convert_type(x, integer)) if is_float else x
    least, n = jnp.iinfo(integer).min, x.shape[axis]
    row = jnp.arange(n, dtype=np.int32)
    places = lax.broadcast_in_dim(row, x.shape, (axis,))
    left = jnp.full(x.shape, True)
    values, found = [], []
    for _ in range(k):
        best = jnp.max(jnp.where(left, key, least), axis=axis, keepdims=True)
        place = jnp.min(jnp.where(left & (key == best), places, jnp.int32(2**31 - 1)), axis=axis, keepdims=True)
        left &= places != place
        values.append(best)
        found.append(place)
    out = jnp.concatenate(values, axis)
    out = lax.bitcast_convert_type(_signed(out), x.dtype) if is_float else out
    return [out, jnp.concatenate(found, axis).astype(equation.outvars[1].aval.dtype)]


def _signed(bits: Any) -> Any:
    """Map the bits of floats to integers of their order, and back."""
    return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)


_RULES: dict[str, Callable[..., Sequence[Any] | None]] = {"gather": _window, "top_k": _greatest}
