"""The backend on JAX: CPU, GPU and TPU through XLA, compiled."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from tensorgraft.hub.runtime import cpu_devices

if TYPE_CHECKING:
    from tensorgraft.backends.jax.backend import JaxBackend

__all__ = ["JaxBackend"]


def __getattr__(name: str) -> Any:
    """Import `JaxBackend`, and JAX with it, on first use; `deferred` works without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "tensorgraft.backends.jax.backend" not in sys.modules:
        _start()
    from tensorgraft.backends.jax import backend

    return backend.JaxBackend


def _start() -> None:
    """Join other processes and settle the number of CPU devices, before JAX makes its devices."""
    new = "jax" not in sys.modules
    from tensorgraft.backends.jax.sharding import processes

    processes.join()
    if new and processes.count() == 1 and (n := cpu_devices()) > 1 and "JAX_NUM_CPU_DEVICES" not in os.environ:
        sys.modules["jax"].config.update("jax_num_cpu_devices", n)
