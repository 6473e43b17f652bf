"""Inverse trigonometric functions of float32 on JAX's CPU: the last places, the corners, and their derivatives."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tensorgraft.hub import registry

jax = pytest.importorskip("jax")

CORNERS = np.array([0, -0.0, 1, -1, 2, 0.5, -0.5, np.inf, -np.inf, np.nan, 3e38, 2e38, 3e-38], np.float32)


def compiled(name: str, *xs: np.ndarray) -> np.ndarray:
    xp = registry.get("jax")
    with xp.scope():
        return xp.to_numpy(xp.compile(getattr(xp, name))(*map(xp.asarray, xs)))


def units(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the greatest error in units in the last place."""
    return float(np.max(np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(exact).astype(np.float32))))


@pytest.mark.parametrize(("name", "most"), [("atan", 1.6), ("asin", 3), ("acos", 3)])
def test_of_one_operand(name: str, most: float) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1, 1, 1 << 16), 1 - 10 ** rng.uniform(-7, 0, 1 << 12)]).astype(np.float32)
    exact: Any = getattr(np, f"arc{name[1:]}")
    assert units(compiled(name, x), exact(x.astype(np.float64))) <= most
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_max_ulp(compiled(name, CORNERS), exact(CORNERS), 1)


def test_atan2() -> None:
    rng = np.random.default_rng(0)
    y, x = ((rng.normal(size=1 << 16) * 10 ** rng.uniform(-3, 3, 1 << 16)).astype(np.float32) for _ in range(2))
    assert units(compiled("atan2", y, x), np.arctan2(y.astype(np.float64), x)) <= 1.6
    y, x = map(np.array, zip(*itertools.product(CORNERS, CORNERS), strict=True))
    found, exact = compiled("atan2", y, x), np.arctan2(y.astype(np.float64), x).astype(np.float32)
    exact[np.abs(exact) < np.finfo(np.float32).tiny] *= 0  # denormal numbers count as zero
    np.testing.assert_array_max_ulp(found, exact, 1)
    assert (np.signbit(found) == np.signbit(exact))[~np.isnan(exact)].all()


def test_derivatives() -> None:
    xp = registry.get("jax")
    with xp.scope():
        x, y = np.float32(0.25), np.float32(-0.5)
        assert float(jax.grad(xp.atan)(x)) == pytest.approx(1 / (1 + 0.0625))
        assert float(jax.grad(xp.asin)(x)) == pytest.approx(1 / (1 - 0.0625) ** 0.5)
        assert float(jax.grad(jax.grad(xp.acos))(x)) == pytest.approx(-0.25 / (1 - 0.0625) ** 1.5)
        assert float(jax.grad(xp.atan2)(y, x)) == pytest.approx(0.25 / 0.3125)
