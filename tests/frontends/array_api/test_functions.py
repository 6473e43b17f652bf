"""The functions of the namespace, against NumPy's on every backend: one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorgraft.array_api as xp

pytestmark = pytest.mark.sampled

rng = np.random.default_rng(0)
X = rng.normal(size=(3, 4))
Y = rng.normal(size=(3, 4))
Z = X + 1j * Y
V = rng.normal(size=4)
S = rng.normal(size=(2, 3, 3)) + 4 * np.eye(3)
H = S @ S.swapaxes(-1, -2)
N = rng.integers(-3, 4, (3, 4))
U = N.astype(np.uint8)
M = X > 0

# (ours, NumPy's, operands)
CASES: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
    (xp.atan2, np.arctan2, (X, Y)),
    (xp.expm1, np.expm1, (Z,)),
    (xp.log1p, lambda z: np.log(1 + z), (Z,)),
    (xp.round, np.round, (2.5 * Z,)),
    (xp.abs, np.abs, (U,)),
    (xp.pow, np.power, (abs(X), Y)),
    (xp.real, np.real, (X,)),
    (xp.isnan, np.isnan, (N,)),
    (lambda x: xp.clip(x, -1, 0.5), lambda x: np.clip(x, -1, 0.5), (X,)),
    (lambda x, y: xp.clip(x, max=y), lambda x, y: np.clip(x, None, y), (V, X)),
    (lambda m, x: xp.where(m, x, 0.0), lambda m, x: np.where(m, x, 0.0), (M, X)),
    (lambda x: xp.sum(x, axis=(0, 1)), lambda x: np.sum(x), (N.astype(np.int8),)),
    (lambda x: xp.sum(x, dtype=xp.float32), lambda x: np.sum(x, dtype=np.float32), (N,)),
    (lambda x: xp.prod(x, axis=-1, keepdims=True), lambda x: np.prod(x, axis=-1, keepdims=True), (U,)),
    (lambda x: xp.mean(x, axis=0), lambda x: np.mean(x, axis=0), (Z,)),
    (lambda x: xp.std(x, correction=1), lambda x: np.std(x, ddof=1), (X,)),
    (lambda x: xp.max(x, axis=1), lambda x: np.max(x, axis=1), (X,)),
    (lambda x: xp.cumulative_sum(x, axis=1), lambda x: np.cumsum(x, axis=1), (N,)),
    (
        lambda x: xp.cumulative_prod(x, axis=0, include_initial=True),
        lambda x: np.cumprod(np.concatenate([np.ones((1, 4)), x]), axis=0),
        (X,),
    ),
    (lambda x: xp.argmax(x), lambda x: np.argmax(x), (X,)),
    (lambda x: xp.argmin(x, axis=1, keepdims=True), lambda x: np.argmin(x, axis=1, keepdims=True), (X,)),
    (lambda x: xp.count_nonzero(x, axis=0), lambda x: np.count_nonzero(x, axis=0), (N,)),
    (xp.nonzero, np.nonzero, (N,)),
    (lambda x, v: xp.searchsorted(x, v, side="right"), lambda x, v: np.searchsorted(x, v, "right"), (np.sort(V), X)),
    (lambda x: xp.searchsorted(x, 0.1), lambda x: np.searchsorted(x, 0.1), (np.sort(V),)),
    (xp.unique_all, np.unique_all, (N,)),
    (xp.unique_values, np.unique, (np.asarray([1 + 2j, 1 - 1j, 0, 1 + 2j]),)),
    (xp.unique_counts, np.unique_counts, (M,)),
    (xp.isin, np.isin, (N, np.asarray([1, 2]))),
    (lambda x: xp.isin(x, 3, invert=True), lambda x: np.isin(x, 3, invert=True), (N,)),
    (lambda x: xp.sort(x, axis=0, descending=True), lambda x: -np.sort(-x, axis=0), (X,)),
    (lambda x: xp.argsort(x, descending=True), lambda x: np.argsort(-x, kind="stable"), (N,)),
    (lambda x: xp.all(x, axis=0), lambda x: np.all(x, axis=0), (N,)),
    (lambda x: xp.any(x, axis=(0, 1)), lambda x: np.any(x), (M,)),
    (lambda x, y: xp.diff(x, n=2, prepend=y), lambda x, y: np.diff(x, n=2, prepend=y), (X, Y)),
    (lambda x: xp.roll(x, (1, -2), axis=(0, 1)), lambda x: np.roll(x, (1, -2), (0, 1)), (X,)),
    (lambda x: xp.roll(x, 5), lambda x: np.roll(x, 5), (X,)),
    (lambda x: xp.repeat(x, 2, axis=1), lambda x: np.repeat(x, 2, axis=1), (X,)),
    (lambda x, n: xp.repeat(x, n, axis=0), lambda x, n: np.repeat(x, n, axis=0), (X, np.asarray([2, 0, 1]))),
    (lambda x: xp.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3)), (X,)),
    (lambda x, n: xp.concat([x, n], axis=None), lambda x, n: np.concatenate([x, n], axis=None), (X, V)),
    (lambda x, y: xp.stack([x, y], axis=-1), lambda x, y: np.stack([x, y], axis=-1), (X, Y)),
    (lambda x: xp.tril(x, k=1), lambda x: np.tril(x, 1), (X,)),
    (lambda x: xp.triu(x, k=-1), lambda x: np.triu(x, -1), (X,)),
    (lambda x, y: xp.meshgrid(x, y), lambda x, y: np.meshgrid(x, y), (V, V[:2])),
    (xp.matmul, np.matmul, (N, N.T)),
    (xp.matmul, np.matmul, (V, X.T)),
    (lambda x, y: xp.tensordot(x, y, axes=((0,), (0,))), lambda x, y: np.tensordot(x, y, ((0,), (0,))), (X, Z)),
    (lambda x, y: xp.vecdot(x, y, axis=-2), lambda x, y: np.sum(x.conj() * y, axis=0), (Z, X)),
    (lambda x: xp.linalg.cholesky(x, upper=True), lambda x: np.linalg.cholesky(x).swapaxes(-1, -2), (H,)),
    (lambda x: xp.linalg.cross(x, x[::-1, ...]), lambda x: np.cross(x, x[::-1]), (S[0],)),
    (xp.linalg.det, np.linalg.det, (S,)),
    (lambda x: xp.linalg.diagonal(x, offset=-1), lambda x: np.diagonal(x, -1), (X,)),
    (xp.linalg.eigvalsh, np.linalg.eigvalsh, (H,)),
    (xp.linalg.inv, np.linalg.inv, (S,)),
    (lambda x: xp.linalg.matrix_norm(x, ord="nuc"), lambda x: np.linalg.matrix_norm(x, ord="nuc"), (S,)),
    (lambda x: xp.linalg.matrix_norm(x, ord=-1), lambda x: np.linalg.matrix_norm(x, ord=-1), (S,)),
    (lambda x: xp.linalg.matrix_power(x, -3), lambda x: np.linalg.matrix_power(x, -3), (S,)),
    (xp.linalg.matrix_rank, np.linalg.matrix_rank, (np.outer(V, V),)),
    (xp.linalg.outer, np.outer, (V, Z[0])),
    (xp.linalg.pinv, np.linalg.pinv, (Z,)),
    (xp.linalg.slogdet, np.linalg.slogdet, (S,)),
    (xp.linalg.solve, np.linalg.solve, (S, X[:, :2])),
    (xp.linalg.svdvals, np.linalg.svdvals, (Z,)),
    (lambda x: xp.linalg.trace(x, offset=1), lambda x: np.trace(x, 1), (X,)),
    (lambda x: xp.linalg.vector_norm(x, axis=0, ord=3), lambda x: np.linalg.vector_norm(x, axis=0, ord=3), (Z,)),
    (lambda x: xp.fft.fft(x, n=5, norm="ortho"), lambda x: np.fft.fft(x, 5, norm="ortho"), (X,)),
    (lambda x: xp.fft.ifftn(x, axes=(0,)), lambda x: np.fft.ifftn(x, axes=(0,)), (Z,)),
    (lambda x: xp.fft.rfftn(x, s=(2, 6), axes=(0, 1)), lambda x: np.fft.rfftn(x, (2, 6), (0, 1)), (X,)),
    (lambda x: xp.fft.irfftn(x), lambda x: np.fft.irfftn(x), (Z,)),
    (lambda x: xp.fft.hfft(x, norm="forward"), lambda x: np.fft.hfft(x, norm="forward"), (Z,)),
    (lambda x: xp.fft.ihfft(x, n=3), lambda x: np.fft.ihfft(x, 3), (X,)),
    (xp.fft.fftshift, np.fft.fftshift, (X,)),
    (lambda x: xp.fft.ifftshift(x, axes=1), lambda x: np.fft.ifftshift(x, 1), (X,)),
]
MADE: list[tuple[Callable[[], Any], Any]] = [
    (lambda: xp.arange(2, 9, 3), np.arange(2, 9, 3)),
    (lambda: xp.arange(5, 0, -2, dtype=xp.float32), np.arange(5, 0, -2, dtype=np.float32)),
    (lambda: xp.arange(0, 1, 0.3), np.arange(0, 1, 0.3)),
    (lambda: xp.arange(3.0), np.arange(3.0)),
    (lambda: xp.linspace(0, 1, 4), np.linspace(0, 1, 4)),
    (lambda: xp.linspace(0, 1j, 4, endpoint=False), np.linspace(0, 1j, 4, endpoint=False)),
    (lambda: xp.eye(2, 3, k=1, dtype=xp.int8), np.eye(2, 3, 1, np.int8)),
    (lambda: xp.full((2, 2), True), np.full((2, 2), True)),
    (lambda: xp.full_like(xp.ones(2, dtype=xp.float32), 3), np.full(2, 3, np.float32)),
    (lambda: xp.fft.fftfreq(5, d=0.5), np.fft.fftfreq(5, 0.5)),
    (lambda: xp.fft.rfftfreq(6), np.fft.rfftfreq(6)),
]


def same(x: Any, expected: Any) -> None:
    if isinstance(expected, tuple | list):
        assert isinstance(x, tuple)
        for a, b in zip(x, expected, strict=True):
            same(a, b)
        return
    assert isinstance(x, xp.Array)
    expected = np.asarray(expected)
    assert (x.shape, x.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(np.asarray(x), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", range(len(CASES)))
def test_function(device: str, case: int) -> None:
    ours, numpys, operands = CASES[case]
    arrays = [xp.asarray(v, copy=True) for v in operands]
    same(ours(*arrays), numpys(*operands))
    for x, v in zip(arrays, operands, strict=True):
        np.testing.assert_array_equal(np.asarray(x), v)  # as it was


@pytest.mark.parametrize("case", range(len(MADE)))
def test_creation(device: str, case: int) -> None:
    ours, expected = MADE[case]
    x = ours()
    assert x.device == device
    same(x, expected)


def test_factorisations(device: str) -> None:
    x = xp.asarray(Z)
    q, r = xp.linalg.qr(x)
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    for product in (q @ r, (u * xp.astype(s, u.dtype)) @ vh):
        np.testing.assert_allclose(np.asarray(product), Z, atol=1e-12)
    square = xp.asarray(S)
    values, vectors = xp.linalg.eig(square)
    np.testing.assert_allclose(
        np.asarray(xp.astype(square, xp.complex128) @ vectors), np.asarray(vectors * values[:, None, :]), atol=1e-10
    )
    assert xp.linalg.eigh(square).eigenvalues.dtype == xp.float64


def test_broadcast_shapes() -> None:
    assert xp.broadcast_shapes((3, 1), (4,), (1, 1)) == (3, 4)
    assert xp.broadcast_shapes((None, 1), (1, 4)) == (None, 4)
    assert xp.broadcast_shapes() == ()
    with pytest.raises(ValueError, match="do not broadcast"):
        xp.broadcast_shapes((3,), (4,))


def test_narrow_floats(device: str) -> None:
    for dtype in (xp.float16, xp.bfloat16):
        x = xp.asarray([1.0, 2.0, 3.0], dtype=dtype)
        assert (x + 1).dtype == xp.exp(x).dtype == xp.sum(x).dtype == (x @ x).dtype == dtype
        assert float(x @ x) == 14 and xp.finfo(dtype).bits == 16
        assert xp.fft.fft(x).dtype == xp.complex64
