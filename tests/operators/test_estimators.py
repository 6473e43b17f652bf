"""Estimators of traces and diagonals: XTrace and its family are their leave-one-out definition, on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.errors import TracedValueError
from tensorgraft.hub import registry
from tensorgraft.operators import (
    FunctionLinearOperator,
    MatrixLinearOperator,
    diagonal,
    frobenius_norm,
    logdet,
    trace,
)

pytestmark = pytest.mark.sampled

ON = pytest.mark.parametrize("backend", registry.backends())
PSD = ("positive_semidefinite",)
TRACE = ("hutchinson", "hutch++", "na_hutch++", "nystrom++", "xtrace", "xnystrace", "slq")
DIAGONAL = ("hutchinson", "xdiag", "xnysdiag")
N = 40


def with_spectrum(values: np.ndarray, is_complex: bool = False, seed: int = 0) -> np.ndarray:
    rng, n = np.random.default_rng(seed), len(values)
    g = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if is_complex else 0)
    q = np.linalg.qr(g)[0]
    a = (q * values) @ q.conj().T
    return (a + a.conj().T) / 2


def operator(matrix: np.ndarray, backend: str = "numpy", tags: tuple[str, ...] = PSD) -> MatrixLinearOperator:
    return MatrixLinearOperator(xp.asarray(matrix, device=backend, copy=True), tags)


def vectors(n: int, m: int, is_complex: bool) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.standard_normal((n, m)) + (1j * rng.standard_normal((n, m)) if is_complex else 0)


# ---- the definitions -------------------------------------------------------------------------------------------------


def projected_away(basis: np.ndarray, w: np.ndarray) -> np.ndarray:
    q = np.linalg.qr(basis)[0]
    return w - q @ (q.conj().T @ w)


def xtrace(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    """One factorisation for each column that is left out."""
    (n, m), found = w.shape, []
    for i in range(m):
        y = a @ np.delete(w, i, axis=1)
        q, v = np.linalg.qr(y)[0], projected_away(y, w[:, i])
        found.append(np.trace(q.conj().T @ a @ q) + (n - m + 1) / np.linalg.norm(v) ** 2 * (v.conj() @ a @ v))
    return np.array(found)


def xdiag(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    found = []
    for i in range(w.shape[1]):
        q = np.linalg.qr(a @ np.delete(w, i, axis=1))[0]
        rest = a - q @ (q.conj().T @ a)
        found.append(np.diag(a - rest) + w[:, i].conj() * (rest @ w[:, i]))
    return np.array(found)


def nystrom(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = a @ w
    return y @ np.linalg.pinv(w.conj().T @ y, hermitian=True, rcond=1e-14) @ y.conj().T


def xnystrace(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    (n, m), found = w.shape, []
    for i in range(m):
        others = np.delete(w, i, axis=1)
        known, v = nystrom(a, others), projected_away(others, w[:, i])
        form = w[:, i].conj() @ (a - known) @ w[:, i]
        found.append((np.trace(known) + (n - m + 1) / np.linalg.norm(v) ** 2 * form).real)
    return np.array(found)


def xnysdiag(a: np.ndarray, w: np.ndarray) -> np.ndarray:
    found = []
    for i in range(w.shape[1]):
        known = nystrom(a, np.delete(w, i, axis=1))
        found.append((np.diag(known) + w[:, i].conj() * ((a - known) @ w[:, i])).real)
    return np.array(found)


MATRICES = {
    "flat": (with_spectrum(np.linspace(1, 3, N)), PSD),
    "decaying": (with_spectrum(1.0 / np.arange(1, N + 1) ** 2), PSD),
    "indefinite": (with_spectrum(np.linspace(-1, 2, N)), ("symmetric",)),
    "not symmetric": (np.random.default_rng(2).standard_normal((N, N)), ()),
    "hermitian": (with_spectrum(1.0 / np.arange(1, N + 1), True), PSD),
    "complex": (vectors(N, N, True), ()),
}


@ON
@pytest.mark.parametrize("name", MATRICES)
def test_leave_one_out(backend: str, name: str) -> None:
    a, tags = MATRICES[name]
    if backend in ("jax", "tensorflow") and name not in ("not symmetric", "hermitian"):
        pytest.skip("compiled for each shape: the others suffice")
    w = vectors(N, 7, np.iscomplexobj(a))
    op, size = operator(a, backend, tags), np.linalg.norm(np.diag(a), 1)
    cases: list[tuple[Any, str, Any, int]] = [(trace, "xtrace", xtrace, 14), (diagonal, "xdiag", xdiag, 14)]
    if tags == PSD:
        cases += [(trace, "xnystrace", xnystrace, 7), (diagonal, "xnysdiag", xnysdiag, 7)]
    for estimate, method, definition, k in cases:
        found, samples = estimate(op, method, k, test_matrix=w), definition(a, w)
        assert found.products == k
        samples = samples.real if tags else samples  # what a Hermitian operator has is real
        assert np.abs(np.asarray(found.value) - samples.mean(0)).max() <= 1e-12 * size
        error = np.sqrt(np.mean(np.abs(samples - samples.mean(0)) ** 2, axis=0) / len(samples))
        assert np.allclose(np.asarray(found.standard_error), error, rtol=1e-6, atol=1e-9 * size)


@pytest.mark.parametrize("n", [30, 300])
def test_both_ways_to_a_nystrom_approximation(n: int) -> None:
    """Few columns of many rows take the short way, others an orthonormal basis."""
    a, w = with_spectrum(0.8 ** np.arange(n), True), vectors(n, 9, True)
    for estimate, method, definition in ((trace, "xnystrace", xnystrace), (diagonal, "xnysdiag", xnysdiag)):
        found = estimate(operator(a), method, 9, test_matrix=w)
        assert np.abs(np.asarray(found.value) - definition(a, w).mean(0)).max() < 1e-11


# ---- budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TRACE)
@pytest.mark.parametrize("is_complex", [False, True])
def test_every_budget_is_used_and_right(method: str, is_complex: bool) -> None:
    a = with_spectrum(np.linspace(1, 2, N), is_complex)
    for k in (1, 2, 3, 4, 5, 13, 20, 29, 38, 39):
        if k < {"na_hutch++": 3, "nystrom++": 2}.get(method, 1):
            with pytest.raises(ValueError, match="requires k of at least"):
                trace(operator(a), method, k)
            continue
        for sampler in ("rademacher", "normal", "sphere") if k == 20 else (None,):
            found = trace(operator(a), method, k, sampler=sampler, seed=k)
            assert found.products == k and found.value.dtype == xp.float64 and found.value.shape == ()
            assert abs(float(found.value) - 60) < (60 if k < 10 else 40), (k, sampler)
    for k in (N, N + 1, 3 * N):
        found = trace(operator(a), method, k)
        assert abs(float(found.value) - 60) < 1e-11 and float(found.standard_error) == 0 and found.method == "exact"


@pytest.mark.parametrize("method", TRACE)
def test_unbiased(method: str) -> None:
    a = with_spectrum(1.0 / np.arange(1, N + 1))
    values = np.array([float(trace(operator(a), method, 16, seed=seed).value) for seed in range(100)])
    truth = np.trace(a)
    assert abs(values.mean() - truth) < 5 * values.std() / np.sqrt(len(values))


@pytest.mark.parametrize("method", DIAGONAL)
def test_unbiased_diagonals(method: str) -> None:
    a = with_spectrum(1.0 / np.arange(1, N + 1), True)
    values = np.array([np.asarray(diagonal(operator(a), method, 15, seed=seed).value) for seed in range(100)])
    assert np.all(np.abs(values.mean(0) - np.diag(a).real) < 6 * values.std(0) / np.sqrt(len(values)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [0, 1, 5])
def test_low_rank(rank: int, dtype: Any) -> None:
    a = with_spectrum(np.where(np.arange(60) < rank, 1.0, 0.0)).astype(dtype)
    good = 0 if rank == 0 else 1e-4 if dtype == np.float32 else 1e-11
    for method in ("hutch++", "nystrom++", "xtrace", "xnystrace"):
        for k in (18, 31, 45, 59):
            assert abs(float(trace(operator(a), method, k).value) - rank) <= good, (method, k)
    for method in ("xdiag", "xnysdiag"):
        for k in (18, 45):
            assert np.abs(np.asarray(diagonal(operator(a), method, k).value) - np.diag(a)).max() <= good, (method, k)


def test_fast_decay_is_seen_to_the_last_digits() -> None:
    values = 0.7 ** np.arange(200)
    a = with_spectrum(values)
    assert abs(float(trace(operator(a), "xnystrace", 120).value) / values.sum() - 1) < 1e-14
    assert abs(float(trace(operator(a), "xtrace", 180).value) / values.sum() - 1) < 1e-14


@pytest.mark.parametrize("scale", [1e-30, 1e30])
@pytest.mark.parametrize("method", TRACE)
def test_scale_of_single_precision(method: str, scale: float) -> None:
    a = with_spectrum(np.linspace(1, 2, N)).astype(np.float32)
    expected = float(trace(operator(a), method, 20).value)
    assert np.isclose(float(trace(operator(a * np.float32(scale)), method, 20).value) / scale, expected, rtol=1e-2)


def test_negative_semidefinite() -> None:
    a = with_spectrum(0.5 ** np.arange(N))
    for method in ("auto", "nystrom++", "xnystrace"):
        found = trace(operator(-a, tags=("negative_semidefinite",)), method, 38)
        assert abs(float(found.value) + 2) < 1e-4 and float(found.standard_error) >= 0
    assert trace(operator(-a, tags=("negative_semidefinite",)), k=20).method == "xnystrace"
    assert trace(operator(a, tags=()), k=20).method == "xtrace"
    assert diagonal(operator(a, tags=()), k=20).method == "xdiag"


def test_pytrees() -> None:
    structure = {"a": ((3,), "float64"), "b": ((4, 2), "float64")}
    op = FunctionLinearOperator(lambda t: {"a": 2 * t["a"], "b": 3 * t["b"]}, structure, device="numpy")
    assert float(trace(op, k=60).value) == 30
    assert np.asarray(diagonal(op, k=11).value).tolist() == [2.0] * 3 + [3.0] * 8
    assert trace(op, k=11).products == 11
    assert abs(float(trace(op, "hutchinson", 5).value) - 30) < 1e-12  # diagonal: every vector of signs is exact


# ---- functions of operators ------------------------------------------------------------------------------------------


def test_logarithms_and_norms() -> None:
    values = np.linspace(1, 5, 120)
    a = with_spectrum(values)
    found = logdet(operator(a), 119)
    assert abs(float(found.value) - np.log(values).sum()) < 4 * float(found.standard_error)
    assert found.products == 119
    assert abs(float(logdet(operator(a), 120).value) - np.log(values).sum()) < 1e-10
    squares = trace(operator(a), "slq", 110, function=lambda x: x**2)
    assert abs(float(squares.value) - (values**2).sum()) < 4 * float(squares.standard_error)
    b = np.random.default_rng(3).standard_normal((50, 30))
    for method in ("auto", "hutchinson", "hutch++", "xtrace"):
        found = frobenius_norm(operator(b, tags=()), method, 20)
        assert abs(float(found.value) - np.linalg.norm(b)) < 6 and found.products == 20
    for shape in ((50, 30), (30, 50)):
        found = frobenius_norm(operator(b.reshape(shape), tags=()), k=30)
        assert abs(float(found.value) - np.linalg.norm(b)) < 1e-12 and found.products == 30


def test_lanczos_ends_early() -> None:
    """Two eigenvalues: the process of every vector ends after two steps, and what is behind counts for nothing."""
    a = with_spectrum(np.repeat([2.0, 4.0], 50))
    found = logdet(operator(a), 64)
    weights = [float(logdet(operator(a), 64, seed=s).value) for s in range(20)]
    assert np.isfinite(weights).all() and abs(np.mean(weights) - 50 * np.log(8)) < 6
    assert abs(float(logdet(operator(2 * np.eye(100)), 64).value) - 100 * np.log(2)) < 1e-9
    assert found.products == 64


# ---- tolerances ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["hutch++", "na_hutch++", "nystrom++", "xtrace", "xnystrace"])
def test_tolerance(method: str) -> None:
    values = 0.8 ** np.arange(150)
    found = trace(operator(with_spectrum(values)), method, rtol=1e-3)
    assert 16 <= found.products <= 300 and abs(float(found.value) / values.sum() - 1) < 1e-2
    if found.method != "exact":
        assert float(found.standard_error) <= 1e-3 * float(found.value)


def test_tolerance_is_missed() -> None:
    a = operator(with_spectrum(np.linspace(1, 3, 80)))
    with pytest.warns(UserWarning, match="20 products did not reduce the standard error to rtol = 1e-09"):
        assert trace(a, k=20, rtol=1e-9).products == 20
    assert trace(a, "hutchinson", rtol=1e-9).method == "exact"  # n products more
    found = diagonal(operator(with_spectrum(0.5 ** np.arange(80))), rtol=1e-6, progress=True)
    assert found.products < 80


@ON
def test_one_program_for_all_seeds(backend: str) -> None:
    a = operator(with_spectrum(1.0 / np.arange(1, N + 1)), backend)

    @tg.jit
    def run(op: Any, seed: int) -> Any:
        return trace(op, "xtrace", 11, seed=seed)

    for seed in (1, 2, 2**40, -5):
        found, eager = run(a, seed), trace(a, "xtrace", 11, seed=seed)
        # single precision draws: compiled, the last place may be another
        assert np.allclose(float(found.value), float(eager.value), rtol=1e-6) and found.products == 11
    assert run.report.traces == (0 if backend == "numpy" else 1)  # type: ignore[attr-defined]
    key = trace(a, "xtrace", 11, seed=tg.random.key(2, backend))
    assert float(key.value) == float(trace(a, "xtrace", 11, seed=2).value)
    if backend != "numpy":
        with pytest.raises(TracedValueError):
            tg.jit(lambda op: trace(op, "xtrace", rtol=0.1))(a)


@ON
def test_same_numbers_everywhere(backend: str) -> None:
    a = with_spectrum(1.0 / np.arange(1, N + 1), True)
    here, there = (diagonal(operator(a, on), "xnysdiag", 9, seed=3) for on in (backend, "numpy"))
    # single precision draws: their functions differ in the last place
    assert np.allclose(np.asarray(here.value), np.asarray(there.value), rtol=1e-5)


def test_gradient() -> None:
    """Of an exact trace by estimator: the identity; through the products, not through the test vectors."""
    x = xp.asarray(with_spectrum(np.linspace(1, 2, 12)), device="torch")

    def estimated(x: Any) -> Any:
        return trace(MatrixLinearOperator(x), "hutchinson", 5, seed=1).value

    w = np.asarray(trace_vectors(12, 5))
    assert np.allclose(np.asarray(tg.grad(estimated)(x)), w @ w.T / 5)


def trace_vectors(n: int, k: int) -> np.ndarray:
    from tensorgraft.operators.estimators import samplers

    return np.asarray(samplers.draw(tg.random.key(1, "numpy"), sampler="rademacher", n=n, counts=(k,),
                                    dtype=np.dtype(np.float64))[0])  # fmt: skip


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: trace(a, k=0), ValueError, "at least 1, the number of products, got 0"),
        (lambda a: trace(a, k=2.5), TypeError, "expected an int k, the number of products, got 2.5"),
        (lambda a: trace(a, k=True), TypeError, "expected an int k, the number of products, got True"),
        (lambda a: trace(a, "xtraces", 3), ValueError, "unknown method 'xtraces': expected auto, hutchinson"),
        (lambda a: trace(a, "xnystrace", 3), ValueError, "this one has the tags none"),
        (lambda a: trace(a, "slq", 3), ValueError, "'slq' requires an operator that is tagged hermitian"),
        (lambda a: logdet(a, 3), ValueError, "expected a positive definite operator"),
        (lambda a: trace(a, k=3, sampler="gauss"), ValueError, "unknown sampler 'gauss'"),
        (lambda a: trace(a, rtol=-1.0), ValueError, "expected a positive rtol"),
        (lambda a: trace(a, "xtrace", 6, test_matrix=np.ones((5, 2))), ValueError, r"shape \(5, 3\), got one of"),
        (lambda a: trace(operator(np.ones((3, 4)), tags=()), k=3), ValueError, r"square operator, got .* \(3, 4\)"),
        (lambda a: trace(np.ones((3, 3)), k=3), TypeError, "expected a LinearOperator, got a ndarray"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(operator(np.ones((5, 5)), tags=()))
