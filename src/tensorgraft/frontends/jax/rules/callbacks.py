"""Functions of the host in a program. They are called where the program is evaluated step by step; they get arrays of
JAX on the CPU, as JAX gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src import debugging

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.jax.rule import rule, without_rule
from tensorgraft.hub.backend import Backend

Array = Any


def _on_host(xp: Backend, name: str, operands: Sequence[Array]) -> list[jax.Array]:
    if any(map(xp.is_traced, operands)):
        raise TracedValueError(
            f"{name} calls a function of the host, which a compiled program on {xp.name} cannot: call the grafted"
            " function without tg.jit, or leave the callback out"
        )
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.enable_x64(True):
        return [jax.device_put(np.array(xp.to_numpy(x)), cpu) for x in operands]


def _results(xp: Backend, name: str, found: Sequence[Any], out: Sequence[Any]) -> list[Array]:
    """Raises RuntimeError where the function returns something else than it was said to."""
    if len(found) != len(out):
        raise RuntimeError(f"{name}: the function returned {len(found)} arrays, {len(out)} were promised")
    made = []
    for i, (x, aval) in enumerate(zip(found, out, strict=True)):
        host = np.asarray(x)
        narrow = jax.dtypes.canonicalize_dtype(host.dtype)
        if host.shape != tuple(aval.shape) or np.dtype(aval.dtype) not in (host.dtype, narrow):
            raise RuntimeError(
                f"{name}: result {i} is {host.dtype}{list(host.shape)}, promised was {aval.dtype}{list(aval.shape)}"
            )
        made.append(xp.asarray(host.astype(aval.dtype)))
    return made


def _called(name: str) -> Callable[..., list[Array]]:
    def run(xp: Backend, *operands: Array, callback: Callable[..., Any], out: Any, **_: Any) -> list[Array]:
        return _results(xp, name, jax.tree.leaves(callback(*_on_host(xp, name, operands))), out)

    return run


for _name in ("pure_callback", "io_callback"):
    rule(_name)(_called(_name))


@rule("debug_callback")
def debug_callback(xp: Backend, *operands: Array, callback: Callable[..., Any], **_: Any) -> list[Array]:
    callback(*_on_host(xp, "debug.callback", operands))
    return []


@rule("debug_print")
def debug_print(xp: Backend, *operands: Array, **params: Any) -> list[Array]:
    debugging.debug_print_p.impl(*_on_host(xp, "debug.print", operands), **params)
    return []


without_rule(
    "it calls compiled code that was written for XLA",
    *("ffi_call", "buffer_callback", "call_exported", "cudnn_fusion", "tpu_custom_call", "scaled_matmul"),
    *[f"dot_product_attention_{kind}" for kind in ("fwd", "bwd", "fp8_fwd", "fp8_bwd")],
)
without_rule("checkify's checks are made into results by jax.experimental.checkify.checkify: graft that", "check")
