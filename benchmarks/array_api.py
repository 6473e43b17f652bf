"""What `Array` costs beyond the backend's own call: `a + b` on 4 x 4, where the arithmetic is nothing.

TensorFlow's and PyTorch's calls are shown beside, as far as they are installed.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.measure import Row, interleaved

import tensorgraft.array_api as xp
from tensorgraft.hub import registry

CALLS, ROUNDS = 2000, 15
MAY_ADD = 8e-6
PROMISED = ("numpy", "jax")
OWN = {"jax": "jax.numpy:add", "numpy": "numpy:add", "tensorflow": "tensorflow:add", "torch": "torch:add"}


def measure() -> list[Row]:
    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    subjects = {}
    names = [name for name in registry.backends() if name in OWN]
    for name in names:
        a, b = xp.asarray(values, device=name, copy=True), xp.asarray(values + 1, device=name, copy=True)
        subjects[f"Array on {name}"] = lambda a=a, b=b: xp.add(a, b)
        add, inside = _native_add(name), (a.native, b.native)
        subjects[name] = lambda add=add, inside=inside: add(*inside)
    seconds = interleaved(subjects, CALLS, ROUNDS, time.process_time)
    return [
        Row(
            f"Array: a + b, 4 x 4, on {name}",
            seconds[f"Array on {name}"],
            seconds[name],
            f"{name}'s own add",
            extra=MAY_ADD if name in PROMISED else None,
        )
        for name in names
    ]


def _native_add(name: str) -> Callable[..., Any]:
    """What a user of the framework calls."""
    module, _, function = OWN[name].partition(":")
    return getattr(importlib.import_module(module), function)
