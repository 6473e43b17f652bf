"""Elementary functions of float32 on JAX's CPU: the last places, the corners, and their derivatives."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tensorgraft.hub import registry

jax = pytest.importorskip("jax")

CORNERS = np.array([0, -0.0, 1, -1, 2, 0.5, -0.5, 7, np.inf, -np.inf, np.nan, 3e38, 1e7, -1e12, 3e-38], np.float32)
EXACT: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("sin", "cos", "tan", "exp2", "log2")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


def compiled(name: str, *xs: np.ndarray) -> np.ndarray:
    xp = registry.get("jax")
    with xp.scope():
        return xp.to_numpy(xp.compile(getattr(xp, name))(*map(xp.asarray, xs)))


def operands(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    if name == "exp2":
        return rng.uniform(-126, 128, 1 << 16).astype(np.float32)
    if name in ("log2", "rsqrt"):
        return np.concatenate([np.exp(rng.uniform(-87, 88, 1 << 16)), rng.uniform(0.9, 1.1, 1 << 14)]).astype(
            np.float32
        )
    quarters = np.arange(1, 4096) * (np.pi / 2)  # next to them results are small
    return np.concatenate([rng.normal(size=1 << 14) * 10**k for k in range(-3, 6)] + [quarters]).astype(np.float32)


@pytest.mark.parametrize(("name", "most"), [*{**dict.fromkeys(EXACT, 0.51), "rsqrt": 1.5}.items()])
def test_last_places(name: str, most: float) -> None:
    x = operands(name)
    exact = EXACT[name](x.astype(np.longdouble))
    found = compiled(name, x)
    assert found.dtype == np.float32
    units = np.abs(found - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert float(np.max(units)) <= most


@pytest.mark.parametrize("name", EXACT)
def test_corners(name: str) -> None:
    """Arguments that are so large that XLA's own function is called are among them."""
    with np.errstate(all="ignore"):
        exact = EXACT[name](CORNERS.astype(np.float64)).astype(np.float32)
    for x, expected in ((CORNERS, exact), *((CORNERS[k : k + 1], exact[k : k + 1]) for k in range(len(CORNERS)))):
        found = compiled(name, x)
        np.testing.assert_array_max_ulp(found, expected, 2)
        assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


def test_log2_of_powers_of_two() -> None:
    powers = np.arange(-126, 128)
    np.testing.assert_array_equal(compiled("log2", (2.0**powers).astype(np.float32)), powers)


def test_remainders_are_exact() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=1 << 15) * 10 ** rng.uniform(-3, 8, 1 << 15)).astype(np.float32)
    y = (rng.normal(size=1 << 15) * 10 ** rng.uniform(-2, 2, 1 << 15)).astype(np.float32)
    multiples = (rng.integers(1, 1 << 20, 1 << 12) * np.float64(np.float32(0.1))).astype(np.float32)
    corners = map(np.array, zip(*itertools.product(CORNERS[:-1], CORNERS[:-1]), strict=True))
    cases = ((x, y), (multiples, np.full_like(multiples, 0.1)), tuple(corners), (np.float32(7), y), (x, np.float32(3)))
    for a, b in cases:
        with np.errstate(all="ignore"):
            expected = np.fmod(a, b)
        found = compiled("fmod", np.asarray(a, np.float32), np.asarray(b, np.float32))
        np.testing.assert_array_equal(found, expected)
        assert (np.signbit(found) == np.signbit(expected))[~np.isnan(expected)].all()


def test_derivatives() -> None:
    xp = registry.get("jax")
    with xp.scope():
        x = np.float32(0.25)
        assert float(jax.grad(xp.sin)(x)) == pytest.approx(np.cos(0.25))
        assert float(jax.grad(jax.grad(xp.cos))(x)) == pytest.approx(-np.cos(0.25))
        assert float(jax.grad(xp.tan)(x)) == pytest.approx(1 / np.cos(0.25) ** 2)
        assert float(jax.grad(xp.exp2)(x)) == pytest.approx(2**0.25 * np.log(2))
        assert float(jax.grad(xp.log2)(x)) == pytest.approx(4 / np.log(2))
        assert float(jax.grad(xp.rsqrt)(x)) == pytest.approx(-4)
        gradients = jax.grad(xp.fmod, argnums=(0, 1))(np.float32(7), np.float32(2))
        assert [float(g) for g in gradients] == [1, -3]
        np.testing.assert_allclose(jax.vmap(xp.sin)(np.ones((2, 3), np.float32)), np.sin(1), rtol=1e-6)
