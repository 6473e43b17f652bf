"""Every operator is the dense matrix that it stands for: products, transposes, diagonals, tags; compiled, too."""

import numpy as np
import optree
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
import tensorgraft.operators as ops
from tensorgraft.hub import registry

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
RNG = np.random.default_rng(0)


def real(*shape):
    return RNG.standard_normal(shape)


def cplx(*shape):
    return real(*shape) + 1j * real(*shape)


def spd(n, kind=real):
    a = kind(n, n)
    return a @ a.conj().T + n * np.eye(n)


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


def close(ours, right, tol=1e-10):
    ours = np.asarray(ours)
    assert ours.shape == right.shape
    np.testing.assert_allclose(ours, right, rtol=tol, atol=tol)


A, B, C, D, S = real(3, 4), cplx(4, 3), cplx(3, 3), real(4), spd(3)
U, V, SIGMA, LOW, UP = cplx(4, 2), cplx(3, 2), real(2), real(3), cplx(3)
POINT = real(4)


def tree(x):
    """A linear function of a pytree to another."""
    return {"u": x["a"][0] * 2 - x["a"][1], "v": xp.sum(x["a"]) + 3 * x["b"]}


def of_closure(w):
    return ops.FunctionLinearOperator(lambda x: w @ x, (w.shape[1:], w.dtype), w.device)


# of a pytree {"a": (2, 2), "b": ()}, in its order
TREE = np.array([[2, 0, -1, 0, 0], [0, 2, 0, -1, 0], [1, 1, 1, 1, 3]], float)
SPEC = {"a": ((2, 2), "float64"), "b": ((), "float64")}


def curve(x):
    return xp.stack([xp.sin(x[0]) * x[1], x[2] ** 2, xp.exp(x[3]) * x[0]])


JACOBIAN = np.array([
    [np.cos(POINT[0]) * POINT[1], np.sin(POINT[0]), 0, 0],
    [0, 0, 2 * POINT[2], 0],
    [np.exp(POINT[3]), 0, 0, np.exp(POINT[3]) * POINT[0]],
])  # fmt: skip


def energy(x):
    return xp.sum(x**4) / 12 + x[0] * x[1] * x[2]


HESSIAN = np.diag(POINT**2)
for i, j, k in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
    HESSIAN[i, j] = HESSIAN[j, i] = POINT[k]


def block(*mats):
    out = np.zeros((sum(m.shape[0] for m in mats), sum(m.shape[1] for m in mats)), np.result_type(*mats))
    i = j = 0
    for m in mats:
        out[i : i + m.shape[0], j : j + m.shape[1]] = m
        i, j = i + m.shape[0], j + m.shape[1]
    return out


# name -> (a function of `m`, which puts an array on the backend, to the operator; the matrix)
CASES = {
    "matrix": (lambda m: ops.MatrixLinearOperator(m(A)), A),
    "complex matrix": (lambda m: ops.MatrixLinearOperator(m(B)), B),
    "hermitian matrix": (lambda m: ops.MatrixLinearOperator(m(C + C.conj().T), "hermitian"), C + C.conj().T),
    "function": (lambda m: ops.FunctionLinearOperator(tree, SPEC, device=m(A).device), TREE),
    "closure": (lambda m: of_closure(m(A)), A),
    "complex function": (lambda m: of_closure(m(B)), B),
    "jacobian": (lambda m: ops.JacobianLinearOperator(curve, m(POINT)), JACOBIAN),
    "hessian": (lambda m: ops.HessianLinearOperator(energy, m(POINT)), HESSIAN),
    "identity": (lambda m: ops.IdentityLinearOperator(SPEC, device=m(A).device), np.eye(5)),
    "diagonal": (lambda m: ops.DiagonalLinearOperator(m(D)), np.diag(D)),
    "diagonal of a pytree": (
        lambda m: ops.DiagonalLinearOperator([m(D.reshape(2, 2)), m(U[:, 0])]),
        np.diag(np.concatenate([D, U[:, 0]])),
    ),
    "tridiagonal": (
        lambda m: ops.TridiagonalLinearOperator(m(D), m(LOW), m(UP)),
        np.diag(D) + np.diag(LOW, -1) + np.diag(UP, 1),
    ),
    "low rank": (lambda m: ops.LowRankLinearOperator(m(U), m(SIGMA), m(V)), U * SIGMA @ V.conj().T),
    "low rank and a base": (
        lambda m: ops.LowRankLinearOperator(m(U), base=ops.DiagonalLinearOperator(m(D**2), "positive_semidefinite")),
        U @ U.conj().T + np.diag(D**2),
    ),
    "kronecker": (
        lambda m: ops.KroneckerLinearOperator([ops.MatrixLinearOperator(m(A)), ops.DiagonalLinearOperator(m(SIGMA)),
                                               ops.MatrixLinearOperator(m(B))]),
        np.kron(A, np.kron(np.diag(SIGMA), B)),
    ),
    "kronecker of definite ones": (
        lambda m: ops.KroneckerLinearOperator([ops.MatrixLinearOperator(m(S), "positive_semidefinite"),
                                               ops.MatrixLinearOperator(m(-S), "negative_semidefinite")]),
        np.kron(S, -S),
    ),
    "block diagonal": (
        lambda m: ops.BlockDiagonalLinearOperator([ops.MatrixLinearOperator(m(A)), ops.MatrixLinearOperator(m(C))]),
        block(A, C),
    ),
    "blocks": (
        lambda m: ops.BlockLinearOperator([[ops.MatrixLinearOperator(m(A)), None],
                                           [ops.MatrixLinearOperator(m(C @ A)), ops.MatrixLinearOperator(m(C))]]),
        np.block([[A, np.zeros((3, 3))], [C @ A, C]]),
    ),
    "sum": (lambda m: ops.MatrixLinearOperator(m(A)) - ops.MatrixLinearOperator(m(B.T)), A - B.T),
    "product": (lambda m: ops.MatrixLinearOperator(m(B)) @ ops.MatrixLinearOperator(m(A)), B @ A),
    "scaled": (lambda m: 2.5 * ops.MatrixLinearOperator(m(A)) / 2, 1.25 * A),
    "scaled by an array": (lambda m: ops.MatrixLinearOperator(m(B)) * m(np.array(1 + 2j)), (1 + 2j) * B),
    "negative": (lambda m: -ops.MatrixLinearOperator(m(S), "positive_semidefinite"), -S),
    "tagged": (
        lambda m: ops.TaggedLinearOperator(
            ops.MatrixLinearOperator(m(A)) @ ops.MatrixLinearOperator(m(A)).T, "positive_semidefinite"
        ),
        A @ A.T,
    ),
    "inverse": (lambda m: ops.InverseLinearOperator(ops.MatrixLinearOperator(m(C))), np.linalg.inv(C)),
    "inverse by cg": (
        lambda m: ops.InverseLinearOperator(
            ops.MatrixLinearOperator(m(S), "positive_semidefinite"), "cg", rtol=1e-13
        ),
        np.linalg.inv(S),
    ),
    "pseudo-inverse": (lambda m: ops.InverseLinearOperator(ops.MatrixLinearOperator(m(A)), "svd"), np.linalg.pinv(A)),
}  # fmt: skip
SAMPLE = ("complex function", "jacobian", "hessian", "low rank", "kronecker", "blocks", "inverse", "pseudo-inverse")
EVERYWHERE = [pytest.param(b, c, id=f"{b}-{c}") for b in BACKENDS for c in CASES if b == "numpy" or c in SAMPLE]
# tag -> does it hold of a matrix
HOLDS = {
    "symmetric": lambda a: np.allclose(a, a.T),
    "hermitian": lambda a: np.allclose(a, a.conj().T),
    "positive_semidefinite": lambda a: np.linalg.eigvalsh(a).min() > -1e-10,
    "negative_semidefinite": lambda a: np.linalg.eigvalsh(a).max() < 1e-10,
    "diagonal": lambda a: np.allclose(a, np.diag(np.diag(a))),
    "tridiagonal": lambda a: np.allclose(a, np.tril(np.triu(a, -1), 1)),
    "lower_triangular": lambda a: np.allclose(a, np.tril(a)),
    "upper_triangular": lambda a: np.allclose(a, np.triu(a)),
    "unit_diagonal": lambda a: np.allclose(np.diag(a), 1),
    "unitary": lambda a: np.allclose(a.conj().T @ a, np.eye(len(a))),
}


@pytest.mark.parametrize("backend, case", EVERYWHERE)
def test_is_its_matrix(backend, case):
    make, right = CASES[case]

    def m(a):
        return xp.asarray(a, device=backend, copy=True)

    op = make(m)
    rows, columns = right.shape
    assert op.shape == right.shape and str(op.device) == backend
    assert op.dtype == right.dtype
    close(op.as_matrix(), right)
    close(op.diagonal(), np.diagonal(right))
    close(op.T.as_matrix(), right.T)
    close(op.H.as_matrix(), right.conj().T)
    close(op.T.T.as_matrix(), right)
    for tag in op.tags:
        assert HOLDS[tag](right), tag
    x, y = real(columns, 2), cplx(rows, 2)
    close(op.mm_flat(m(x)), right @ x)
    close(op.mm_flat(m(x[:, :0])), right @ x[:, :0])
    close(op.T.mm_flat(m(y)), right.T @ y)
    close(op.H.mm_flat(m(y)), right.conj().T @ y)
    # vectors as pytrees
    one = op._in.unravel(m(x[:, 0]))
    close(op._out.ravel(optree.tree_leaves(op.mv(one))), right @ x[:, 0])
    assert optree.tree_structure(op.out_structure) == optree.tree_structure(op.mv(one))
    close(tg.jit(lambda op, x: op.mm_flat(x))(op, m(x)), right @ x)
    close((op + op * 2).as_matrix(), 3 * right)
    close((op @ op.H).as_matrix(), right @ right.conj().T)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_in_the_arrays_of_an_operator(backend):
    a = xp.asarray(S, device=backend)
    d = xp.asarray(real(3), device=backend)
    x = xp.asarray(real(3), device=backend)

    def loss(op, x):
        return xp.sum(op.mv(x) ** 2)

    op = 2 * ops.MatrixLinearOperator(a, "symmetric") @ ops.DiagonalLinearOperator(d) + ops.IdentityLinearOperator(x)
    right = 2 * S * np.asarray(d) + np.eye(3)
    factor = ops.MatrixLinearOperator(a, "symmetric") @ ops.DiagonalLinearOperator(d)
    found, dx = tg.grad(lambda op, x: loss(op + op, x), (0, 1))(factor, x)
    assert type(found) is ops.ProductLinearOperator
    twice = 2 * S * np.asarray(d)
    close(dx, 2 * twice.T @ twice @ np.asarray(x))
    outer = 2 * np.outer(twice @ np.asarray(x), np.asarray(x)) * 2
    close(found.operators[0].matrix, outer * np.asarray(d))
    close(found.operators[1].values, (outer * S).sum(0))
    close(op.as_matrix(), right)


def test_operators_are_pytrees():
    a = ops.MatrixLinearOperator(xp.asarray(S, device="numpy"), "symmetric")
    b = optree.tree_map(lambda x: x * 2, a @ a)
    close(b.as_matrix(), 4 * S @ S)
    assert optree.tree_structure(a @ a) == optree.tree_structure(b)
    assert b.operators[0].tags == a.tags


def eye(n, device="numpy"):
    return ops.MatrixLinearOperator(xp.eye(n, device=device))


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: ops.MatrixLinearOperator(xp.ones(3)), ValueError, r"two dimensions, got shape \(3,\)"),
        (lambda: ops.MatrixLinearOperator(np.eye(3)), TypeError, "got a numpy.ndarray: convert it with asarray"),
        (lambda: ops.MatrixLinearOperator(xp.eye(3, dtype=xp.int64)), TypeError, "got int64: convert"),
        (lambda: ops.MatrixLinearOperator(xp.ones((2, 3)), "symmetric"), ValueError, "is not square"),
        (lambda: ops.MatrixLinearOperator(xp.eye(3), "spd"), ValueError, "unknown tags spd: expected some of"),
        (lambda: eye(3).mv(xp.ones(4, device="numpy")), ValueError, r"expected float64\[3\], got float64\[4\]"),
        (lambda: eye(3).mv([1.0]), TypeError, r"expected float64\[3\], got \[builtins.float\]"),
        (lambda: eye(3) + eye(4), ValueError, r"a sum of operators: expected all to map float64\[3\]"),
        (lambda: eye(3) @ eye(4), ValueError, r"expects float64\[3\], but MatrixLinearOperator returns float64\[4\]"),
        (lambda: eye(3) + eye(3, "jax"), ValueError, r"several devices \(numpy, jax\)"),
        (lambda: eye(3) * xp.ones(3), TypeError, "unsupported operand"),
        (lambda: eye(3) * 1j, TypeError, "an operator of float64 cannot be multiplied by a complex number"),
        (lambda: eye(3).mm_flat(xp.ones((4, 2))), ValueError, r"expected float64\[3\], .* got float64\[4, 2\]"),
        (lambda: ops.FunctionLinearOperator(abs, ((3,), "int32")), TypeError, r"got int32\[3\]"),
        (lambda: ops.FunctionLinearOperator(3, ((3,), "float32")), TypeError, "expected a function, got a int"),
        (lambda: ops.TridiagonalLinearOperator(xp.ones(3), xp.ones(3), xp.ones(2)), ValueError, r"\(n - 1,\) below"),
        (lambda: ops.LowRankLinearOperator(xp.ones((3, 2)), xp.ones(3)), ValueError, r"U \(m, r\), s \(r,\)"),
        (lambda: ops.BlockLinearOperator([[eye(3), None]]), ValueError, "column 1 has no operator"),
        (lambda: ops.BlockLinearOperator([[eye(3), eye(2)]]), ValueError, r"row 0: an operator gives float64\[3\]"),
        (lambda: ops.HessianLinearOperator(energy, xp.ones(3, dtype=xp.complex64)), TypeError, "a real point"),
    ],
)  # fmt: skip
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
