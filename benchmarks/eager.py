"""What one eager operation costs: `a + b` on 4 x 4, where the arithmetic is nothing and the call is everything."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch
from benchmarks.measure import Row, interleaved

import tensorgraft as tg

CALLS, ROUNDS = 2000, 15
LIMIT = 3.5


def measure() -> list[Row]:
    values = np.arange(16, dtype=np.float32).reshape(4, 4)
    arrays = jnp.asarray(values), jnp.asarray(values + 1)
    host = torch.from_numpy(values), torch.from_numpy(values + 1)
    on = {name: tuple(x.to(tg.device(name)) for x in host) for name in ("jax", "numpy")}
    subjects = {
        "jnp.add": lambda: jnp.add(*arrays),
        "CPU PyTorch": lambda: torch.add(*host),
        "np.add": lambda: np.add(values, values),
        "jax": lambda: torch.add(*on["jax"]),
        "numpy": lambda: torch.add(*on["numpy"]),
    }
    seconds = interleaved(subjects, CALLS, ROUNDS)
    return [
        Row("eager a + b, 4 x 4, on JAX", seconds["jax"], seconds["jnp.add"], "jnp.add", LIMIT),
        Row("eager a + b, 4 x 4, on JAX", seconds["jax"], seconds["CPU PyTorch"], "CPU PyTorch"),
        Row("eager a + b, 4 x 4, on NumPy", seconds["numpy"], seconds["np.add"], "np.add"),
        Row("eager a + b, 4 x 4, on NumPy", seconds["numpy"], seconds["CPU PyTorch"], "CPU PyTorch"),
    ]
