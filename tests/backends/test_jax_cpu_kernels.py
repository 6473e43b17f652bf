"""Kernels in C++ of programs on JAX's CPU: they compute what the operations do that other programs are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorgraft as tg
from tensorgraft.hub import cpp, registry

jax = pytest.importorskip("jax")
lax, jnp = jax.lax, jax.numpy

RNG = np.random.default_rng(0)
SHAPES = [((9, 1100), 1), ((1100, 9), 0), ((3, 70, 300), 1), ((20_000,), 0)]

pytestmark = pytest.mark.skipif(cpp.compiler() is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def _wide() -> Any:
    with registry.get("jax").scope(), jax.enable_x64(True):
        yield


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        return RNG.integers(-5 if np.dtype(dtype).kind == "i" else 0, 100, shape).astype(dtype)
    x = RNG.normal(size=shape).round(1).astype(dtype)
    x[RNG.random(shape) < 1e-4] = np.nan
    return x


def by_kernel(fn: Callable[..., Any], name: str, x: np.ndarray) -> Any:
    """Call the program of a function, which calls a kernel."""
    program = jax.jit(fn).lower(x).compile()
    assert f"tensorgraft_{name}" in program.as_text()
    return program(x)


def extremes(x: np.ndarray, axis: int, largest: bool) -> tuple[np.ndarray, np.ndarray]:
    """CPU PyTorch's rule, element after element."""
    rows = np.moveaxis(x, axis, 0)
    value, position = rows[0].copy(), np.zeros(rows.shape[1:], np.int64)
    found, at = np.empty_like(rows), np.empty(rows.shape, np.int64)
    for i, row in enumerate(rows):
        takes = np.isnan(row) | (~np.isnan(value) & ((row >= value) if largest else (row <= value)))
        value, position = np.where(takes, row, value), np.where(takes, i, position)
        found[i], at[i] = value, position
    return np.moveaxis(found, 0, axis), np.moveaxis(at, 0, axis)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int64"])
def test_extremes(dtype: str, largest: bool) -> None:
    xp = registry.get("jax")
    for shape, axis in SHAPES:
        x = values(dtype, shape)
        fn = lambda x, axis=axis: xp.running_extreme(x, axis, largest)  # noqa: E731
        found, at = by_kernel(fn, "cummax_positions" if largest else "cummin_positions", x)
        expected = extremes(x, axis, largest)
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, expected[0])
        np.testing.assert_array_equal(at, expected[1])


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_scans(name: str, dtype: str) -> None:
    xp = registry.get("jax")
    numpy = {"cumsum": np.cumsum, "cumprod": np.cumprod}
    for shape, axis in SHAPES:
        x = values(dtype, shape)
        fn = lambda x, axis=axis: getattr(xp, name)(x, axis=axis)  # noqa: E731
        found = by_kernel(fn, name, x)
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        with np.errstate(all="ignore"):
            expected = numpy[name](wide, axis) if name in numpy else extremes(x, axis, name == "cummax")[0]
            np.testing.assert_allclose(found, expected.astype(dtype), rtol=1e-6)


KEYS = {
    "random": lambda n: RNG.integers(-(2**63), 2**63 - 1, n),
    "few": lambda n: RNG.integers(-3, 3, n),
    "one": lambda n: np.full(n, 7),
    "ascending": np.arange,
    "descending": lambda n: np.arange(n, 0, -1) << 30,
    "clustered": lambda n: (RNG.integers(0, 4, n) << 60) | RNG.integers(0, 2**40, n),
    "with positions": lambda n: (RNG.integers(0, 2**30, n) << 32) | np.arange(n),
    "random with positions": lambda n: (RNG.integers(0, 2**62, n) & ~0xFFFFF) | np.arange(n),
}


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize("keys", KEYS)
def test_sort(keys: str, dtype: str) -> None:
    xp = registry.get("jax")
    x = np.stack([np.asarray(KEYS[keys](n), np.int64).view(dtype) for n in (9000, 9000)])
    for rows, axis in ((x, 1), (x.T.copy(), 0), (x[0], 0)):
        fn = lambda x, axis=axis: xp.sort((x,), axis=axis)[0]  # noqa: E731
        np.testing.assert_array_equal(by_kernel(fn, "sort", rows), np.sort(rows, axis))


def test_permutations_are_those_of_every_backend() -> None:
    key = np.array([3, 4], np.uint32)
    xp = registry.get("jax")
    found = jax.jit(lambda key: xp.permutation(key, 20_000))(key)
    np.testing.assert_array_equal(found, registry.get("numpy").permutation(key, 20_000))


def test_batches() -> None:
    xp = registry.get("jax")
    x = values("float32", (4, 9, 1100))
    fn = lambda x: xp.running_extreme(x, 1)  # noqa: E731
    for axis in (0, 1, 2):
        rows = x if axis == 0 else np.moveaxis(x, 0, axis)
        found, at = jax.vmap(fn, axis)(rows)
        np.testing.assert_array_equal(found, extremes(x, 2, True)[0])
        np.testing.assert_array_equal(at, extremes(x, 2, True)[1])


def test_derivatives() -> None:
    xp = registry.get("jax")
    x = RNG.normal(size=(9, 1100))
    values, pull = jax.vjp(lambda x: xp.running_extreme(x, 1)[0], x)
    expected = np.zeros_like(x)
    np.add.at(expected, (np.arange(9)[:, None], extremes(x, 1, True)[1]), 1.0)
    np.testing.assert_array_equal(pull(jnp.ones_like(values))[0], expected)
    total = jax.grad(lambda x: xp.cumsum(x, axis=1).sum())(x)
    np.testing.assert_allclose(total, np.broadcast_to(np.arange(1100, 0, -1.0), x.shape))


def test_programs_that_are_exported_call_none() -> None:
    from jax import export

    xp = registry.get("jax")
    x = values("float32", (9, 1100))

    def fn(x: Any) -> Any:
        return *xp.running_extreme(x, 1), xp.cumsum(x, axis=1), xp.sort((xp.astype(x, np.dtype(np.int64)),), axis=1)[0]

    exported = export.export(jax.jit(fn))(x)
    assert "@tensorgraft" not in exported.mlir_module()
    for found, expected in zip(export.deserialize(exported.serialize()).call(x), fn(x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert "@tensorgraft" in jax.jit(fn).lower(x).as_text()
    assert "@tensorgraft" not in jax.jit(fn).trace(x).lower(lowering_platforms=("cuda",)).as_text()


def test_programs_that_are_grafted_are_made_of_operations() -> None:
    """In a user's program with narrow types alone, too."""
    torch = pytest.importorskip("torch")

    class Scans(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.cumsum(x, 1), *torch.cummax(x, 1)

    x = values("float32", (9, 1100))
    with jax.enable_x64(False):
        grafted = tg.graft(Scans(), onto="jax")
        back = tg.graft(lambda x: grafted.apply({}, {}, x)[0], onto="torch")
        for found, expected in zip(back(torch.from_numpy(x)), Scans()(torch.from_numpy(x)), strict=True):
            np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)
