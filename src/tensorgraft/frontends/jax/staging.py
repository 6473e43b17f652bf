"""Eager computation, while a function is traced, of operations that do not depend on its arguments and have no effect.

Callbacks and writes of arrays are always traced, because they belong to every run of the program (in a branch, to the
runs that take it). This holds for the function itself, not inside functions that it jits or whose shapes it evaluates.
Values are computed on NumPy by the rules of the hub, without compiling anything, unless the work is large.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import array
from jax.core import Trace, Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr

from tensorgraft.frontends.jax import (
    releases,
    rules,  # noqa: F401  (they register themselves)
)
from tensorgraft.frontends.jax.evaluate import JaxprPlan, plan
from tensorgraft.frontends.jax.keys import Keys, is_key_dtype
from tensorgraft.frontends.jax.settings import settings
from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend

Value = Any

_CALLBACKS = frozenset(("pure_callback", "io_callback", "debug_callback", "debug_print"))
# primitives that place arrays
_BY_JAX = frozenset(("device_put", "copy", "copy_p", "stage", "sharding_constraint", "layout_constraint"))
_LARGE = 1 << 22  # bytes of operands and results from which on compiling pays
_LONG = 1 << 12  # equations; those of a loop count once for each step


def make_jaxpr(fn: Callable[..., Any], *specs: Any) -> ClosedJaxpr:
    """Call `jax.make_jaxpr`, computing everything that does not depend on the arguments."""

    def known_computed(*arrays: Any) -> Any:
        with computed_early():
            return fn(*arrays)

    with jax.disable_jit(False):  # with it, loops would run in Python and read values
        return jax.make_jaxpr(known_computed)(*specs)


def computed_early() -> Any:
    """Context in which operations that do not depend on arrays of the current trace are computed at once."""
    return releases.set_current_trace(_EagerTrace(releases.find_top_trace(())))


def recording() -> Any:
    """Return JAX's own trace that records the current calls."""
    trace = releases.find_top_trace(())
    return trace.inner if isinstance(trace, _EagerTrace) else trace


class _EagerTrace(Trace):
    """A trace that computes operations on known values at once and passes the others to `inner`."""

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner, self.requires_low = inner, inner.requires_low

    def __getattr__(self, name: str) -> Any:  # for attributes that special primitives read
        return getattr(self.inner, name)

    def stage_value(self, val: Any) -> Any:
        trace = self.inner if isinstance(val, Tracer) else releases.EAGER
        return trace.stage_value(val)  # JAX 0.9 has no such method

    def process_primitive(self, primitive: Any, tracers: Any, params: Any, /) -> Any:
        if _is_known(tracers) and not _is_of_every_run(primitive, params):
            return _computed(primitive, tracers, params)
        return self.inner.process_primitive(primitive, tracers, params)

    def process_call(self, call_primitive: Any, f: Any, tracers: Any, params: Any, /) -> Any:
        if not _is_known(tracers):
            return self.inner.process_call(call_primitive, f, tracers, params)
        with releases.set_current_trace(self):
            return f.call_wrapped(*tracers)

    def process_custom_jvp_call(self, primitive: Any, fun: Any, jvp: Any, tracers: Any, /, **params: Any) -> Any:
        if not _is_known(tracers):
            return self.inner.process_custom_jvp_call(primitive, fun, jvp, tracers, **params)
        with releases.set_current_trace(self):
            return fun.call_wrapped(*tracers)

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Any, /, **params: Any
    ) -> Any:
        if not _is_known(tracers):
            return self.inner.process_custom_vjp_call(primitive, fun, fwd, bwd, tracers, **params)
        with releases.set_current_trace(self):
            return fun.call_wrapped(*tracers)


def _is_known(operands: Sequence[Value]) -> bool:
    return not any(isinstance(x, Tracer | jax.Ref) for x in operands)


def _is_of_every_run(primitive: Any, params: dict[str, Any]) -> bool:
    every_run = primitive.name in _CALLBACKS or primitive.ref_primitive
    return every_run or any(jaxpr.effects for jaxpr in releases.jaxprs_in_params(params))


# ---- values ----------------------------------------------------------------------------------------------------------


def _computed(primitive: Any, operands: Sequence[Value], params: dict[str, Any]) -> Any:
    """Compute a primitive as `primitive.impl` does, with the same errors."""
    avals = tuple(map(jax.typeof, operands))
    plan = _plan_of(primitive, avals, params) if all(map(_is_near, operands)) else None
    if plan is None:
        return primitive.bind_with_trace(releases.EAGER, operands, avals, params)
    program, results = plan
    host = registry.get("numpy")
    with jax.core.eval_context(), host.scope(), jax.enable_x64(True):  # dtypes must not be narrowed
        inputs = [_on_host(host, x, aval.dtype) for x, aval in zip(operands, avals, strict=True)]
        outputs = [_array(host, x, aval) for x, aval in zip(program(host, *inputs), results, strict=True)]
    return outputs if primitive.multiple_results else outputs[0]


def _is_near(x: Value) -> bool:
    """Return True for a value of the host, or an array of JAX on one device in the host's memory."""
    if not isinstance(x, jax.Array):
        return True
    return {device.platform for device in x.devices()} == {"cpu"} and len(x.devices()) == 1


def _on_host(host: Backend, x: Value, dtype: Any) -> Any:
    if is_key_dtype(dtype):
        return Keys.of(host, np.asarray(jax.random.key_data(x)))
    return np.asarray(x) if isinstance(x, jax.Array) else np.asarray(x, dtype)


def _array(host: Backend, x: Any, aval: Any) -> jax.Array:
    if isinstance(x, Keys):
        return jax.random.wrap_key_data(jax.device_put(np.asarray(x.data(host))), impl=aval.dtype._impl.name)
    placed = jax.device_put(np.asarray(x))
    if not aval.weak_type:
        return placed
    weak: Any = array.ArrayImpl
    return weak(aval, placed.sharding, [placed], committed=False, _skip_checks=True)


def _plan_of(primitive: Any, avals: tuple[Any, ...], params: dict[str, Any]) -> tuple[JaxprPlan, Sequence[Any]] | None:
    """Return (the plan that computes it on NumPy, the result's avals); None if JAX has to compute it."""
    if primitive.name in _BY_JAX:
        return None
    static = tuple(sorted(params.items()))
    try:
        hash(static)
    except TypeError:
        return _planned.__wrapped__(primitive, avals, static, None)
    return _planned(primitive, avals, static, settings())


@functools.lru_cache(maxsize=4096)
def _planned(
    primitive: Any, avals: tuple[Any, ...], params: tuple[Any, ...], settings: Any
) -> tuple[JaxprPlan, Sequence[Any]] | None:
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    wide = any(a.dtype.itemsize == 8 for a in avals)
    with jax.core.eval_context(), jax.enable_x64(wide or jax.config.jax_enable_x64):  # type: ignore[attr-defined]
        closed = jax.make_jaxpr(lambda *xs: primitive.bind(*xs, **dict(params)))(*specs)
        moved = sum(a.size * a.dtype.itemsize for a in (*avals, *closed.out_avals))
        if moved > _LARGE or _length(closed.jaxpr) > _LONG:
            return None
        try:
            return plan(closed), closed.out_avals
        except NotImplementedError:  # no rule
            return None


def _length(jaxpr: Jaxpr) -> float:
    """Return the number of equations that a run computes."""
    total = 0.0
    for equation in jaxpr.eqns:
        inner = sum(map(_length, releases.jaxprs_in_params(equation.params)))
        times = equation.params["length"] if equation.primitive.name == "scan" else 1
        total += math.inf if equation.primitive.name == "while" else 1 + times * inner
    return total
