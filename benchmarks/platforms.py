"""On what kind of device tests and benchmarks run: `--platform cpu`, `gpu` or `tpu`."""

from __future__ import annotations

import os

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
