"""Operations on tensors of PyTorch keep their derivatives, which are PyTorch's own."""

from __future__ import annotations

import random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
import torch
from tests.hub.cases import CASES, operation
from tests.hub.draw import Draw

from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.tape.backend import RULES

DIFFERENTIABLE = [key for key, case in CASES.items() if operation(key) in RULES and dtypes.float32 in case.dtypes]


@pytest.mark.parametrize("key", DIFFERENTIABLE)
def test_a_result_has_a_history(key: str) -> None:
    xp = registry.get("torch")
    for seed in range(3):
        leaves: list[torch.Tensor] = []

        def tensor(x: Any, leaves: list[torch.Tensor] = leaves) -> Any:
            if isinstance(x, list | tuple) and any(isinstance(v, np.ndarray) for v in x):
                return type(x)(map(tensor, x))
            if not isinstance(x, np.ndarray):
                return x
            out = torch.tensor(x, requires_grad=True) if x.dtype == dtypes.float32 else xp.asarray(x)
            leaves.extend([out] if out.requires_grad else [])
            return out

        arguments = CASES[key].arguments(Draw(random.Random(f"{key} {seed}").randint, dtypes.float32))
        results = getattr(xp, operation(key))(*map(tensor, arguments))
        smooth = [x for x in (results if isinstance(results, tuple | list) else [results]) if x.is_floating_point()]
        if leaves and any(x.numel() for x in smooth):
            assert any(x.requires_grad for x in smooth), arguments


def test_padding_with_an_array() -> None:
    x, value = torch.ones(2, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    y = registry.get("torch").pad(x, value, [(0, 2, 0)])
    (y * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad.tolist() == [1, 2] and value.grad.item() == 7


def test_products_at_repeated_positions() -> None:
    """The derivative of a factor is the product of the others, also where one of them is zero."""
    x, at = np.array([1.5, 0, 2, -3], np.float32), np.array([0, 0, 1, 1, 2, 3, 3])
    updates = np.array([2, 3, 0, 4, 0, 5, -1], np.float32)
    factors = [torch.tensor(v, requires_grad=True) for v in (x, updates)]
    weights = np.array([1, 4, 9, 16], np.float32)
    (
        factors[0].scatter_reduce(0, torch.from_numpy(at), factors[1], "prod") * torch.from_numpy(weights)
    ).sum().backward()

    def loss(x: Any, updates: Any) -> Any:
        return (registry.get("jax").scatter(x, [jnp.asarray(at)], updates, "multiply") * weights).sum()

    for found, v in zip(jax.jit(jax.grad(loss, (0, 1)))(x, updates), factors, strict=True):
        np.testing.assert_allclose(found, v.grad.numpy(), rtol=1e-6)


def test_truncated_remainders_in_tensorflow() -> None:
    xp = registry.get("tensorflow")
    x, y = np.array([[5.5, -7.25, 3.0]] * 2, np.float32), np.array([1.5, -2, np.inf], np.float32)
    a, b = torch.tensor(x, requires_grad=True), torch.tensor(y, requires_grad=True)
    torch.fmod(a, b).square().sum().backward()

    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            total = tf.reduce_sum(xp.fmod(x, y) ** 2)
        return tape.gradient(total, [x, y])

    for fn in (gradients, tf.function(gradients, jit_compile=True, autograph=False)):
        for found, v in zip(fn(tf.constant(x), tf.constant(y)), (a, b), strict=True):
            np.testing.assert_allclose(found.numpy(), v.grad.numpy(), rtol=1e-6)
