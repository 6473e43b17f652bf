"""Sparse matrices of every library as operators: products, transposes, solutions, traces and gradients."""

import jax.experimental.sparse as jax_sparse
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch

import tensorgraft as tg
from tensorgraft import array_api as xp
from tensorgraft import operators as ops
from tensorgraft.frontends.array_api.extensions.sparse import csr_matmul

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # beta state; invariant checks are implicitly disabled


def laplacian(side):
    """The matrix of the five-point Laplacian on a square, symmetric and positive definite."""
    line = scipy.sparse.diags_array([-np.ones(side - 1), 2 * np.ones(side), -np.ones(side - 1)], offsets=[-1, 0, 1])
    eye = scipy.sparse.eye_array(side)
    return (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)).tocsr()


def of_torch(m, device="cpu"):
    parts = (torch.from_numpy(x) for x in (m.indptr, m.indices, m.data))
    return torch.sparse_csr_tensor(*parts, m.shape).to(device)


def of_tensorflow(m):
    import tensorflow as tf

    m = m.tocoo()
    order = np.lexsort((m.col, m.row))
    return tf.SparseTensor(np.stack([m.row, m.col], 1)[order].astype(np.int64), m.data[order], m.shape)


def host(x):
    return np.asarray(x.to_device("numpy"))


MATRICES = {
    "scipy csr": lambda m: m,
    "scipy csc": lambda m: m.tocsc(),
    "scipy coo": lambda m: m.tocoo(),
    "BCSR": lambda m: jax_sparse.BCSR.from_scipy_sparse(m),
    "BCOO": lambda m: jax_sparse.BCOO.from_scipy_sparse(m),
    "torch csr": of_torch,
    "torch csc": lambda m: of_torch(m).to_sparse_csc(),
    "torch coo": lambda m: of_torch(m).to_sparse_coo(),
    "on the device": lambda m: of_torch(m, tg.device("jax")),
    "SparseTensor": of_tensorflow,
}


@pytest.fixture
def matrix():
    generator = np.random.default_rng(0)
    return scipy.sparse.random_array((7, 5), density=0.4, format="csr", dtype=np.float32, rng=generator)


@pytest.mark.parametrize("kind", MATRICES)
def test_products(kind, matrix):
    a, dense = ops.MatrixLinearOperator(MATRICES[kind](matrix)), matrix.toarray()
    assert isinstance(a, ops.SparseLinearOperator) and a.shape == (7, 5) and a.dtype == np.float32
    x, y = np.arange(5, dtype=np.float32), np.arange(14, dtype=np.float32).reshape(7, 2)
    to = lambda v: xp.asarray(v, device=a.device)  # noqa: E731
    np.testing.assert_allclose(host(a.mv(to(x))), dense @ x, rtol=1e-5)
    np.testing.assert_allclose(host(a.T.mm(to(y))), dense.T @ y, rtol=1e-5)
    np.testing.assert_allclose(host(a.as_matrix()), dense, rtol=1e-6)
    np.testing.assert_allclose(host((a.T @ a).as_matrix()), dense.T @ dense, rtol=1e-4)


@pytest.mark.parametrize("kind", ["scipy csr", "BCSR", "torch csr", "SparseTensor"])
def test_conjugate_gradients(kind):
    m = laplacian(32)  # 1,024 unknowns
    b = np.random.default_rng(1).standard_normal(m.shape[0])
    import jax

    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        a = ops.MatrixLinearOperator(MATRICES[kind](m), "positive_semidefinite")
    rhs = xp.asarray(b, device=a.device)
    solution = tg.jit(lambda a, b: ops.linear_solve(a, b, ops.CG(rtol=1e-8, atol=0)).value)(a, rhs)
    found = host(solution)
    np.testing.assert_allclose(found, scipy.sparse.linalg.spsolve(m.tocsc(), b), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["scipy csr", "BCSR", "torch csr", "SparseTensor"])
def test_gradients_in_values_and_vectors(kind, matrix):
    dense = matrix.toarray()
    a = ops.MatrixLinearOperator(MATRICES[kind](matrix))
    x = xp.asarray(np.arange(5, dtype=np.float32), device=a.device)

    def loss(values, x):
        return xp.sum(csr_matmul(a.starts, a.columns, values, xp.expand_dims(x, axis=1)) ** 2)

    gradient = tg.grad(loss, argnums=(0, 1))
    for differentiate in (gradient, tg.jit(gradient)):
        of_values, of_x = differentiate(a.values, x)
        product = dense @ np.arange(5)
        rows = np.repeat(np.arange(7), np.diff(matrix.indptr))
        np.testing.assert_allclose(host(of_values), 2 * product[rows] * np.arange(5)[matrix.indices], rtol=1e-4)
        np.testing.assert_allclose(host(of_x), 2 * dense.T @ product, rtol=1e-4)


@pytest.mark.parametrize("kind", ["scipy csr", "BCSR", "torch csr", "SparseTensor"])
def test_estimates_are_those_of_the_dense_matrix(kind):
    m = laplacian(4).astype(np.float32)
    sparse = ops.MatrixLinearOperator(MATRICES[kind](m), "positive_semidefinite")
    dense = ops.MatrixLinearOperator(xp.asarray(m.toarray(), device=sparse.device), "positive_semidefinite")
    estimates = [(ops.trace, {"method": "xtrace", "k": 6})]
    if kind == "scipy csr":  # the others take a while to compile
        estimates += [
            (ops.trace, {"method": "hutchinson", "k": 6}),
            (ops.diagonal, {"method": "xdiag", "k": 6}),
            (ops.logdet, {"k": 4}),
            (ops.frobenius_norm, {"k": 6}),
        ]
    for estimate, arguments in estimates:
        found = host(estimate(sparse, seed=1, **arguments).value)
        np.testing.assert_allclose(found, host(estimate(dense, seed=1, **arguments).value), rtol=1e-3, atol=1e-3)
    if kind == "scipy csr":
        np.testing.assert_allclose(host(ops.trace(sparse, "xtrace", 16).value), m.diagonal().sum(), rtol=1e-4)


def test_the_parts_are_shared(matrix):
    assert np.shares_memory(np.from_dlpack(ops.MatrixLinearOperator(matrix).values), matrix.data)
    tensor = of_torch(matrix)
    shared = torch.from_dlpack(ops.MatrixLinearOperator(tensor).values)
    assert shared.data_ptr() == tensor.values().data_ptr()
    bcsr = jax_sparse.BCSR.from_scipy_sparse(matrix)
    shared = torch.from_dlpack(ops.MatrixLinearOperator(bcsr).values)
    assert shared.data_ptr() == bcsr.data.unsafe_buffer_pointer()


@pytest.mark.parametrize("kind", ["scipy csr", "on the device"])
def test_solvers_of_scipy(kind):
    m = laplacian(4)
    a = ops.MatrixLinearOperator(MATRICES[kind](m), "positive_semidefinite")
    b = np.arange(16.0)

    def matvec(x):
        return host(a.mv(xp.asarray(x.reshape(-1).astype(np.float64), device=a.device)))

    linalg = scipy.sparse.linalg
    operator = linalg.LinearOperator(m.shape, matvec=matvec, rmatvec=matvec, dtype=np.float64)
    wanted = linalg.spsolve(m.tocsc(), b)
    for solve in (linalg.cg, linalg.gmres, linalg.minres, linalg.bicgstab):
        np.testing.assert_allclose(solve(operator, b, rtol=1e-10)[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(linalg.lsqr(operator, b, atol=1e-12, btol=1e-12)[0], wanted, rtol=1e-6)
    largest = np.linalg.eigvalsh(m.toarray())[-3:]
    np.testing.assert_allclose(np.sort(linalg.eigsh(operator, 3)[0]), largest, rtol=1e-8)
    np.testing.assert_allclose(np.sort(linalg.svds(operator, 3)[1]), largest, rtol=1e-8)
    np.testing.assert_allclose(linalg.cg(m, xp.asarray(b, device=a.device), rtol=1e-10)[0], wanted, rtol=1e-6)


def test_estimators_of_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition")

    class Halved(torch.nn.Module):
        def forward(self, a):
            return a * 0.5

    m = laplacian(4)
    halved = tg.graft(Halved(), onto="numpy")(m)
    reduced = decomposition.TruncatedSVD(3, random_state=0).fit_transform(halved)
    wanted = decomposition.TruncatedSVD(3, random_state=0).fit_transform(m * 0.5)
    np.testing.assert_allclose(reduced, wanted, rtol=1e-6, atol=1e-8)


def test_errors(matrix):
    with pytest.raises(TypeError, match=r"expected an array of tensorgraft\.array_api, got a builtins\.list"):
        ops.MatrixLinearOperator([[1.0]])
    with pytest.raises(TypeError, match="expected floating-point or complex numbers, got int64"):
        ops.MatrixLinearOperator(matrix.astype(np.int64))
    with pytest.raises(TypeError, match="without batch and dense dimensions"):
        ops.MatrixLinearOperator(jax_sparse.BCOO.fromdense(np.ones((2, 3, 3)), n_batch=1))
    with pytest.raises(ValueError, match="5"):
        ops.MatrixLinearOperator(matrix).mv(xp.ones(4, dtype=xp.float32, device="numpy"))
