"""Functions of the host in a program. They are called where the program is evaluated step by step; they get arrays of
JAX on the CPU, as JAX gives them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.jax.rule import rule, without_rule
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def _call_host(
    xp: Backend, name: str, fn: Callable[..., Any], operands: Sequence[Array], out: Sequence[Any] = ()
) -> list[Array]:
    if any(map(xp.is_traced, operands)) and type(xp).host_call is Backend.host_call:
        raise TracedValueError(
            f"{name} calls a function of the host, which a compiled program on {xp.name} cannot do: call the"
            " grafted function without tg.jit, or remove the callback"
        )
    cpu = jax.local_devices(backend="cpu")[0]

    def on_host(*values: np.ndarray) -> list[np.ndarray]:
        with jax.enable_x64(True):
            arrays = [jax.device_put(np.array(x), cpu) for x in values]
        return _checked(name, jax.tree.leaves(fn(*arrays)), out)

    return xp.host_call(on_host, operands, out)


def _checked(name: str, results: Sequence[Any], out: Sequence[Any]) -> list[np.ndarray]:
    """Raises RuntimeError where the function returns something else than it was said to."""
    if len(results) != len(out):
        raise RuntimeError(f"{name}: the function returned {len(results)} arrays, but {len(out)} were declared")
    checked = []
    for i, (x, aval) in enumerate(zip(results, out, strict=True)):
        host = np.asarray(x)
        narrow = jax.dtypes.canonicalize_dtype(host.dtype)
        if host.shape != tuple(aval.shape) or np.dtype(aval.dtype) not in (host.dtype, narrow):
            raise RuntimeError(
                f"{name}: result {i} is {host.dtype}{list(host.shape)}, but was declared as"
                f" {aval.dtype}{list(aval.shape)}"
            )
        checked.append(host.astype(aval.dtype))
    return checked


def _returning(name: str) -> Callable[..., list[Array]]:
    def run(xp: Backend, *operands: Array, callback: Callable[..., Any], out: Any, **_: Any) -> list[Array]:
        return _call_host(xp, name, callback, operands, out)

    return run


for _name in ("pure_callback", "io_callback"):
    rule(_name)(_returning(_name))


@rule("debug_callback")
def debug_callback(xp: Backend, *operands: Array, callback: Callable[..., Any], **_: Any) -> list[Array]:
    return _call_host(xp, "debug.callback", lambda *values: (callback(*values), ())[1], operands)


@rule("debug_print")
def debug_print(xp: Backend, *operands: Array, **params: Any) -> list[Array]:
    return _call_host(xp, "debug.print", functools.partial(_printing(), **params), operands)


@functools.cache
def _printing() -> Callable[..., Any]:
    """Return the function that `jax.debug.print` calls on the host."""
    return jax.make_jaxpr(lambda: jax.debug.print(""))().eqns[0].primitive.impl


without_rule(
    "it calls compiled code that was written for XLA",
    *("ffi_call", "buffer_callback", "call_exported", "cudnn_fusion", "tpu_custom_call", "scaled_matmul"),
    *[f"dot_product_attention_{kind}" for kind in ("fwd", "bwd", "fp8_fwd", "fp8_bwd")],
)
without_rule("checkify's checks are made into results by jax.experimental.checkify.checkify: graft that", "check")
