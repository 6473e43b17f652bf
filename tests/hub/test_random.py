"""Random numbers: the cipher's published vectors, equal bits on every backend, and distributions that are right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
from tests.hub.checks import ABSTRACT, BACKENDS, backend, shapes, to_host

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.operations.random import Random

KEY = np.array([0x243F6A88, 7], np.uint32)
# Random123's known answers (kat_vectors) of threefry2x32 with 20 rounds: key, counter, result
VECTORS = [
    ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
    ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
]
SHAPE = (3, 7)
# integers on the inside: equal to the bit
EXACT: dict[str, tuple[Any, ...]] = {
    "random_bits": (SHAPE,),
    "random_uint64": (SHAPE,),
    "uniform float16": (SHAPE, dtypes.float16),
    "uniform bfloat16": (SHAPE, dtypes.bfloat16),
    "uniform float32": (SHAPE, dtypes.float32),
    "uniform float64": (SHAPE, dtypes.float64),
    "randint int8": (SHAPE, -5, 5, dtypes.int8),
    "randint int64": (SHAPE, -(2**63), 2**63 - 1, dtypes.int64),
    "randint uint64": (SHAPE, 0, 2**64, dtypes.uint64),
    "permutation": (23,),
}
# through logarithms and the like: equal to a few units in the last place
CLOSE: dict[str, tuple[Any, ...]] = {
    "normal float32": (SHAPE, dtypes.float32),
    "normal float64": (SHAPE, dtypes.float64),
    "normal bfloat16": (SHAPE, dtypes.bfloat16),
    "exponential float32": (SHAPE, dtypes.float32),
}


def draw(xp: Backend, row: str, arguments: tuple[Any, ...]) -> Any:
    with xp.scope():
        return to_host(xp, getattr(xp, row.partition(" ")[0])(xp.asarray(KEY), *arguments))


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(("key", "counter", "wanted"), VECTORS)
def test_known_answers(name: str, key: Any, counter: Any, wanted: Any) -> None:
    xp = backend(name)
    for cipher in (xp.threefry2x32, lambda *x: Random.threefry2x32(xp, *x)):  # the override and its composite
        with xp.scope():
            found = cipher(*(xp.asarray(np.array(x, np.uint32)) for x in (key, counter[:1], counter[1:])))
            assert tuple(int(xp.to_numpy(x)[0]) for x in found) == wanted


@pytest.mark.parametrize("name", BACKENDS)
def test_override_of_bits_agrees_with_its_composite(name: str) -> None:
    xp = backend(name)
    for shape in ((), (0,), (5, 4), (20_000,)):  # the last takes more than one block
        with xp.scope():
            found = to_host(xp, xp.random_bits(xp.asarray(KEY), shape))
            wanted = to_host(xp, Random.random_bits(xp, xp.asarray(KEY), shape))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("row", [*EXACT, *CLOSE])
def test_backends_agree(name: str, row: str) -> None:
    arguments = {**EXACT, **CLOSE}[row]
    found, wanted = draw(backend(name), row, arguments), draw(backend("numpy"), row, arguments)
    rule = getattr(ABSTRACT, row.partition(" ")[0])(ShapeDtype((2,), dtypes.uint32), *arguments)
    assert shapes(found) == rule
    if row in EXACT:
        np.testing.assert_array_equal(found, wanted)
    else:
        eps = float(dtypes.finfo(found.dtype).eps)
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=32 * eps, atol=32 * eps)


@pytest.mark.parametrize("name", BACKENDS)
def test_keys_of_their_own(name: str) -> None:
    xp = backend(name)
    with xp.scope():
        keys = [
            xp.to_numpy(xp.fold_in(xp.asarray(KEY), xp.full((), high, dtypes.uint32), xp.full((), low, dtypes.uint32)))
            for high, low in ((0, 0), (0, 1), (1, 0))
        ]
    assert len({tuple(key) for key in keys}) == 3
    assert all(key.shape == (2,) and key.dtype == np.uint32 for key in keys)


@pytest.mark.parametrize(
    ("row", "arguments", "distribution"),
    [
        ("uniform", (dtypes.float32,), scipy.stats.uniform),
        ("uniform", (dtypes.float64,), scipy.stats.uniform),
        ("normal", (dtypes.float32,), scipy.stats.norm),
        ("normal", (dtypes.float64,), scipy.stats.norm),
        ("exponential", (dtypes.float32,), scipy.stats.expon),
    ],
)
def test_distributions(row: str, arguments: tuple[Any, ...], distribution: Any) -> None:
    x = draw(backend("numpy"), row, ((20_000,), *arguments)).astype(np.float64)
    assert np.all(np.isfinite(x))
    assert scipy.stats.kstest(x, distribution.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.03


def test_uniform_stays_below_one() -> None:
    x = draw(backend("numpy"), "uniform", ((200_000,), dtypes.bfloat16)).astype(np.float32)
    assert x.min() >= 0 and x.max() < 1


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_the_ends_of_distributions(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least and the greatest uniform number, each one of 2^24 (2^53), give finite normal and positive numbers."""
    xp, step = backend(name), 2.0 ** (-53 if dtype == dtypes.float64 else -24)
    monkeypatch.setattr(type(xp), "uniform", lambda *_: xp.asarray(np.array([0, 1 - step], dtype)))
    normal, exponential = (draw(xp, row, ((2,), dtype)) for row in ("normal", "exponential"))
    np.testing.assert_allclose(normal, np.array([1, -1]) * scipy.stats.norm.ppf(step / 2), rtol=1e-6)
    np.testing.assert_allclose(exponential, [step / 2, -np.log(step)], rtol=1e-6)


def test_randint_and_permutation_cover_their_range() -> None:
    x = draw(backend("numpy"), "randint", ((1000,), -3, 4, dtypes.int32))
    assert set(x.tolist()) == set(range(-3, 4))
    p = draw(backend("numpy"), "permutation", (100,))
    assert sorted(p.tolist()) == list(range(100)) != p.tolist()


@pytest.mark.parametrize("name", BACKENDS)
def test_cipher_takes_several_keys(name: str) -> None:
    xp = backend(name)
    keys = np.array([[KEY[0], 1, 2], [KEY[1], 3, 4]], np.uint32)
    counters = np.arange(6, dtype=np.uint32).reshape(2, 3)
    with xp.scope():
        found = to_host(xp, xp.threefry2x32(*(xp.asarray(x) for x in (keys, counters, counters + 9))))
        for i in range(3):
            column = [np.ascontiguousarray(x[:, i]) for x in (counters, counters + 9)]
            key = xp.asarray(np.ascontiguousarray(keys[:, i]))
            wanted = to_host(xp, xp.threefry2x32(key, *map(xp.asarray, column)))
            np.testing.assert_array_equal([x[:, i] for x in found], wanted)


@pytest.mark.parametrize("n", [0, 1, 2, 31, 256, 257])
def test_few_numbers_are_the_first_of_many(n: int) -> None:
    """On NumPy few are encrypted by Python's integers."""
    xp = backend("numpy")
    few, many = xp.random_bits(KEY, (n,)), xp.random_bits(KEY, (1000,))
    for a, b in zip(few, many, strict=True):
        assert a.dtype == np.uint32 and a.shape == (n,)
        np.testing.assert_array_equal(a, b[:n])
    words = np.array(7, np.uint32), np.array(2**32 - 1, np.uint32)
    np.testing.assert_array_equal(xp.fold_in(KEY, *words), Random.fold_in(xp, KEY, *words))


@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (257,), (20000,)])
def test_numpy_draws_in_fewer_calls_the_same_bits(shape: tuple[int, ...]) -> None:
    numpy = backend("numpy")
    key = np.array([7, 9], np.uint32)
    for dtype in (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64):
        for name in ("uniform", "normal"):
            found, wanted = (np.asarray(getattr(c, name)(numpy, key, shape, dtype)) for c in (type(numpy), Random))
            assert found.dtype == wanted.dtype and found.shape == wanted.shape
            np.testing.assert_array_equal(found, wanted)
    n = math.prod(shape)
    np.testing.assert_array_equal(numpy.permutation(key, n), Random.permutation(numpy, key, n))
    np.testing.assert_array_equal(numpy.random_uint64(key, shape), Random.random_uint64(numpy, key, shape))
