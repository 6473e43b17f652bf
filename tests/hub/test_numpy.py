"""What only the NumPy backend promises: exactness and care that the tables of operations are too small to see."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest

from tensorgraft.backends.numpy import NumpyBackend, special
from tensorgraft.errors import BackendNotAvailableError
from tensorgraft.hub import dtypes

xp = NumpyBackend()


@pytest.mark.parametrize("axis", [0, (0, 1), None])
def test_long_sums_in_single_precision_are_accurate(axis: Any) -> None:
    x = np.random.default_rng(0).random((40, 1000, 3), np.float32)
    exact = x.sum(axis, dtype=np.float64)
    for keepdims in (False, True):
        found = xp.sum(x, axis=axis, keepdims=keepdims)
        assert found.dtype == np.float32 and found.shape == x.sum(axis, keepdims=keepdims).shape
    np.testing.assert_allclose(xp.sum(x, axis=axis), exact, rtol=1e-6)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_narrow_sums_and_products_accumulate_in_float32(dtype: np.dtype) -> None:
    ones = np.ones(3000, dtype)  # in bfloat16 itself, 256 + 1 is 256
    rounded = float(np.float32(3000).astype(dtype))
    assert float(xp.sum(ones)) == float(xp.cumsum(ones, axis=0)[-1]) == rounded
    assert float(xp.dot_general(ones, ones, ((0,), (0,)))) == rounded
    found = xp.scatter(np.zeros(1, dtype), [np.zeros(3000, np.int64)], ones, mode="add")
    assert float(found[0]) == rounded


@pytest.mark.parametrize("dtype", dtypes.INTEGER, ids=str)
def test_integer_products_wrap(dtype: np.dtype) -> None:
    """Small values by way of single and double precision, great ones in integers: all modulo 2^bits."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    for most in (3, 1000, 10**6, info.max):
        a, b = (rng.integers(max(info.min, -most), min(info.max, most), s, dtype, True) for s in ((4, 50), (50, 3)))
        exact = (a.astype(object) @ b.astype(object)) % (1 << 8 * dtype.itemsize)
        wanted = exact.astype(f"u{dtype.itemsize}").view(dtype)
        np.testing.assert_array_equal(xp.matmul(a, b), wanted)


@pytest.mark.parametrize(("value", "wanted"), [(300, 44), (-1, 255), (2**64 + 1, 1), (-(2**70), 0)])
def test_python_ints_wrap(value: int, wanted: int) -> None:
    found = xp.add(np.zeros(2, np.uint8), value)
    assert found.dtype == np.uint8 and found.tolist() == [wanted] * 2
    assert xp.full((), value, dtypes.uint8) == wanted


def test_integer_powers_of_negative_exponent_do_not_raise() -> None:
    found = xp.pow(np.array([2, 1, -1, -1]), np.array([-1, -3, -2, -3]))
    assert found.tolist() == [0, 1, 1, -1]


def test_rows_of_an_embedding_are_summed() -> None:
    rng = np.random.default_rng(0)
    rows, updates = rng.integers(0, 20, 500), rng.random((500, 8), np.float32)
    wanted = np.zeros((30, 8), np.float64)
    np.add.at(wanted, rows, updates)
    found = xp.scatter(np.zeros((30, 8), np.float32), [rows], updates, mode="add")
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_cholesky_fails_one_matrix_at_a_time() -> None:
    found = xp.cholesky(np.stack([np.eye(2), -np.eye(2), 4 * np.eye(2)]))
    np.testing.assert_array_equal(found[0], np.eye(2))
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[2], 2 * np.eye(2))


def test_a_singular_system_has_no_finite_solution() -> None:
    with xp.scope():
        assert not np.isfinite(xp.solve(np.ones((2, 2)), np.eye(2))).all()
        assert not np.isfinite(xp.inv(np.zeros((2, 2)))).any()


def test_own_copies_only_what_others_hold() -> None:
    fresh = xp.dot_general(np.ones((2, 3)), np.ones((3, 2)), ((1,), (0,)))
    assert xp.ensure_owned(fresh) is fresh
    x = np.zeros((2, 3))
    view = x.reshape(6)
    assert xp.ensure_owned(view) is not view  # x holds it too
    del x
    assert xp.ensure_owned(view) is view
    assert xp.ensure_owned(view[:3]) is not view and xp.ensure_owned(view[:3]).base is None
    assert xp.ensure_owned(np.broadcast_to(view, (2, 6))).flags.writeable
    assert xp.ensure_owned(np.zeros((2, 3)).T).flags.c_contiguous


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "int64", "bool"])
def test_dlpack_of_every_dtype(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12).reshape(3, 4).to(getattr(torch, dtype)).t()
    found = xp.from_dlpack(x)
    assert str(found.dtype) == dtype and found.shape == (4, 3)
    wanted = x.float().numpy()
    np.testing.assert_array_equal(found.astype(np.float32), wanted)
    assert found.ctypes.data == x.data_ptr()  # no copy
    del x
    gc.collect()
    np.testing.assert_array_equal(found.astype(np.float32), wanted)
    assert xp.from_dlpack(torch.ones((0, 2), dtype=getattr(torch, dtype))).shape == (0, 2)


def test_without_scipy_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy.special", "scipy.linalg.lapack"):
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    with pytest.raises(BackendNotAvailableError, match=r'erf .* needs SciPy.*pip install "tensorgraft\[numpy\]"'):
        special.function("erf")(np.zeros(2))  # one that has not been called yet
    with pytest.raises(BackendNotAvailableError, match=r"lu .* needs SciPy"):
        xp.lu(np.eye(2))
    np.testing.assert_array_equal(xp.exp(np.zeros(2)), 1)  # what needs no SciPy works


def test_there_is_one_device() -> None:
    for index, platform in ((1, None), (0, "gpu")):
        with pytest.raises(ValueError, match="is not a device: NumPy has one"):
            NumpyBackend(index, platform)
