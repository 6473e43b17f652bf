"""What the standard leaves open: one rule on every backend, where NumPy, JAX and PyTorch agree theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry

N = np.array([[1, 2], [3, 5]])
SMALL = N.astype(np.int8)
M = np.array([[True, False], [True, True]])

# (ours, NumPy's, operands): integers and booleans in functions of floating-point numbers are of the default dtype
IN_FLOATS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (xp.divide, np.divide),
    (xp.sin, np.sin),
    (xp.sqrt, np.sqrt),
    (xp.exp, np.exp),
    (xp.atan2, np.arctan2),
    (xp.logaddexp, np.logaddexp),
    (xp.mean, np.mean),
    (xp.std, np.std),
    (xp.var, np.var),
    (xp.linalg.inv, np.linalg.inv),
    (xp.linalg.det, np.linalg.det),
    (xp.linalg.solve, np.linalg.solve),
    (xp.linalg.vector_norm, np.linalg.norm),
    (xp.linalg.svdvals, lambda x: np.linalg.svd(x, compute_uv=False)),
    (xp.fft.fft, np.fft.fft),
    (xp.fft.rfft, np.fft.rfft),
]


def same(found: xp.Array, expected: Any) -> None:
    assert (found.dtype, found.shape) == (np.asarray(expected).dtype, np.shape(expected))
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(("ours", "theirs"), IN_FLOATS)
def test_integers_in_functions_of_floats(device: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    operands = 2 if ours in (xp.divide, xp.atan2, xp.logaddexp, xp.linalg.solve) else 1
    same(ours(*[xp.asarray(N)] * operands), theirs(*[N.astype(np.float64)] * operands))
    if device in ("numpy", "torch"):
        same(ours(*[xp.asarray(SMALL)] * operands), theirs(*[N.astype(np.float64)] * operands))


def test_divisions(device: str) -> None:
    x = xp.asarray(N)
    same(x / 2, N / 2)
    same(x / 2.5, N / 2.5)
    same(1 / x, 1 / N)
    same(xp.asarray(M) / x, M / N)
    with pytest.raises(TypeError, match="__itruediv__"):
        x /= 2
    with pytest.raises(TypeError, match="no common dtype"):  # promotion is the standard's
        x / xp.ones(2, dtype=xp.float32)


def test_booleans_are_counted(device: str) -> None:
    x = xp.asarray(M)
    for ours, theirs in (
        (xp.sum, np.sum),
        (xp.prod, np.prod),
        (xp.mean, np.mean),
        (xp.max, np.max),
        (xp.min, np.min),
        (xp.argmax, np.argmax),
        (xp.linalg.trace, np.trace),
        (xp.isnan, np.isnan),
    ):
        same(ours(x), theirs(M))
    same(xp.sum(x, axis=0, keepdims=True), np.sum(M, axis=0, keepdims=True))
    same(xp.sum(x, dtype=xp.float32), np.sum(M, dtype=np.float32))
    same(xp.cumulative_sum(x, axis=1), np.cumsum(M, axis=1))
    same(xp.cumulative_prod(x, axis=1), np.cumprod(M, axis=1))
    same(xp.sort(x), np.sort(M))
    same(xp.argsort(x, stable=True), np.argsort(M, stable=True))
    same(xp.sum(x[:0]), 0)


def test_numbers_as_truths(device: str) -> None:
    x = xp.asarray([0, 2, -1])
    assert xp.logical_not(x).tolist() == [True, False, False]
    assert xp.logical_and(x, xp.asarray([1.0, 0.5, 0.0])).tolist() == [False, True, False]
    assert xp.logical_or(x, 0).tolist() == [False, True, True]


def test_negative_powers_of_integers(device: str) -> None:
    x = xp.asarray([1, 2])
    for call in (
        lambda: x**-1,
        lambda: x ** np.int64(-1),
        lambda: xp.pow(x, xp.asarray([0, -1])),
        lambda: 2 ** xp.asarray([1, -1]),
        lambda: x.__ipow__(-2),
    ):
        with pytest.raises(ValueError, match=r"pow\(.*\): integers have no negative integer powers"):
            call()
    assert x.tolist() == [1, 2] and (x**2).tolist() == [1, 4] and (x**0).tolist() == [1, 1]
    assert (xp.asarray([2.0]) ** -1).tolist() == [0.5] and (x[:0] ** xp.asarray([], dtype=xp.int64)).shape == (0,)
    if registry.get(device).compiles:  # a compiled function knows no values: the truncated reciprocal
        out = tg.jit(lambda x, y: x**y)(xp.asarray([1, -1, -1, 2, 3]), xp.asarray([-1, -2, -3, -1, 2]))
        assert out.tolist() == [1, 1, -1, 0, 9]


EMPTY = [(0,), (0, 3), (3, 0), (2, 0, 3)]


@pytest.mark.parametrize("shape", EMPTY)
@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_no_elements(device: str, shape: tuple[int, ...], dtype: str) -> None:
    x, a = xp.zeros(shape, dtype=getattr(xp, dtype)), np.zeros(shape, dtype)
    assert all(part.shape == (0,) for part in (xp.unique_values(x), *xp.unique_counts(x)))
    values, first, inverse, counts = xp.unique_all(x)
    assert (values.dtype, values.shape, first.shape, inverse.shape, counts.shape) == (a.dtype, (0,), (0,), shape, (0,))
    assert xp.unique_inverse(x)[1].shape == shape
    same(xp.sort(x), a)
    same(xp.argsort(x, axis=0, descending=True), np.argsort(a, axis=0))
    same(xp.sum(x), np.sum(a))
    same(xp.cumulative_sum(x, axis=0, include_initial=True), np.cumulative_sum(a, axis=0, include_initial=True))
    same(xp.isin(x, x), a.astype(bool))
    same(
        xp.concat([x, xp.ones((2, *shape[1:]), dtype=x.dtype)]), np.concatenate([a, np.ones((2, *shape[1:]), a.dtype)])
    )
    assert [part.shape for part in xp.nonzero(x)] == [(0,)] * len(shape)
    with pytest.raises(ValueError, match="at least one element"):
        xp.max(x)
    if dtype == "float64":
        same(xp.linalg.vector_norm(x, ord=float("inf")), 0.0)
        same(xp.searchsorted(xp.reshape(x, (-1,)), xp.ones(2)), np.zeros(2, np.int64))
        if len(shape) > 1:
            for order in (1, 2, float("inf"), "nuc", "fro"):
                same(xp.linalg.matrix_norm(x, ord=order), np.linalg.matrix_norm(a, ord=order))


def test_help() -> None:
    for name in ("sum", "sin", "add", "linalg.inv", "fft.rfft", "zeros", "unique_all"):
        at: Any = xp
        for part in name.split("."):
            at = getattr(at, part)
        for said in ("Arguments:", "Returns ", "Raises ", "Source: https://data-apis.org/array-api/2025.12/API_spec"):
            assert said in at.__doc__, (name, said)
        assert f"array_api.{name}.html" in at.__doc__
    assert "keepdims: " in xp.sum.__doc__ and "default dtype" in xp.sin.__doc__


def test_every_function_says_what_it_is() -> None:
    import inspect

    for namespace in (xp, xp.linalg, xp.fft):
        for name in namespace.__all__:
            fn = getattr(namespace, name)
            if not inspect.isfunction(fn) or name.startswith("_"):
                continue
            text = fn.__doc__ or ""
            assert not text.startswith("\n") and "Returns " in text, name
            for parameter in inspect.signature(fn).parameters:
                assert f"    {parameter}: " in text, (name, parameter)


def test_loops_and_branches_beside_grad() -> None:
    x = xp.asarray([8.0, 3.0], device="numpy")
    assert tg.while_loop(lambda x: xp.max(x) > 1, lambda x: x / 2, x).tolist() == [1.0, 0.375]
    assert tg.fori_loop(0, 3, lambda i, x: x + 1.0, x).tolist() == [11.0, 6.0]
    assert tg.scan(lambda c, x: (c + x, c), xp.zeros((), device="numpy"), x)[0].tolist() == 11.0
    assert tg.cond(xp.any(x > 5), lambda x: -x, lambda x: x, x).tolist() == [-8.0, -3.0]
    assert {"cond", "custom_vjp", "error_if", "fori_loop", "scan", "while_loop"} <= set(dir(tg))
