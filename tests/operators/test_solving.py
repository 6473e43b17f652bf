"""`linear_solve` against NumPy, SciPy and Lineax: every solver, structure and derivative."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import pytest
import scipy.linalg

import tensorgraft as tg
import tensorgraft.array_api as xp
import tensorgraft.operators as ops
from tensorgraft.errors import CheckError
from tensorgraft.hub import registry

BACKENDS = [name for name in ("numpy", "jax", "torch", "tensorflow") if name in registry.backends()]
ON = pytest.mark.parametrize("backend", BACKENDS)
RNG = np.random.default_rng(1)


def real(*shape):
    return RNG.standard_normal(shape)


def cplx(*shape):
    return real(*shape) + 1j * real(*shape)


def spd(n, kind=real):
    a = kind(n, n)
    return a @ a.conj().T / n + np.eye(n)


@pytest.fixture(autouse=True)
def graphs_run_as_they_are(monkeypatch):
    monkeypatch.setattr("tensorgraft.backends.torch.program.compiler", lambda: "none")


def close(ours, right, tol=1e-8):
    ours = np.asarray(ours)
    assert ours.shape == np.shape(right)
    np.testing.assert_allclose(ours, right, rtol=tol, atol=tol)


N = 12
G, S, T = real(N, N) + 3 * np.eye(N), spd(N), real(N, 5)
GC, SC, TC = cplx(N, N) + 3 * np.eye(N), spd(N, cplx), cplx(N, 5)
DEFICIENT = real(8, 2) @ real(2, 5)
BAND = np.diag(real(N) + 6) + np.diag(real(N - 1), 1) + np.diag(real(N - 1), -1)
TIGHT = {"rtol": 1e-12}
# name -> (matrix, tags, solver, options)
SYSTEMS = {
    "diagonal": (np.diag(real(N) + 3), "diagonal", "diagonal", {}),
    "complex diagonal": (np.diag(cplx(N) + 3), "diagonal", "diagonal", {}),
    "tridiagonal": (BAND, "tridiagonal", "tridiagonal", {}),
    "complex tridiagonal": (BAND * (1 + 0.2j), "tridiagonal", "tridiagonal", {}),
    "lower": (np.tril(G), "lower_triangular", "triangular", {}),
    "complex upper": (np.triu(GC), "upper_triangular", "triangular", {}),
    "unit lower": (np.tril(real(N, N) / 4, -1) + np.eye(N), ("lower_triangular", "unit_diagonal"), "triangular", {}),
    "cholesky": (S, "positive_semidefinite", "cholesky", {}),
    "negative": (-S, "negative_semidefinite", "cholesky", {}),
    "complex cholesky": (SC, "positive_semidefinite", "cholesky", {}),
    "lu": (G, (), "lu", {}),
    "complex lu": (GC, (), "lu", {}),
    "qr": (T, (), "qr", {}),
    "complex qr": (TC, (), "qr", {}),
    "wide qr": (T.T, (), "qr", {}),
    "complex wide qr": (TC.conj().T, (), "qr", {}),
    "svd": (DEFICIENT, (), "svd", {}),
    "complex svd": (DEFICIENT @ cplx(5, 5), (), "svd", {}),
    "cg": (S, "positive_semidefinite", "cg", TIGHT),
    "negative cg": (-S, "negative_semidefinite", "cg", TIGHT),
    "complex cg": (SC, "positive_semidefinite", "cg", TIGHT),
    "gmres": (G, (), "gmres", TIGHT),
    "complex gmres": (GC, (), "gmres", TIGHT),
    "restarted gmres": (spd(N) + 0.1 * real(N, N), (), "gmres", {"rtol": 1e-11, "restart": 5, "max_steps": 500}),
    "lsmr": (T, (), "lsmr", TIGHT),
    "complex lsmr": (TC, (), "lsmr", TIGHT),
    "wide lsmr": (T.T, (), "lsmr", TIGHT),
    "lsmr without full rank": (DEFICIENT, (), "lsmr", TIGHT),
    "lsqr": (T, (), "lsqr", TIGHT),
    "complex wide lsqr": (TC.T, (), "lsqr", TIGHT),
    "lsqr without full rank": (DEFICIENT, (), "lsqr", TIGHT),
}
SAMPLE = {
    "numpy": tuple(SYSTEMS),
    "torch": ("complex tridiagonal", "complex cholesky", "complex wide qr", "complex cg", "complex gmres", "lsmr"),
    "jax": ("complex cholesky", "complex cg"),  # each operation is compiled when it is first met
    "tensorflow": ("complex upper", "wide qr", "complex cg"),
}
EVERYWHERE = [(b, s) for b in BACKENDS for s in SAMPLE[b]]


@pytest.mark.parametrize("backend, case", EVERYWHERE)
def test_solvers(backend, case):
    a, tags, solver, options = SYSTEMS[case]
    op = ops.MatrixLinearOperator(xp.asarray(a, device=backend, copy=True), tags)
    for kind in (real, cplx):
        b = kind(a.shape[0])
        right = np.linalg.lstsq(a, b)[0]
        found = ops.linear_solve(op, xp.asarray(b, device=backend), solver, **options)
        close(found.value, right)
        assert bool(found.success) and found.solver == solver
        close(found.residual, np.linalg.norm(b - a @ right), 1e-7)
        assert found.value.dtype == np.result_type(a, b)
    b = xp.asarray(real(a.shape[0]), device=backend)
    compiled = tg.jit(lambda op, b: ops.linear_solve(op, b, solver, **options))(op, b)
    close(compiled.value, np.linalg.lstsq(a, np.asarray(b))[0])
    assert bool(compiled.success)
    close(ops.InverseLinearOperator(op, solver, **options).as_matrix(), np.linalg.pinv(a), 1e-7)


def gradient_of_pseudo_inverse(a, b, w):
    """Of Re(w . pinv(a) b) in a and b, by JAX."""
    with jax.enable_x64(True):
        f = lambda a, b: jnp.real(jnp.sum(w * (jnp.linalg.pinv(a, rtol=1e-10) @ b)))  # noqa: E731
        return [np.asarray(g) for g in jax.grad(f, (0, 1))(jnp.asarray(a), jnp.asarray(b))]


@pytest.mark.parametrize("backend, case", EVERYWHERE)
def test_derivatives(backend, case):
    """In the matrix and in the right-hand side, reverse and forward, eager and compiled."""
    a, tags, solver, options = SYSTEMS[case]
    b, w = (x(s) for x, s in ((real if a.dtype == float else cplx, a.shape[0]), (cplx, a.shape[1])))
    if a.dtype == float:
        w = w.real
    right = gradient_of_pseudo_inverse(a, b, w) if "svd" not in case and "rank" not in case else None
    m, v, u = (xp.asarray(x, device=backend, copy=True) for x in (a, b, w))

    def loss(m, v):
        op = ops.MatrixLinearOperator(m, tags)
        return xp.sum(xp.real(u * ops.linear_solve(op, v, solver, **options).value))

    da, db = tg.grad(loss, (0, 1))(m, v)
    if right is None:  # JAX's pinv is of full rank
        right = numeric(loss, m, v)
        close(np.sum(np.real(np.asarray(da) * right[0][0])), right[0][1], 1e-5)
        close(np.sum(np.real(np.asarray(db) * right[1][0])), right[1][1], 1e-5)
    else:
        close(da, right[0], 1e-6)
        close(db, right[1], 1e-7)
        if backend in ("numpy", "jax"):
            compiled = tg.jit(tg.grad(loss, (0, 1)))(m, v)
            close(compiled[0], right[0], 1e-6)
        t = xp.asarray(real(*a.shape) + 0 * a, device=backend)
        moved = tg.jvp(loss, (m, v), (t, v))[1]
        close(moved, np.sum(np.real(right[0] * np.asarray(t))) + np.sum(np.real(right[1] * b)), 1e-5)


def numeric(loss, m, v, step=1e-6):
    """(a direction in which the rank of the matrix stays, the slope of `loss` along it), and the same of the vector."""
    a, b = np.asarray(m), np.asarray(v)
    x, y, t = real(a.shape[1], a.shape[1]), real(a.shape[0], a.shape[0]), real(*b.shape)
    slopes = []
    for path in (
        lambda s: ((np.eye(len(y)) + s * y) @ a @ (np.eye(len(x)) + s * x), b),
        lambda s: (a, b + s * t),
    ):
        there, back = (float(loss(*[xp.asarray(p, device=m.device) for p in path(s)])) for s in (step, -step))
        slopes.append((there - back) / (2 * step))
    return (a @ x + y @ a, slopes[0]), (t, slopes[1])


@ON
@pytest.mark.slow_with("jax", "tensorflow")
def test_second_derivatives_and_batches(backend):
    """Of a solution by conjugate gradients: the rules call the solver, whose derivative is a rule."""
    s, b = S[:3, :3], real(3)
    m = xp.asarray(s, device=backend)

    def f(scale):
        op = ops.MatrixLinearOperator(m * scale[0] + xp.eye(3, device=backend) * scale[1], "positive_semidefinite")
        return xp.sum(ops.linear_solve(op, xp.asarray(b, device=backend), "cg", rtol=1e-14).value ** 2)

    def right(scale):
        x = jnp.linalg.solve(jnp.asarray(s) * scale[0] + jnp.eye(3) * scale[1], jnp.asarray(b))
        return jnp.sum(x**2)

    at = np.array([1.5, 0.5])
    with jax.enable_x64(True):
        close(tg.hessian(f)(xp.asarray(at, device=backend)), np.asarray(jax.hessian(right)(jnp.asarray(at))))
        rows = np.stack([at, at * 2, at + 1])
        found = tg.vmap(tg.grad(f))(xp.asarray(rows, device=backend))
        close(found, np.asarray(jax.vmap(jax.grad(right))(jnp.asarray(rows))))


@ON
def test_arrays_that_a_function_closes_over(backend):
    """They are differentiated, and read again by a compiled function."""
    b = xp.asarray(real(3), device=backend)
    fixed = xp.asarray(np.diag([1.0, 2.0, 3.0]), device=backend, copy=True)

    def f(theta):
        def product(x):
            return {"x": theta * x["x"] + fixed @ x["x"]}

        op = ops.FunctionLinearOperator(product, {"x": b}, tags="positive_semidefinite")
        return xp.sum(ops.linear_solve(op, {"x": b}, "cg", rtol=1e-14).value["x"])

    theta = xp.asarray(2.0, device=backend)
    d = 2.0 + np.array([1.0, 2.0, 3.0])
    close(tg.grad(f)(theta), np.sum(-np.asarray(b) / d**2))
    close(tg.hessian(f)(theta), np.sum(2 * np.asarray(b) / d**3))
    compiled = tg.jit(tg.grad(f))
    close(compiled(theta), np.sum(-np.asarray(b) / d**2))
    fixed *= 2
    close(compiled(theta), np.sum(-np.asarray(b) / (2 + 2 * np.array([1.0, 2.0, 3.0])) ** 2))


def parts(backend):
    def m(a):
        return xp.asarray(a, device=backend)

    g, s, d = (ops.MatrixLinearOperator(m(GC[:4, :4])), ops.MatrixLinearOperator(m(S[:3, :3]), "positive_semidefinite"),
               ops.DiagonalLinearOperator(m(real(4) + 5)))  # fmt: skip
    q = np.linalg.qr(cplx(4, 4))[0]
    return {
        "kronecker": ops.KroneckerLinearOperator([g, s]),
        "blocks": ops.BlockDiagonalLinearOperator([g, s, d]),
        "product": g @ d @ g,
        "scaled": 3 * g,
        "conjugate": ops.ConjugateLinearOperator(g @ d),
        "unitary": ops.MatrixLinearOperator(m(q), "unitary"),
        "woodbury": ops.LowRankLinearOperator(m(cplx(4, 2)), m(real(2)), m(cplx(4, 2)), base=d),
        "inverse": ops.InverseLinearOperator(g),
        "identity": ops.IdentityLinearOperator(((4,), "float64"), device=backend),
        "tagged": ops.TaggedLinearOperator(2 * (g @ d), "unit_diagonal"),
    }


@pytest.mark.parametrize("name", parts("numpy"))
def test_by_structure(name):
    op = parts("numpy")[name]
    a = np.asarray(op.as_matrix())
    b = cplx(op.out_size)
    found = ops.linear_solve(op, op._out.unravel(xp.asarray(b, device="numpy")))
    assert found.solver == ("diagonal" if name == "identity" else "structured")
    import optree

    close(op._in.ravel(optree.tree_leaves(found.value)), np.linalg.solve(a, b))
    close(ops.InverseLinearOperator(op).as_matrix(), np.linalg.inv(a))


@ON
def test_solvers_are_chosen(backend):
    def m(a, tags=()):
        return ops.MatrixLinearOperator(xp.asarray(a, device=backend), tags)

    band = ops.TridiagonalLinearOperator(*(xp.asarray(np.diag(BAND, k).copy(), device=backend) for k in (0, -1, 1)))
    for op, solver in (
        (m(G), "lu"), (m(T), "qr"), (m(S, "positive_semidefinite"), "cholesky"), (m(np.triu(G), "upper_triangular"),
        "triangular"), (m(np.diag(np.diag(S)), "diagonal"), "diagonal"), (band, "tridiagonal"),
    ):  # fmt: skip
        b = real(op.out_size)
        found = ops.linear_solve(op, xp.asarray(b, device=backend))
        assert found.solver == solver
        close(found.value, np.linalg.lstsq(np.asarray(op.as_matrix()), b)[0])


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.slow_with("torch")
def test_preconditioners(backend):
    """They save steps, and leave the solution and its gradient."""
    d = np.geomspace(1, 1e4, 40)
    a = np.diag(d) + spd(40) / 50
    b = real(40)
    inverse = ops.DiagonalLinearOperator(xp.asarray(1 / d, device=backend), "positive_semidefinite")
    root = ops.DiagonalLinearOperator(xp.asarray(1 / d, device=backend))
    m, v = xp.asarray(a, device=backend), xp.asarray(b, device=backend)
    for solver, inner in (("cg", inverse), ("gmres", root), ("lsmr", root)):

        def run(m, inner, solver=solver):
            op = ops.MatrixLinearOperator(m, "positive_semidefinite")
            options = {"rtol": 1e-10, "max_steps": 2000, "preconditioner": inner}
            return ops.linear_solve(op, v, solver, **options, throw=False)

        with_, without = run(m, inner), run(m, None)
        close(with_.value, np.linalg.solve(a, b), 1e-6)
        assert int(with_.num_steps) * 2 < int(without.num_steps)
    right = gradient_of_pseudo_inverse(a, b, np.ones(40))[0]

    def loss(m):
        op = ops.MatrixLinearOperator(m, "positive_semidefinite")
        return xp.sum(ops.linear_solve(op, v, "cg", rtol=1e-13, preconditioner=inverse).value)

    close(tg.grad(loss)(m), right, 1e-7)


def test_against_lineax():
    """The same equations, tolerances and numbers of steps."""
    with jax.enable_x64(True):
        for a, tags, lineax_tags, ours, theirs in (
            (S, "positive_semidefinite", lx.positive_semidefinite_tag, "cg", lx.CG(rtol=1e-8, atol=1e-8)),
            (G, (), (), "gmres", lx.GMRES(rtol=1e-8, atol=1e-8, restart=30)),
            (T, (), (), "lsmr", lx.LSMR(rtol=1e-8, atol=1e-8)),
            (BAND, "tridiagonal", lx.tridiagonal_tag, "tridiagonal", lx.Tridiagonal()),
        ):
            b = real(a.shape[0])
            right = lx.linear_solve(lx.MatrixLinearOperator(jnp.asarray(a), lineax_tags), jnp.asarray(b), theirs)
            op = ops.MatrixLinearOperator(xp.asarray(a, device="numpy"), tags)
            options = {"rtol": 1e-8, "atol": 1e-8} if ours in ("cg", "gmres", "lsmr") else {}
            found = ops.linear_solve(op, xp.asarray(b, device="numpy"), ours, **options)
            close(found.value, np.asarray(right.value), 1e-6)
            if ours == "cg":
                assert int(found.num_steps) <= int(right.stats["num_steps"]) + 1


def test_many_columns_and_zero():
    op = ops.MatrixLinearOperator(xp.asarray(S, device="numpy"), "positive_semidefinite")
    b = np.concatenate([real(N, 3), np.zeros((N, 1))], axis=1)
    for solver in ("cg", "gmres", "lsmr", "lsqr"):
        found = ops.InverseLinearOperator(op, solver, rtol=1e-12).mm(xp.asarray(b, device="numpy"))
        close(found, np.linalg.solve(S, b))
        assert not np.asarray(found)[:, 3].any()
        zero = ops.linear_solve(op, xp.zeros(N, device="numpy"), solver)
        assert bool(zero.success) and not np.asarray(zero.value).any()


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_dtypes_stay(dtype):
    a, b = SC.astype(dtype) if dtype == "complex64" else S.astype(dtype), real(N).astype(dtype)
    op = ops.MatrixLinearOperator(xp.asarray(a, device="numpy"), "positive_semidefinite")
    v = xp.asarray(b, device="numpy")
    for solver in ("cholesky", "lu", "qr", "svd", "cg", "gmres", "lsmr", "lsqr"):
        found = ops.linear_solve(op, v, solver)
        close(found.value, np.linalg.solve(a, b), 1e-4)
        assert found.value.dtype == dtype and found.residual.dtype == "float32"
        slope = tg.grad(lambda op: xp.sum(xp.real(ops.linear_solve(op, v, solver).value)))(op)  # noqa: B023
        assert slope.matrix.dtype == dtype


def test_tridiagonal_of_any_size():
    for n in (1, 2, 3, 7, 64, 1000):
        d, low, up = real(n) + 4, real(n - 1), real(n - 1)
        op = ops.TridiagonalLinearOperator(*(xp.asarray(x, device="numpy") for x in (d, low, up)))
        b = real(n)
        banded = np.zeros((3, n))
        banded[0, 1:], banded[1], banded[2, :-1] = up, d, low
        right = scipy.linalg.solve_banded((1, 1), banded, b)
        close(ops.linear_solve(op, xp.asarray(b, device="numpy")).value, right, 1e-11)


@ON
def test_tridiagonal_that_needs_pivoting(backend):
    d, low, up = np.array([0.0, 1.0, 1e-14, 2.0, 0.0]), real(4) + 3, real(4) - 3
    a = np.diag(d) + np.diag(low, -1) + np.diag(up, 1)
    band, d, low, up, b = (xp.asarray(x, device=backend) for x in (a, d, low, up, real(5)))

    def solved(op, b):
        return ops.linear_solve(op, b).value

    op = ops.TridiagonalLinearOperator(d, low, up)
    right = np.linalg.solve(a, np.asarray(b))
    close(solved(op, b), right)
    close(solved(ops.MatrixLinearOperator(band, "tridiagonal"), b), right)
    close(tg.jit(solved)(op, b), right)
    slope = tg.grad(lambda b: xp.sum(solved(op, b)))(b)
    close(slope, np.linalg.solve(a.T, np.ones(5)))


@ON
def test_failures_say_what_to_do(backend):
    def m(a, tags=()):
        return ops.MatrixLinearOperator(xp.asarray(a, device=backend), tags)

    b = xp.asarray(real(N), device=backend)
    slow = m(np.diag(np.geomspace(1, 1e8, N)), "positive_semidefinite")
    with pytest.raises(CheckError, match=r"cg has not solved .* shape \(12, 12\): it has not converged to rtol=1e-12"):
        ops.linear_solve(slow, b, "cg", rtol=1e-12, max_steps=3)
    with pytest.raises(CheckError, match="cg has not solved"):
        tg.jit(lambda b: ops.linear_solve(slow, b, "cg", rtol=1e-12, max_steps=3).value)(b)
    found = ops.linear_solve(slow, b, "cg", rtol=1e-12, max_steps=3, throw=False)
    assert not bool(found.success) and int(found.num_steps) == 3 and found.stats["solver"] == "cg"
    with pytest.raises(CheckError, match="the matrix is not definite, as its tag says"):
        ops.linear_solve(m(np.diag([1.0, -1.0]), "positive_semidefinite"), xp.ones(2, device=backend), "cholesky")
    with pytest.raises(CheckError, match="the matrix is singular"):
        ops.linear_solve(m(np.zeros((2, 2))), xp.ones(2, device=backend))


def test_wrong_calls():
    def m(a, tags=()):
        return ops.MatrixLinearOperator(xp.asarray(a, device="numpy"), tags)

    b = xp.ones(N, device="numpy")
    for call, error, words in (
        (lambda: ops.linear_solve(G, b), TypeError, "expected a LinearOperator, got a ndarray"),
        (lambda: ops.linear_solve(m(G), xp.ones(3, device="numpy")), ValueError, r"expected float64\[12\], got float"),
        (lambda: ops.linear_solve(m(G), b, "ldl"), ValueError, "unknown solver 'ldl': expected one of structured"),
        (lambda: ops.linear_solve(m(G), b, "cg"), ValueError, r"cg requires .* tagged \{\}: use TaggedLinear"),
        (lambda: ops.linear_solve(m(T), b, "lu"), ValueError, r"lu requires a square .* \(12, 5\): use 'qr'"),
        (lambda: ops.linear_solve(m(G), b, "diagonal"), ValueError, "an operator tagged 'diagonal'"),
        (lambda: ops.linear_solve(m(G), b, ops.LU(), rtol=1), TypeError, "require a solver that is given by its name"),
        (lambda: ops.CG(rtol=-1), ValueError, "CG: expected rtol to be a number of at least 0, got -1"),
        (lambda: ops.GMRES(max_steps=0), ValueError, "expected max_steps to be an int of at least 1"),
        (lambda: ops.linear_solve(m(G), b, "gmres", preconditioner=m(T)), ValueError, r"shape \(12, 5\), expected"),
        (lambda: ops.linear_solve(m(G), xp.ones(N, dtype=xp.int64)), TypeError, "right-hand side has dtype int64"),
    ):  # fmt: skip
        with pytest.raises(error, match=words):
            call()
