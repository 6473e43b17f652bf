"""Products with large matrices of codes on JAX, which go block by block."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorgraft as tg

N, K = 1024, 1024


@pytest.mark.parametrize(
    "scheme",
    ["int8_per_channel", "int8_per_tensor", "int4_per_group_32", "uint4_per_group_64", "int2_per_group_32", "nf4"],
)
def test_blocks(scheme: str) -> None:
    key = jax.random.key(0)
    q = tg.quantize(jax.random.normal(key, (N, K)), scheme)
    w = q.dequantize()
    x = jax.random.normal(jax.random.key(1), (3, K))

    def loss(x: Any, w: Any) -> Any:
        return jnp.sum(jnp.tanh(jax.vmap(lambda row: w @ row)(x) / 32) + jnp.tanh(x @ w.T / 32))

    program = jax.jit(lambda x, q: x @ q.T).lower(x, q).compile()
    assert program.memory_analysis().temp_size_in_bytes < N * K * 4 / 2  # not all numbers at once
    np.testing.assert_allclose(program(x, q), x @ w.T, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(q @ x[0], w @ x[0], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(jax.grad(loss)(x, q), jax.grad(loss)(x, w), rtol=1e-4, atol=1e-4)
    assert x.astype(jnp.bfloat16).dtype == (x.astype(jnp.bfloat16) @ q.T.astype(jnp.bfloat16)).dtype
