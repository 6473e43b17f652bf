"""A linear layer with quantised weights against a dense one on the same backend, K = N = 2048.

`int8_dynamic`, which quantises activations on the way, compiled on every backend (on PyTorch by Inductor where there is
a C++ compiler), and eager; schemes that quantise weights only, eager.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from benchmarks.measure import Row, interleaved

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry

SIZE, ROUNDS = 2048, 15
AT_MOST = {  # of float32's time, by backend and rows
    "torch": {1: 1 / 2.9, 16: 1 / 2.5, 256: 1 / 3.9},
    "jax": {1: 1.0, 16: 1 / 2.3, 256: 1 / 1.6},
    "tensorflow": {1: 1 / 1.4, 16: 1 / 2.3, 256: 1 / 1.4},
}
WEIGHT_ONLY = {
    "float32": ("int8_per_channel", "int4_per_group_32", "nf4", "float8_e4m3"),
    "bfloat16": ("int8_per_channel", "int4_per_group_32"),
}


def measure() -> list[Row]:
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((SIZE, SIZE)) * 0.02).astype(np.float32)
    inputs = {m: rng.standard_normal((m, SIZE)).astype(np.float32) for m in (1, 16, 256)}
    rows = []
    for backend in registry.backends():
        if backend in AT_MOST:
            rows += _linear(backend, weight, inputs, "int8_dynamic", "float32", True, AT_MOST[backend])
    for backend in registry.backends():
        rows += _linear(backend, weight, inputs, "int8_dynamic", "float32", False, {})
        for dtype, schemes in WEIGHT_ONLY.items():
            for scheme in schemes if backend == "torch" or dtype == "float32" else ():
                rows += _linear(backend, weight, inputs, scheme, dtype, False, {})
    return rows


def _linear(
    backend: str,
    weight: np.ndarray,
    inputs: dict[int, np.ndarray],
    scheme: str,
    dtype: str,
    compiled: bool,
    at_most: dict[int, float],
) -> list[Row]:
    w = xp.astype(xp.asarray(weight, device=backend), getattr(xp, dtype))
    q = tg.quantize(w, scheme)
    run: Any = tg.jit(_product) if compiled else _product
    rows = []
    for m, values in inputs.items():
        x = xp.astype(xp.asarray(values, device=backend), w.dtype)
        seconds = interleaved(
            {"quantised": lambda x=x: _done(run(x, q)), "dense": lambda x=x: _done(run(x, w))},
            20 if m < 256 else 3,
            ROUNDS,
            time.process_time,
        )
        how = "" if compiled else ", eager" if dtype == "float32" else f", {dtype}, eager"
        name = f"{scheme.replace('_', ' ')} linear, {m} rows{how}, on {backend}"
        rows.append(Row(name, seconds["quantised"], seconds["dense"], dtype, at_most.get(m)))
    return rows


def _product(x: Any, w: Any) -> Any:
    return x @ w.T


def _done(x: Any) -> None:
    native = x.native
    if hasattr(native, "block_until_ready"):
        native.block_until_ready()
