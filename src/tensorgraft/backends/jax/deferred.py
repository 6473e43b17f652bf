"""JAX as a deferred backend: nothing is imported until JAX is needed. On the CPU, the cold tier computes first, and
importing JAX takes half a second."""

from __future__ import annotations

import importlib.util
import os
import sys

from tensorgraft.hub import processes, registry, tiers
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.deferred import Deferred, start
from tensorgraft.hub.runtime import cpu_devices
from tensorgraft.importing import entry_points

# environment variables that select devices for JAX
_CHOICES = (
    "JAX_FORCE_TPU_INIT",
    "JAX_NUM_CPU_DEVICES",
    "JAX_PLATFORM_NAME",
    "PJRT_NAMES_AND_LIBRARY_PATHS",
    "TPU_LIBRARY_PATH",
)


class DeferredJax(Deferred):
    name = "jax"
    compiles = True
    grafted_as = "function"
    few_rows = 64  # `products.MOST_TURNED`, which imports JAX

    def __init__(self) -> None:
        super().__init__()
        self.cold = registry.get("numpy")

    def load(self) -> type[Backend]:
        return registry.backend_class("jax")

    def is_tracing(self) -> bool:
        return "jax" in sys.modules and start(self).is_tracing()

    def synchronize(self) -> None:
        if "jax" in sys.modules:
            start(self).synchronize()

    def device_name(self) -> str:
        return "CPU"

    @classmethod
    def device_count(cls) -> int:
        return registry.backend_class("jax").device_count() if "jax" in sys.modules else 1


def deferred() -> DeferredJax | None:
    """JAX's device 0, if it is known without JAX that this is the one CPU; None where JAX has to be asked."""
    if (
        "jax" in sys.modules
        or not tiers.READS_MEMORY
        or cpu_devices() > 1
        or any(name in os.environ for name in _CHOICES)
    ):
        return None
    if "host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return None
    if processes.may_be_distributed():  # processes that start together
        return None
    platforms = os.environ.get("JAX_PLATFORMS", "")
    plugins = any(map(importlib.util.find_spec, ("jax_plugins", "libtpu"))) or any(entry_points("jax_plugins"))
    return DeferredJax() if platforms == "cpu" or not (platforms or plugins) else None
