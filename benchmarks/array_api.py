"""What `Array` costs beyond the backend's own call: `a + b` on 4 x 4, where the arithmetic is nothing.

TensorFlow's own `add` looks for overloads and converts first; its raw operation is shown beside.
"""

from __future__ import annotations

import functools
import importlib
import operator
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.measure import Row, interleaved

import tensorgraft.array_api as xp
from tensorgraft.hub import registry

CALLS, ROUNDS = 2000, 15
MAY_ADD = 8e-6
OWN = {
    "jax": ("jax.numpy:add",),
    "numpy": ("numpy:add",),
    "tensorflow": ("tensorflow:add", "tensorflow:raw_ops.AddV2"),
    "torch": ("torch:add",),
}


def measure() -> list[Row]:
    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    subjects: dict[str, Callable[[], object]] = {}
    names = [name for name in registry.backends() if name in OWN]
    for name in names:
        a, b = xp.asarray(values, device=name, copy=True), xp.asarray(values + 1, device=name, copy=True)
        subjects[f"Array on {name}"] = functools.partial(xp.add, a, b)
        for path in OWN[name]:
            subjects[path] = _native_add(path, a.native, b.native)
    seconds = interleaved(subjects, CALLS, ROUNDS, time.process_time)
    return [
        Row(
            f"Array: a + b, 4 x 4, on {name}",
            seconds[f"Array on {name}"],
            seconds[path],
            path.replace(":", "."),
            extra=MAY_ADD,
        )
        for name in names
        for path in OWN[name]
    ]


def _native_add(path: str, a: Any, b: Any) -> Callable[[], Any]:
    """What a user of the framework calls."""
    module, _, function = path.partition(":")
    add = operator.attrgetter(function)(importlib.import_module(module))
    return (lambda: add(x=a, y=b)) if "raw_ops" in path else lambda: add(a, b)
