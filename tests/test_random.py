"""`tensorgraft.random` draws what `jax.random` draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry

jax = pytest.importorskip("jax")
R = tg.random
BACKENDS = [name for name in ("numpy", "torch", "jax", "tensorflow") if name in registry.backends()]


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


def theirs(make: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(make(jax.random))


def same(ours: tg.array_api.Array, make: Any) -> None:
    expected = theirs(make)
    found = np.asarray(ours)
    assert found.dtype == expected.dtype and found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def some(device: str, cases: list[Any]) -> list[Any]:
    """A sample for the backends that compile each of them."""
    return cases if device in ("numpy", "torch") else cases[::3]


SEEDS = [0, 7, 2**31, 2**32 - 1, 2**40 + 3, -1, -(2**63)]


def test_keys(device: str) -> None:
    for seed in SEEDS:
        same(R.key(seed, device), lambda r, seed=seed: r.PRNGKey(seed))
    for seed, dtype in some(device, [(2**40, "int64"), (5, "int32"), (-3, "int64"), (-5, "int32"), (200, "uint8")]):
        array = xp.asarray(seed, dtype=dtype, device=device)
        same(R.key(array), lambda r, s=seed, d=dtype: r.PRNGKey(np.dtype(d).type(s)))
    key = R.key(3, device)
    assert str(key.device) == device and key.shape == (2,)
    with pytest.raises(TypeError, match="expected a seed that is an int"):
        R.key(1.5, device)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"normal: expected a key, uint32\[2\]"):
        R.normal(xp.zeros(2, device=device))


def test_splits_and_bits(device: str) -> None:
    key = R.key(11, device)
    same(R.split(key), lambda r: r.split(r.PRNGKey(11)))
    same(R.split(key, (2, 3)), lambda r: r.split(r.PRNGKey(11), (2, 3)))
    for data in (0, 9, 2**32 - 1):
        same(R.fold_in(key, data), lambda r, d=data: r.fold_in(r.PRNGKey(11), d))
    same(R.fold_in(key, xp.asarray(9, device=device)), lambda r: r.fold_in(r.PRNGKey(11), 9))
    for dtype in some(device, ["uint64", "uint8", "uint16", "uint32"]):
        same(R.bits(key, (3, 5), dtype), lambda r, d=dtype: r.bits(r.PRNGKey(11), (3, 5), d))


def test_integers(device: str) -> None:
    key = R.key(5, device)
    k = 5
    cases = [
        (0, 10, "int64"), (-7, 5, "int32"), (0, 256, "uint8"), (-128, 128, "int8"), (3, 3, "int64"),
        (-(2**63), 2**63 - 1, "int64"), (0, 2**16, "uint16"), (5, 2**33, "uint32"), (0, 1000, "int16"),
    ]  # fmt: skip
    for low, high, dtype in some(device, cases):
        asked = ((17,), low, high, dtype)
        same(R.randint(key, *asked), lambda r, asked=asked: r.randint(r.PRNGKey(k), *asked))
    low_array, high_array = np.array([[0], [-5]]), np.array([3, 2**31, 9])
    same(
        R.randint(key, (2, 3), xp.asarray(low_array, device=device), xp.asarray(high_array, device=device), "int32"),
        lambda r: r.randint(r.PRNGKey(k), (2, 3), low_array, high_array, "int32"),
    )
    same(R.rademacher(key, (4, 9)), lambda r: r.rademacher(r.PRNGKey(k), (4, 9)))
    same(R.rademacher(key, 50, "float32"), lambda r: r.rademacher(r.PRNGKey(k), (50,), "float32"))
    same(R.bernoulli(key, 0.3, (40,)), lambda r: r.bernoulli(r.PRNGKey(k), 0.3, (40,)))
    p = np.array([0.1, 0.5, 0.9], "float32")
    same(R.bernoulli(key, xp.asarray(p, device=device), (7, 3)), lambda r: r.bernoulli(r.PRNGKey(k), p, (7, 3)))
    with pytest.raises(ValueError, match=r"bernoulli: an argument of shape \(3,\) does not broadcast"):
        R.bernoulli(key, xp.asarray(p, device=device), (2,))


def test_orders(device: str) -> None:
    key = R.key(5, device)
    for n in some(device, [3000, 0, 1, 10]):
        same(R.permutation(key, n), lambda r, n=n: r.permutation(r.PRNGKey(5), n))
    x = np.arange(24.0).reshape(4, 6)
    y = xp.asarray(x, device=device)
    same(R.permutation(key, y, axis=1), lambda r: r.permutation(r.PRNGKey(5), x, axis=1))
    same(R.permutation(key, y, independent=True), lambda r: r.permutation(r.PRNGKey(5), x, independent=True))


def test_uniform(device: str) -> None:
    key = R.key(1, device)
    for dtype in some(device, ["bfloat16", "float16", "float64", "float32"]):
        d = getattr(xp, dtype)
        same(R.uniform(key, (5, 4), d), lambda r, d=d: r.uniform(r.PRNGKey(1), (5, 4), d))
    for dtype in ("float64", "float32"):
        found = np.asarray(R.uniform(key, (200,), dtype, -3.0, 0.7))
        expected = theirs(lambda r, d=dtype: r.uniform(r.PRNGKey(1), (200,), d, -3.0, 0.7))
        np.testing.assert_allclose(
            found, expected, rtol=0, atol=3 * np.finfo(dtype).eps
        )  # XLA adds the bound unrounded
    assert R.uniform(key).dtype == xp.float64 and R.uniform(key).shape == ()


def test_through_special_functions(device: str) -> None:
    key = R.key(1, device)
    names = {"normal": (), "exponential": (), "gumbel": (), "truncated_normal": (-1.0, 2.0)}
    for dtype, tolerance in some(device, [("float64", 1e-12), ("float32", 1e-5)]):
        for name, bounds in names.items():
            found = np.asarray(getattr(R, name)(key, *bounds, (100, 3), dtype))
            expected = theirs(lambda r, n=name, b=bounds, d=dtype: getattr(r, n)(r.PRNGKey(1), *b, (100, 3), d))
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance / 10)
    found = np.asarray(R.normal(key, (5000,), "float32"))
    expected = theirs(lambda r: r.normal(r.PRNGKey(1), (5000,), "float32"))
    np.testing.assert_array_almost_equal_nulp(found, expected, nulp=4)
    found = np.asarray(R.normal(key, (20,), "complex64"))
    np.testing.assert_allclose(found, theirs(lambda r: r.normal(r.PRNGKey(1), (20,), "complex64")), rtol=1e-5)


def test_categorical(device: str) -> None:
    key = R.key(1, device)
    logits = np.linspace(-1, 2, 12).reshape(3, 4)
    ours = xp.asarray(logits, device=device)
    same(R.categorical(key, ours), lambda r: r.categorical(r.PRNGKey(1), logits))
    same(R.categorical(key, ours, axis=0, shape=(5, 4)), lambda r: r.categorical(r.PRNGKey(1), logits, 0, (5, 4)))
    with pytest.raises(ValueError, match=r"a shape that ends in \(3,\)"):
        R.categorical(key, ours, shape=(4,))


def test_inside_compiled_functions(device: str) -> None:
    """Seeds and keys that are arguments; the program is traced once."""

    @tg.jit
    def draw(seed: tg.array_api.Array) -> tuple[tg.array_api.Array, ...]:
        key, other = xp.unstack(R.split(R.key(seed)))
        return R.normal(key, (3,)), R.randint(other, (4,), 0, 9), R.rademacher(R.fold_in(key, seed), (6,))

    for seed in (3, 4):
        found = draw(xp.asarray(seed, device=device))

        def expected(r: Any, seed: int = seed) -> Any:
            key, other = r.split(r.PRNGKey(seed))
            return r.normal(key, (3,)), r.randint(other, (4,), 0, 9), r.rademacher(r.fold_in(key, seed), (6,))

        with jax.enable_x64(True):
            for ours, its in zip(found, expected(jax.random), strict=True):
                np.testing.assert_allclose(np.asarray(ours), np.asarray(its), rtol=1e-14)


def test_ints_among_the_arguments_are_inputs(device: str) -> None:
    @tg.jit
    def draw(x: tg.array_api.Array, seed: int, step: int, high: int) -> tuple[tg.array_api.Array, ...]:
        key = R.fold_in(R.key(seed, x.device), step)
        return R.randint(key, (4,), 0, high), R.uniform(key, (3,), maxval=high) * x

    x = xp.asarray(1.0, device=device)
    for seed, step, high in ((1, 2, 30), (4, 5, 60)):
        drawn, scaled = draw(x, seed, step, high)
        key = R.fold_in(R.key(seed, device), step)
        np.testing.assert_array_equal(np.asarray(drawn), np.asarray(R.randint(key, (4,), 0, high)))
        np.testing.assert_allclose(np.asarray(scaled), high * np.asarray(R.uniform(key, (3,))), rtol=1e-14)
    assert device == "numpy" or draw.report.traces == 1  # type: ignore[attr-defined]


def test_gradients_through_samples(device: str) -> None:
    key = R.key(0, device)

    def loss(scale: tg.array_api.Array) -> tg.array_api.Array:
        return xp.sum(R.normal(key, (8,)) * scale)

    found = tg.grad(loss)(xp.asarray(2.0, device=device))
    np.testing.assert_allclose(np.asarray(found), np.sum(np.asarray(R.normal(key, (8,)))), rtol=1e-12)
