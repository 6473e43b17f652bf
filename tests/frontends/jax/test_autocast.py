"""Grafted functions of JAX in regions of `tg.autocast`: products are rounded, dtypes and derivatives stay JAX's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import tensorgraft as tg
from tensorgraft.hub import registry

X = np.random.default_rng(0).standard_normal((4, 8), np.float32)
W = np.random.default_rng(1).standard_normal((8, 8), np.float32) / 3


def product(x: Any, w: Any) -> Any:
    return x @ w


def rounded(x: Any, w: Any) -> Any:
    """What the region makes of a product: its sums have the dtype that the program says."""
    return jnp.matmul(x.astype(jnp.bfloat16), w.astype(jnp.bfloat16), preferred_element_type=jnp.float32)


def layers(dot: Any) -> Any:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return jnp.clip(x, -1, 1)

    clipped.defvjp(lambda x: (clipped(x), None), lambda _, d: (3 * d,))  # which no derivative of `clip` is

    def loss(x: Any, w: Any) -> Any:
        x, steps = jax.lax.scan(lambda h, _: (jnp.tanh(dot(h, w)), h), x, None, length=2)
        return jnp.sum(clipped(dot(x, w)) ** 2) + jax.lax.cond(x.sum() > 0, jnp.sum, jnp.mean, steps)

    return loss


def call(fn: Any, backend: str, *arrays: np.ndarray) -> np.ndarray:
    xp = registry.get(backend)
    with xp.scope():
        result = fn(*map(xp.asarray, arrays))
        return np.asarray(xp.to_numpy(result))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", ["torch", "tensorflow"])
def test_products_in_a_region(backend: str, compiled: bool) -> None:
    f = tg.graft(lambda x, w: jnp.tanh(product(x, w)), onto=backend)
    f = tg.jit(f) if compiled else f
    plain, want = np.tanh(X @ W), np.asarray(jnp.tanh(rounded(jnp.asarray(X), jnp.asarray(W))))
    np.testing.assert_allclose(call(f, backend, X, W), plain, rtol=1e-5, atol=1e-6)
    with tg.autocast("bfloat16"):
        low = call(f, backend, X, W)
        with tg.autocast(enabled=False):
            np.testing.assert_allclose(call(f, backend, X, W), plain, rtol=1e-5, atol=1e-6)
    assert low.dtype == np.float32 and np.abs(low - plain).max() > 1e-4
    np.testing.assert_allclose(low, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(call(f, backend, X, W), plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", ["cpu", "graft"])
def test_derivatives_have_the_casts_of_their_region(device: str) -> None:
    f = tg.graft(layers(product), onto="torch")
    w = torch.tensor(W, device=device, requires_grad=True)
    x = torch.tensor(X, device=device)
    with tg.autocast("bfloat16"):
        value = f(x, w)
    value.backward()  # outside of the region
    want, slope = jax.value_and_grad(layers(rounded), argnums=1)(jnp.asarray(X), jnp.asarray(W))
    exact = jax.grad(layers(product), argnums=1)(jnp.asarray(X), jnp.asarray(W))
    np.testing.assert_allclose(value.item(), want, rtol=1e-5)
    np.testing.assert_allclose(w.grad.cpu(), slope, rtol=2e-2, atol=5e-2)
    assert w.grad.dtype == torch.float32 and np.abs(w.grad.cpu().numpy() - exact).max() > 1e-3
