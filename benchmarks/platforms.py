"""On what kind of device tests and benchmarks run: `--platform cpu`, `gpu` or `tpu`."""

from __future__ import annotations

import os
from importlib import metadata

# `JAX_PLATFORMS`: the first is the default; the host stays, for what is given to JAX from there
JAX_PLATFORMS = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}


def choose(platform: str | None) -> str:
    """What this process and those that it starts run on; without a word what the environment says, else the CPU. JAX
    is not to be there yet."""
    if platform is not None:
        os.environ["JAX_PLATFORMS"] = JAX_PLATFORMS[platform]
    asked = os.environ.setdefault("JAX_PLATFORMS", JAX_PLATFORMS["cpu"])
    return next(
        (name for name, value in JAX_PLATFORMS.items() if value.partition(",")[0] in asked.split(",")[:1]), asked
    )


# since these releases a process ends at XLA's flag `xla_cpu_use_fusion_emitters`, which is gone
_ONE_EMITTER = {"jaxlib": (0, 11), "tensorflow": (2, 22)}


def quick_flags() -> str:
    """Return XLA flags for programs that run once, whose time is compilation (`backends/jax/compilation/effort.py`)."""
    chosen = all(_version(name) < since for name, since in _ONE_EMITTER.items())
    return " --xla_backend_optimization_level=0" + (" --xla_cpu_use_fusion_emitters=false" if chosen else "")


def _version(distribution: str) -> tuple[int, int]:
    """(0, 0) of one that is not installed."""
    try:
        major, minor = metadata.version(distribution).split(".")[:2]
    except metadata.PackageNotFoundError:
        return (0, 0)
    return int(major), int(minor)
