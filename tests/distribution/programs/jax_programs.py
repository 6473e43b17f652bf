"""A JAX function without PyTorch: on NumPy."""

import jax.numpy as jnp
import numpy as np

import tensorgraft as tg

f = tg.graft(lambda x: jnp.sum(jnp.sin(x) ** 2), onto="numpy")
assert abs(float(f(np.ones(3, np.float32))) - 2.1242) < 1e-3
