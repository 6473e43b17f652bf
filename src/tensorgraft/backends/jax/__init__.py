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
    """`JaxBackend`, with which JAX is imported: `deferred` does without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "jax" not in sys.modules and (n := cpu_devices()) > 1:
        os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(n))
    from tensorgraft.backends.jax import backend

    return backend.JaxBackend
