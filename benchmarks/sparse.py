"""Products with a sparse matrix in `tg.jit` on JAX, against SciPy, `jax.experimental.sparse` and CPU PyTorch.

A matrix of 20,000 x 20,000, of which 1 % is stored, times 64 columns; its transposed product and gradients. And
conjugate gradients on the Laplacian of a square of 1,000 x 1,000 unknowns.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import scipy.sparse
import scipy.sparse.linalg
import torch
from benchmarks.measure import Row, interleaved
from jax.experimental import sparse as jax_sparse

import tensorgraft as tg
from tensorgraft import array_api as xp
from tensorgraft import operators as ops

SIZE, COLUMNS, DENSITY, ROUNDS = 20_000, 64, 0.01, 2
SIDE, STEPS = 1_000, 20  # of the square; steps of conjugate gradients


def measure() -> Iterator[Row]:
    warnings.filterwarnings("ignore", "Sparse")
    matrix = scipy.sparse.random(SIZE, SIZE, DENSITY, "csr", np.float32, np.random.default_rng(0))
    dense = np.random.default_rng(1).standard_normal((SIZE, COLUMNS)).astype(np.float32)
    limits = {"SciPy": 1.5, "BCOO": 0.3, "CPU PyTorch": 1.3}
    for name, subjects in (("product", _products), ("transposed product", _transposed), ("gradients", _gradients)):
        seconds = interleaved(subjects(matrix, dense), 1, ROUNDS, time.process_time)
        ours = seconds.pop("ours")
        for other, theirs in seconds.items():
            limit = limits.get(other) if name == "product" else None
            yield Row(f"{name}, on jax", ours, theirs, other, limit)
    seconds = interleaved(_conjugate_gradients(), 1, 2, time.process_time)
    yield Row(f"{STEPS} steps of conjugate gradients, on jax", seconds["ours"], seconds["SciPy"], "SciPy")


Subjects = dict[str, Callable[[], object]]


def _parts(matrix: Any) -> tuple[Any, ...]:
    return matrix.indptr, matrix.indices, matrix.data


def _products(matrix: Any, dense: np.ndarray) -> Subjects:
    a = torch.sparse_csr_tensor(*map(torch.from_numpy, _parts(matrix)), matrix.shape)
    x = torch.from_numpy(dense)
    ours = tg.jit(torch.mm)
    bcsr, bcoo = jax_sparse.BCSR.from_scipy_sparse(matrix), jax_sparse.BCOO.from_scipy_sparse(matrix)
    multiply = jax.jit(lambda a, x: a @ x)
    return {
        "ours": functools.partial(_waiting, ours, a.to(tg.device("jax")), x.to(tg.device("jax"))),
        "SciPy": lambda: matrix @ dense,
        "BCSR": lambda: multiply(bcsr, dense).block_until_ready(),
        "BCOO": lambda: multiply(bcoo, dense).block_until_ready(),
        "CPU PyTorch": lambda: a @ x,
    }


def _transposed(matrix: Any, dense: np.ndarray) -> Subjects:
    a = torch.sparse_csr_tensor(*map(torch.from_numpy, _parts(matrix)), matrix.shape)
    x = torch.from_numpy(dense)
    ours = tg.jit(lambda a, x: a.t() @ x)
    bcoo, turned = jax_sparse.BCOO.from_scipy_sparse(matrix), matrix.T
    multiply = jax.jit(lambda a, x: a.T @ x)
    return {
        "ours": functools.partial(_waiting, ours, a.to(tg.device("jax")), x.to(tg.device("jax"))),
        "SciPy": lambda: turned @ dense,
        "BCOO": lambda: multiply(bcoo, dense).block_until_ready(),
        "CPU PyTorch": lambda: a.t() @ x,
    }


def _gradients(matrix: Any, dense: np.ndarray) -> Subjects:
    """Return the gradients of the sum of squares of a product, for the stored values and the dense operand."""
    starts, columns, values = map(torch.from_numpy, _parts(matrix))

    def run(starts: Any, columns: Any, values: Any, x: Any) -> Any:
        values, x = values.detach().requires_grad_(), x.detach().requires_grad_()
        product = torch.sparse_csr_tensor(starts, columns, values, matrix.shape) @ x
        return torch.autograd.grad((product * product).sum(), (values, x))

    operands = starts, columns, values, torch.from_numpy(dense)
    on_device = [t.to(tg.device("jax")) for t in operands]
    ours, bcsr = tg.jit(run), jax_sparse.BCSR.from_scipy_sparse(matrix)

    def loss(data: Any, x: Any) -> Any:
        product = jax_sparse.BCSR((data, bcsr.indices, bcsr.indptr), shape=matrix.shape) @ x
        return (product * product).sum()

    theirs = jax.jit(jax.grad(loss, (0, 1)))
    return {
        "ours": functools.partial(_waiting, lambda *args: ours(*args)[1], *on_device),
        "BCSR": lambda: jax.block_until_ready(theirs(bcsr.data, dense)),
        "CPU PyTorch": lambda: run(*operands),
    }


def _waiting(fn: Callable[..., torch.Tensor], *args: Any) -> None:
    array: Any = tg.to_backend_array(fn(*args))
    array.block_until_ready()


def _conjugate_gradients() -> Subjects:
    n = SIDE * SIDE
    line = scipy.sparse.diags_array([-np.ones(SIDE - 1), 2 * np.ones(SIDE), -np.ones(SIDE - 1)], offsets=[-1, 0, 1])
    eye = scipy.sparse.eye_array(SIDE)
    matrix = (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)).tocsr().astype(np.float32)
    b = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    operator = ops.MatrixLinearOperator(jax_sparse.BCSR.from_scipy_sparse(matrix), "positive_semidefinite")
    solver = ops.CG(rtol=0, atol=0, max_steps=STEPS)
    solve = tg.jit(lambda a, b: ops.linear_solve(a, b, solver, throw=False).value)
    rhs = xp.asarray(b, device=operator.device)

    def ours() -> None:
        np.from_dlpack(solve(operator, rhs))  # waits

    return {"ours": ours, "SciPy": lambda: scipy.sparse.linalg.cg(matrix, b, rtol=0, atol=0, maxiter=STEPS)}
