"""A linear layer with int8 weights and activations that are quantised on the way, against float32 on the same backend.

K = N = 2048. On JAX and TensorFlow compiled; on PyTorch compiled, too, by Inductor where there is a C++ compiler.
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


def measure() -> list[Row]:
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((SIZE, SIZE)) * 0.02).astype(np.float32)
    rows = []
    for backend in registry.backends():
        if backend not in AT_MOST:
            continue
        w = xp.asarray(weight, device=backend)
        q = tg.quantize(w, "int8_dynamic")
        linear = tg.jit(lambda x, w: x @ w.T)
        for m, limit in AT_MOST[backend].items():
            x = xp.asarray(rng.standard_normal((m, SIZE)).astype(np.float32), device=backend)
            seconds = interleaved(
                {
                    "int8": lambda x=x, q=q, linear=linear: _done(linear(x, q)),
                    "float32": lambda x=x, w=w, linear=linear: _done(linear(x, w)),
                },
                20 if m < 256 else 3,
                ROUNDS,
                time.process_time,
            )
            rows.append(
                Row(
                    f"int8 dynamic linear, {m} rows, on {backend}",
                    seconds["int8"],
                    seconds["float32"],
                    "float32",
                    limit,
                )
            )
    return rows


def _done(x: Any) -> None:
    native = x.native
    if hasattr(native, "block_until_ready"):
        native.block_until_ready()
