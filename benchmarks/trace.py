"""Trace estimators beside traceax, both on JAX: the same estimator and budget, compiled and eager, and how far the
eager call is from the compiled one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import traceax
from benchmarks.measure import Row, interleaved

import tensorgraft as tg
import tensorgraft.array_api as xp

# traceax leaves out what does not divide by 2 or 3
N, PRODUCTS, ROUNDS = 1000, (30, 90, 300), 15
METHODS = {
    "hutchinson": traceax.HutchinsonEstimator,
    "hutch++": traceax.HutchPlusPlusEstimator,
    "xtrace": traceax.XTraceEstimator,
    "xnystrace": traceax.XNysTraceEstimator,
}
COMPILED, EAGER = 1.0, 1.5


def matrix(n: int = N) -> np.ndarray:
    """Symmetric, with the eigenvalues 1, 1/4, 1/9, ..."""
    q = np.linalg.qr(np.random.default_rng(0).standard_normal((n, n)))[0]
    a = (q / np.arange(1.0, n + 1) ** 2) @ q.T
    return (a + a.T) / 2


def subjects(method: str, k: int, values: np.ndarray) -> dict[str, Callable[[], Any]]:
    """Each draws new test vectors at every call."""
    ours = tg.operators.MatrixLinearOperator(xp.asarray(values, device="jax"), tags=("positive_semidefinite",))
    theirs = lx.MatrixLinearOperator(jnp.asarray(values), lx.positive_semidefinite_tag)
    estimator = METHODS[method]()
    seeds = iter(range(10**9))
    compiled = tg.jit(lambda operator, seed: tg.operators.trace(operator, method, k, seed=seed).value)
    peer = jax.jit(lambda key, operator: estimator.estimate(key, operator, k)[0])
    return {
        "compiled": lambda: float(compiled(ours, next(seeds))),
        "eager": lambda: float(tg.operators.trace(ours, method, k, seed=next(seeds)).value),
        "traceax, compiled": lambda: float(peer(jax.random.key(next(seeds)), theirs)),
        "traceax, eager": lambda: float(estimator.estimate(jax.random.key(next(seeds)), theirs, k)[0]),
    }


def measure() -> list[Row]:
    rows: list[Row] = []
    values = matrix()
    with jax.enable_x64(True):
        for method in METHODS:
            for k in PRODUCTS:
                found = interleaved(subjects(method, k, values), 1, ROUNDS, time.process_time)
                name = f"{method}, n = {N}, {k} products"
                rows.append(
                    Row(f"{name}, compiled", found["compiled"], found["traceax, compiled"], "traceax", COMPILED)
                )
                if k == 90:
                    eager = found["eager"]
                    rows.append(Row(f"{name}, eager", eager, found["compiled"], "compiled", EAGER))
                    rows.append(Row(f"{name}, eager", eager, found["traceax, eager"], "traceax"))
    return rows
