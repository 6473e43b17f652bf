"""Sorts and scans on JAX's CPU, where keys are packed with their positions and axes are scanned in steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorgraft.hub import registry

pytest.importorskip("jax")

RNG = np.random.default_rng(0)
NAN = float("nan")
SPECIAL = [NAN, -NAN, 0.0, -0.0, np.inf, -np.inf, 1.0, 1.0, -2.5]
DTYPES = ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"]


def compiled(fn: Callable[[Any], Callable[..., Any]], *xs: np.ndarray) -> list[np.ndarray]:
    xp = registry.get("jax")
    with xp.scope():
        return [xp.to_numpy(x) for x in xp.compile(fn(xp))(*map(xp.asarray, xs))]


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    if kind.kind in "iu":
        bounds = np.iinfo(kind)
        x = RNG.integers(bounds.min, bounds.max, shape, kind, endpoint=True)
        x.reshape(-1)[:2] = x.reshape(-1)[2:4]
        return x
    if kind == np.bool_:
        return RNG.random(shape) < 0.5
    x = np.array(RNG.normal(size=shape))
    x.reshape(-1)[: len(SPECIAL)] = SPECIAL
    return x.astype(kind)


def order(x: np.ndarray, axis: int, descending: bool) -> np.ndarray:
    """The positions of a stable sort; NaN is the greatest."""
    wide = x if x.dtype.kind in "iu" else x.astype(np.float64)
    ranks = np.unique(wide, return_inverse=True, equal_nan=True)[1].reshape(x.shape)
    return np.argsort(-ranks if descending else ranks, axis=axis, kind="stable")


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_order(dtype: str, descending: bool) -> None:
    for shape, axis in (((40,), 0), ((5, 13), 1), ((13, 5), 0), ((0,), 0)):
        x = values(dtype, shape) if shape != (0,) else np.zeros(0, dtype if dtype != "bfloat16" else np.float32)
        found, at = compiled(lambda xp, a=axis: lambda keys: xp.sort_with_indices(keys, a, descending), x)
        expected = order(x, axis, descending)
        assert at.dtype == np.int64
        np.testing.assert_array_equal(at, expected)
        assert found.dtype == x.dtype
        assert found.tobytes() == np.take_along_axis(x, expected, axis).tobytes()


def test_sort_by_two_keys() -> None:
    first, second = RNG.integers(0, 3, 50), RNG.integers(0, 4, 50).astype(np.float32)
    at = np.arange(50)
    for narrow in (np.int64, np.int32):  # of three words, and of two
        found = compiled(lambda xp: lambda *x: xp.sort(x, axis=0, num_keys=2), first.astype(narrow), second, at)
        expected = np.lexsort((second, first))
        np.testing.assert_array_equal(found[2], expected)
        np.testing.assert_array_equal(found[1], second[expected])


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_scans_of_long_axes(name: str) -> None:
    """Those from 16,384 elements on are scanned in blocks, whose sums are accumulated in double precision."""
    reference = {
        "cumsum": np.cumsum,
        "cumprod": np.cumprod,
        "cummax": np.maximum.accumulate,
        "cummin": np.minimum.accumulate,
    }
    for n in (16_384, 16_641, 20_000):
        x = (1 + RNG.normal(size=n) * 1e-3).astype(np.float32)
        (found,) = compiled(lambda xp: lambda row: (getattr(xp, name)(row, axis=0),), x)
        expected = reference[name](x.astype(np.float64) if "sum" in name or "prod" in name else x).astype(np.float32)
        np.testing.assert_array_max_ulp(found, expected, 1)


def test_positions_of_extremes() -> None:
    x = values("float32", (6, 11))
    x[1] = -np.inf
    x[2] = np.inf
    x[3, 4:6] = x[3].max() + 1
    for name in ("argmax", "argmin"):
        for axis in (0, 1):
            (found,) = compiled(lambda xp, a=axis, n=name: lambda x: (getattr(xp, n)(x, axis=a),), x)
            np.testing.assert_array_equal(found, getattr(np, name)(x, axis=axis))
