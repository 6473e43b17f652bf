"""Packed factorisations, tridiagonal systems and left eigenvectors: LAPACK's numbers, by composite and by override."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from scipy.linalg import lapack
from tests.hub.checks import ABSTRACT, BACKENDS, backend, shapes, to_backend, to_host

from tensorgraft.hub import dtypes
from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.backend import Backend

RNG = np.random.default_rng(3)
SHAPES = ((5, 3), (3, 5), (4, 4), (4, 1), (1, 1))


def _matrices(m: int, n: int, dtype: np.dtype) -> np.ndarray:
    x = RNG.standard_normal((2, m, n))
    return (x + 1j * RNG.standard_normal(x.shape) if dtypes.is_complex(dtype) else x).astype(dtype)


def _found(name: str, key: str, own: bool, *operands: Any) -> list[np.ndarray]:
    """By the backend's own method, or by the composite; shapes and dtypes as the abstract backend says."""
    xp = backend(name)
    method = getattr(xp, key) if own else lambda *given: getattr(Backend, key)(xp, *given)
    with xp.scope():
        made = _listed(to_host(xp, method(*to_backend(xp, operands))))
    if key == "schur":  # not every backend has it
        return made
    told = [ShapeDtype(x.shape, x.dtype) if isinstance(x, np.ndarray) else x for x in operands]
    assert [shapes(x) for x in made] == _listed(getattr(ABSTRACT, key)(*told))
    return made


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple) else [made]


def _each(fn: Callable[..., tuple[Any, ...]], x: np.ndarray, **options: Any) -> list[np.ndarray]:
    return [np.stack(part) for part in zip(*(fn(a, **options)[:-1] for a in x), strict=True)]


def _check(found: list[np.ndarray], wanted: list[Any], dtype: np.dtype) -> None:
    within = 2e-5 if dtypes.finfo(dtype).bits == 32 else 1e-12
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=within, atol=within)


COMPUTED = [("numpy", False), *((name, True) for name in BACKENDS)]
BY_DTYPE = [("numpy", False, dtypes.float64), *((*row, dtypes.complex64) for row in COMPUTED)]


@pytest.mark.parametrize(("name", "own", "dtype"), BY_DTYPE)
def test_householder_qr(name: str, own: bool, dtype: np.dtype) -> None:
    geqrf, geqp3 = lapack.get_lapack_funcs(("geqrf", "geqp3"), dtype=dtype)
    for m, n in SHAPES if name == "numpy" else SHAPES[:1]:
        x = _matrices(m, n, dtype)
        packed, factors, _ = _each(geqrf, x)
        _check(_found(name, "householder_qr", own, x), [packed, factors], dtype)
        packed, order, factors, _ = _each(geqp3, x)
        _check(_found(name, "pivoted_householder_qr", own, x), [packed, order - 1, factors], dtype)


@pytest.mark.parametrize(("name", "own", "dtype"), [row for row in BY_DTYPE if row[0] != "tensorflow"])
def test_hessenberg_and_tridiagonal(name: str, own: bool, dtype: np.dtype) -> None:
    symmetric = "hetrd" if dtypes.is_complex(dtype) else "sytrd"
    gehrd, trd = lapack.get_lapack_funcs(("gehrd", symmetric), dtype=dtype)
    x = _matrices(4, 4, dtype)
    _check(_found(name, "hessenberg", own, x), _each(gehrd, x), dtype)
    for lower in (True, False):
        _check(_found(name, "tridiagonal", own, x, lower), _each(trd, x, lower=lower), dtype)


@pytest.mark.parametrize("name", BACKENDS)
def test_tridiagonal_solve_exchanges_rows(name: str) -> None:
    for n in (1, 2, 5) if name == "numpy" else (4,):
        below, main, above = RNG.standard_normal((3, 2, n))
        main[0, 0] = 0 if n > 1 else 1
        b = RNG.standard_normal((2, n, 3))
        whole = [
            np.diag(d) + np.diag(low[1:], -1) + np.diag(up[:-1], 1)
            for low, d, up in zip(below, main, above, strict=True)
        ]
        _check(
            _found(name, "tridiagonal_solve", True, below, main, above, b),
            [np.linalg.solve(whole, b)],
            dtypes.float64,
        )


@pytest.mark.parametrize(("name", "own"), COMPUTED)
def test_left_eigenvectors(name: str, own: bool) -> None:
    x = _matrices(4, 4, dtypes.float64)
    values, left, right = _found(name, "eig_both", own, x)
    adjoint = left.conj().swapaxes(-1, -2)
    np.testing.assert_allclose(adjoint @ x, values[..., None] * adjoint, atol=1e-12)
    np.testing.assert_allclose(x @ right, values[:, None] * right, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(left, axis=-2), 1)


@pytest.mark.parametrize("name", ["numpy", "jax"])
def test_schur(name: str) -> None:
    x = _matrices(4, 4, dtypes.float64)
    form, vectors = _found(name, "schur", True, x)
    _check([form, vectors], _each(lambda a: (*scipy.linalg.schur(a), None), x), dtypes.float64)


def test_backend_without_schur_says_so() -> None:
    with pytest.raises(NotImplementedError, match="the backend torch has no Schur decomposition: use eig"):
        backend("torch").schur(backend("torch").asarray(np.eye(2)))
