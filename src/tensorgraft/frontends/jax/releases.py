"""Differences between releases of JAX: jaxprs and the parameters of their equations in one form, and values.

Before JAX 0.11 a `ClosedJaxpr` is a `Jaxpr` with its constants. Since then it is another name of `Jaxpr`, which has
constants itself, and whose attribute `jaxpr` is that jaxpr.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

jaxprs_in_params: Any = getattr(core, "jaxprs_in_params", None) or jax.core.jaxprs_in_params  # JAX 0.9
find_top_trace: Any = getattr(core, "find_top_trace", None) or jax.core.find_top_trace  # JAX 0.9
DIGAMMA_OF_ZERO = -np.inf if jax.__version_info__ >= (0, 11) else np.nan
# Primitives that call a jaxpr; derivatives of their own have done their work when JAX differentiates.
CALLS = frozenset(
    {
        *("jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr", "composite", "compute_on"),
        *("checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
        *("custom_partitioning", "xla_metadata_call"),
    }
)
_CALLED = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")  # the parameter: releases differ for one primitive


@contextlib.contextmanager
def _current(trace: Any) -> Iterator[None]:
    context: Any = jax.core.trace_ctx
    before = context.trace
    context.set_trace(trace)
    try:
        yield
    finally:
        context.set_trace(before)


set_current_trace: Any = getattr(core, "set_current_trace", _current)  # JAX 0.9 lacks it
with jax.core.eval_context():
    EAGER: Any = find_top_trace(())  # the trace that computes at once


def closed(jaxpr: Any, constants: Sequence[Any] = ()) -> core.ClosedJaxpr:
    """Return a jaxpr, closed already or not, with its constants."""
    if isinstance(jaxpr, core.ClosedJaxpr) and not constants:
        return jaxpr
    return core.ClosedJaxpr(jaxpr, tuple(constants))


def called_jaxpr(equation: Any) -> core.ClosedJaxpr:
    """Return the jaxpr that an equation of one of `CALLS` calls."""
    return closed(next(equation.params[name] for name in _CALLED if name in equation.params))


def parameters(equation: Any) -> dict[str, Any]:
    """Return the parameters of an equation under the names that rules have for them."""
    params = dict(equation.params)
    if "ft_in" in params:  # JAX 0.12: a loop says by trees which of its operands are what
        constants, carry, _ = params.pop("ft_in").unpack()
        del params["ft_out"]
        params.update(num_consts=len(constants), num_carry=len(carry))
    return params


def expansion(primitive: core.Primitive) -> Callable[..., Any] | None:
    """Return the function of other primitives that a "hi" primitive of JAX expands to (searchsorted, frexp and ldexp
    since JAX 0.12), or None for any other primitive."""
    return getattr(primitive, "to_lojax", None) if primitive.name == "call_hi_primitive" else None
