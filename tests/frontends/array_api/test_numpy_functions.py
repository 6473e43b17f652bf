"""NumPy's functions, scalars and arrays beside an `Array`: what NumPy gives, on the device of the array."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import tensorgraft.array_api as xp
from tensorgraft.errors import FallbackError, FallbackWarning, TracedValueError

rng = np.random.default_rng(0)
X = rng.normal(size=(3, 4))
GAPS = X.copy()
GAPS[0, 1] = GAPS[2] = np.nan
WHOLE = rng.integers(-3, 4, (3, 4))
TRUTHS = X > 0
SQUARE = X @ X.T + np.eye(3)

# expression of `a` and np, evaluated on NumPy's array and on ours
CASES: list[tuple[str, np.ndarray]] = [
    *((text, X) for text in (
        "np.sin(a)", "np.mean(a)", "np.mean(a, 0)", "np.sum(a, axis=1, keepdims=True)", "np.std(a, ddof=1)",
        "np.amax(a, 1)", "np.clip(a, -0.5, 0.5)", "np.clip(a, a_min=None, a_max=0.5)", "np.where(a > 0, a, 0.0)",
        "np.where(a > 0)", "np.round(a, 2)", "np.cumsum(a)", "np.cumprod(a, axis=0)", "np.concatenate([a, a], axis=1)",
        "np.transpose(a)", "np.swapaxes(a, 0, 1)", "np.ravel(a)", "np.reshape(a, (4, 3))", "np.squeeze(a[:1])",
        "np.vstack([a, a])", "np.hstack([a, a])", "np.column_stack([a, a])", "np.stack([a, a], axis=1)",
        "np.take(a, [[0, 2], [1, 3]], axis=1)", "np.isclose(a, a + 1e-9)", "np.allclose(a, a + 1)", "np.shape(a)",
        "np.size(a, 1)", "np.full_like(a, 3.0)", "np.zeros(3, like=a)", "np.asarray([1.0, 2.0], like=a)",
        "np.linalg.norm(a, axis=1)", "np.linalg.norm(a, 1, axis=(0, 1))", "np.fft.rfft(a, n=3, axis=0)",
        "np.dot(a, a.T)", "np.dot(a[0], a[1])", "np.inner(a, a)", "np.outer(a[0], a[1])", "np.diagonal(a, 1)",
        "np.trace(a)", "np.sort(a, axis=0)", "np.searchsorted(np.sort(a[0]), a[1])", "np.diff(a, n=2)",
        "np.tile(a, 2)", "np.meshgrid(a[0], a[1])", "np.broadcast_arrays(a, a[:1])", "np.deg2rad(a)",
        "np.divmod(a, 2.0)",
        "np.ptp(a, axis=0)", "np.median(a, axis=0)", "np.average(a, axis=1, weights=np.arange(4.0))",
        "np.add.reduce(a)", "np.maximum.reduce(a, axis=None)", "np.add.accumulate(a, axis=1)", "np.atleast_2d(a[0])",
        "np.float32(2) * a", "a * np.float32(2)", "np.float32(0) < a", "np.float64(1) == a", "np.float64(2) ** a",
        "divmod(np.float64(3), a)", "a / np.int64(3)", "np.array(2.0) * a", "np.ones((3, 4)) + a", "a - np.ones(4)",
        "np.zeros((3, 4)) < a", "np.concatenate([a, np.ones((3, 4))])", "np.hypot(a, np.ones((3, 4)))",
    )),
    *((text, GAPS) for text in (
        "np.nansum(a, axis=0)", "np.nanmean(a, axis=1)", "np.nanstd(a, axis=1, ddof=1)", "np.nanvar(a, axis=0)",
        "np.nanmax(a, axis=1)", "np.nanmin(a)", "np.nanmedian(a, axis=1)", "np.nanmedian(a, axis=(0, 1))",
        "np.median(a)", "np.nancumsum(a, axis=1)", "np.nanprod(a, axis=0)", "np.nanargmax(a, axis=0)",
        "np.isclose(a, a, equal_nan=True)", "np.unique(a)", "np.unique(a, return_counts=True, return_inverse=True)",
    )),
    *((text, WHOLE) for text in (
        "np.unique(a, return_counts=True)", "np.isclose(a, a)", "np.isin(a, a[:1])", "np.logical_and(a, a)",
        "np.nanmean(a)", "np.nanmax(a)", "np.median(a)", "np.int64(2) ** np.abs(a)", "np.true_divide(a, 2)",
    )),
    *((text, TRUTHS) for text in ("np.sum(a)", "np.mean(a)", "np.bool_(True) & a", "np.cumsum(a)", "np.argmax(a)")),
    *((text, SQUARE) for text in ("np.linalg.inv(a)", "np.linalg.solve(a, a)", "np.linalg.eigvalsh(a)")),
]  # fmt: skip


def same(ours: Any, expected: Any, device: str) -> None:
    if isinstance(expected, tuple | list):
        assert len(ours) == len(expected)
        for a, b in zip(ours, expected, strict=True):
            same(a, b, device)
    elif isinstance(expected, np.ndarray | np.generic):
        assert isinstance(ours, xp.Array) and ours.device == device
        assert (ours.shape, ours.dtype) == (np.shape(expected), expected.dtype)
        np.testing.assert_allclose(np.asarray(ours), expected, rtol=1e-9, atol=1e-12)
    else:
        assert ours == expected


@pytest.mark.parametrize("device", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize(("text", "a"), CASES, ids=[text for text, _ in CASES])
def test_as_numpy_on_the_device(device: str, text: str, a: np.ndarray) -> None:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # of NumPy, over NaN
        expected = eval(text, {"np": np, "a": a})
    same(eval(text, {"np": np, "a": xp.asarray(a, copy=True)}), expected, device)


def test_few_on_every_device(device: str) -> None:
    x = xp.asarray(X)
    for text in ("np.mean(a)", "np.sin(a)", "np.float32(2) * a", "np.ones(4) + a", "np.nanmean(a, axis=0)"):
        same(eval(text, {"np": np, "a": x}), eval(text, {"np": np, "a": X}), device)


def test_what_the_standard_lacks_is_counted(device: str) -> None:
    x = xp.asarray(X)
    before = xp.fallbacks().get("percentile", 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        same(np.percentile(x, 50), np.percentile(X, 50), device)
        same(np.mean(x, where=TRUTHS), np.mean(X, where=TRUTHS), device)  # nor is this argument there
        same(np.add.outer(x[0], x[1]), np.add.outer(X[0], X[1]), device)
        mine = np.zeros((3, 4))
        alias = mine
        mine += x  # memory of NumPy
        assert alias is mine and (mine == X).all()
    assert xp.fallbacks()["percentile"] == before + 1 and {"mean", "add.outer", "add"} <= xp.fallbacks().keys()


def test_what_the_standard_lacks_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x = xp.asarray(X, device="numpy")
    with pytest.warns(FallbackWarning, match=r"np.cbrt is not of the Array API standard.*is computed on the host"):
        np.cbrt(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.cbrt(x)
    monkeypatch.setenv("TENSORGRAFT_FALLBACK", "error")
    with pytest.raises(FallbackError, match=r"np\.cbrt"):
        np.cbrt(x)


def test_no_array_of_ours_is_written_by_numpy(device: str) -> None:
    x = xp.ones(2)
    with pytest.raises(TypeError, match=r"np.add cannot write to an Array given as out="):
        np.add(x, x, out=x)
    assert x.tolist() == [1.0, 1.0]


def test_in_a_compiled_function() -> None:
    tg = pytest.importorskip("tensorgraft")
    pytest.importorskip("jax")
    x = xp.asarray(X, device="jax")
    same(tg.jit(lambda x: np.nanmean(np.float32(2) * x, axis=0))(x), np.mean(2 * X, axis=0), "jax")
    with pytest.raises(TracedValueError):
        tg.jit(lambda x: np.percentile(x, 50))(x)


def test_another_class_with_operators_of_numpy() -> None:
    class Theirs:
        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> str:
            return ufunc.__name__

    assert np.add(xp.ones(2, device="numpy"), Theirs()) == "add"
