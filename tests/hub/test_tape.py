"""The derivatives of the tape against those of JAX, for every primitive that has one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorgraft.hub import registry
from tensorgraft.hub.tape import TapeBackend, jvp, vjp
from tensorgraft.hub.tape.backend import RULES

NUMPY, JAX = registry.get("numpy"), registry.get("jax")
RNG = np.random.default_rng(0)


def real(*shape, low=-2.0, high=2.0):
    return RNG.uniform(low, high, shape)


def cplx(*shape):
    return real(*shape) + 1j * real(*shape)


def spd(n, *batch):
    a = real(*batch, n, n)
    return a @ np.swapaxes(a, -1, -2) + n * np.eye(n)


IDX = np.array([2, 0, 2, 1])
# id -> (function of (backend, arrays), arrays)
CASES = {}


def case(key, fn, *arrays):
    CASES[key] = (fn, arrays)


def unary(name, low=-2.0, high=2.0, complex_too=True):
    case(name, lambda xp, x: getattr(xp, name)(x), real(3, 4, low=low, high=high))
    if complex_too:
        case(f"{name} complex", lambda xp, x: getattr(xp, name)(x), cplx(3, 4))


for name in ("abs", "negative", "cos", "cosh", "sin", "sinh", "tan", "tanh", "exp", "expm1", "asinh", "atan"):
    unary(name)
for name in ("acos", "asin", "atanh"):
    unary(name, -0.9, 0.9)
unary("acosh", 1.1, 3.0, complex_too=False)
case("acosh complex", lambda xp, x: xp.acosh(x), cplx(3, 4) + 3)  # JAX takes another branch on the left
for name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt"):
    unary(name, 0.2, 3.0)
for name in ("erf", "erfc", "bessel_i0e", "bessel_i1e", "sign", "ceil", "floor", "trunc", "round"):
    unary(name, complex_too=False)
unary("erf_inv", -0.9, 0.9, False)
unary("lgamma", 0.3, 3.0, False)
unary("digamma", 0.3, 3.0, False)
for name in ("real", "imag", "conj"):
    case(name, lambda xp, x, name=name: getattr(xp, name)(x), cplx(3, 4))
for name in ("add", "subtract", "multiply", "divide"):
    for make, kind in ((real, ""), (cplx, " complex")):
        case(name + kind, lambda xp, a, b, name=name: getattr(xp, name)(a, b), make(3, 4), make(4) + 3)
for name in ("fmod", "maximum", "minimum", "atan2"):
    case(name, lambda xp, a, b, name=name: getattr(xp, name)(a, b), real(3, 4), real(3, 1))
case("maximum of equals", lambda xp, a: xp.maximum(a, xp.multiply(a, 1)), real(3))
case("pow", lambda xp, a, b: xp.pow(a, b), real(3, 4, low=0.2), real(3, 4))
case("pow at zero", lambda xp, a, b: xp.pow(a, b), np.array([0.0, 0.0, 2.0]), np.array([2.0, 1.0, 0.0]))
case("a scalar operand", lambda xp, a: xp.multiply(xp.subtract(3, a), 2), real(3))
case("igamma", lambda xp, x: xp.igamma(xp.full((3,), 1.5, np.dtype("float64")), x), real(3, low=0.5))
case("igammac", lambda xp, x: xp.igammac(xp.full((3,), 1.5, np.dtype("float64")), x), real(3, low=0.5))
case("zeta", lambda xp, q: xp.zeta(xp.full((3,), 2.5, np.dtype("float64")), q), real(3, low=0.5))
case("polygamma", lambda xp, x: xp.polygamma(xp.full((3,), 2.0, np.dtype("float64")), x), real(3, low=0.5))
case("nextafter", lambda xp, a, b: xp.add(a, xp.multiply(xp.nextafter(a, b), 0)), real(3), real(3))
case("where", lambda xp, a, b: xp.where(xp.greater(a, 0.0), a, b), real(3, 4), real(4))
case("complex", lambda xp, a, b: xp.complex(a, b), real(3, 4), real(4))
case("astype", lambda xp, a: xp.astype(xp.astype(a, np.dtype("float32")), np.dtype("float64")), real(3))
case(
    "astype complex",
    lambda xp, a: xp.astype(xp.multiply(xp.astype(a, np.dtype("complex128")), 1j), np.dtype("complex128")),
    real(3),
)
case("bitcast", lambda xp, a: xp.sin(xp.bitcast(a, np.dtype("float64"))), cplx(3))
case("bitcast back", lambda xp, a: xp.sin(xp.bitcast(a, np.dtype("complex128"))), real(6))
for name in ("sum", "prod", "max", "min"):
    case(f"{name} of an axis", lambda xp, x, name=name: getattr(xp, name)(x, axis=1), real(3, 4))
    case(f"{name} of all", lambda xp, x, name=name: getattr(xp, name)(x), real(3, 4))
    case(f"{name} kept", lambda xp, x, name=name: getattr(xp, name)(x, axis=(0, 2), keepdims=True), real(3, 4, 2))
case("prod with a zero", lambda xp, x: xp.prod(x, axis=0), np.array([[0.0, 0, 3], [2.0, 0, 1], [5.0, 1, 2]]))
case("max of equals", lambda xp, x: xp.max(x, axis=0), np.array([1.0, 3.0, 3.0]))
for name in ("cumsum", "cumprod", "cummax", "cummin"):
    case(name, lambda xp, x, name=name: getattr(xp, name)(x, axis=1), real(2, 5))
case("cumsum of axis 0", lambda xp, x: xp.cumsum(x, axis=0), cplx(4, 2))
case("full", lambda xp, x: xp.full((2, 3), xp.sum(x), np.dtype("float64")), real(3))
case("reshape", lambda xp, x: xp.sin(xp.reshape(x, (2, 6))), real(3, 4))
case("permute_dims", lambda xp, x: xp.sin(xp.permute_dims(x, (2, 0, 1))), real(2, 3, 4))
case("broadcast_to", lambda xp, x: xp.sin(xp.broadcast_to(x, (2, 3, 4))), real(3, 1))
case("concat", lambda xp, a, b: xp.sin(xp.concat([a, b, a], axis=1)), real(2, 3), real(2, 1))
case("pad", lambda xp, a, v: xp.pad(a, xp.sum(v), [(1, 2, 1), (-1, 1, 0)]), real(2, 3), real(1))
case("slice", lambda xp, x: xp.slice(x, (0, 1), (3, 6), (1, 2)), real(3, 6))
case("slice_update", lambda xp, x, u: xp.slice_update(x, u, (1, 0), (1, 2)), real(3, 6), real(2, 3))
case("flip", lambda xp, x: xp.sin(xp.flip(x, (0,))), real(3, 2))
case("dynamic_slice", lambda xp, x: xp.dynamic_slice(x, [xp.full((), 2, np.dtype("int64"))], (3,)), real(6))
case(
    "dynamic_update_slice",
    lambda xp, x, u: xp.dynamic_update_slice(x, u, [xp.full((), 2, np.dtype("int64"))]),
    real(6),
    real(3),
)
case("gather", lambda xp, x: xp.gather(x, (xp.asarray(IDX),)), real(3, 2))
for mode in ("set", "add", "multiply", "min", "max"):
    case(
        f"scatter {mode}",
        lambda xp, x, u, mode=mode: xp.scatter(x, (xp.asarray(np.array([2, 0, 1])),), u, mode=mode),
        real(4, 2),
        real(3, 2),
    )
case("scatter add of equals", lambda xp, x, u: xp.scatter(x, (xp.asarray(IDX),), u, mode="add"), real(3, 2), real(4, 2))
case(
    "scatter of a scalar", lambda xp, x, u: xp.scatter(x, (xp.asarray(np.array([0, 2])),), xp.sum(u)), real(3), real(1)
)
case("sort", lambda xp, x: xp.sort([x], axis=0)[0], real(5, 2))
case("sort of several", lambda xp, x, v: xp.sort([x, v], axis=-1)[1], real(2, 5), real(2, 5))
case("copy", lambda xp, x: xp.copy(x), real(3))
case("dot_general", lambda xp, a, b: xp.dot_general(a, b, ((2,), (1,)), ((0,), (0,))), real(2, 3, 4), real(2, 4, 5))
case(
    "dot_general odd",
    lambda xp, a, b: xp.dot_general(a, b, ((0, 2), (2, 0)), ((1,), (1,))),
    cplx(3, 2, 4),
    cplx(4, 2, 3, 2),
)
case("matmul", lambda xp, a, b: xp.matmul(a, b), real(5, 3, 4), real(4, 2))
case(
    "convolution",
    lambda xp, x, w: xp.convolution(x, w, (2, 1), [(1, 2), (0, 1)], (1, 2), (1, 2), 2),
    real(2, 4, 7, 6),
    real(6, 2, 3, 2),
)
for kind in ("sum", "max", "min"):
    case(
        f"reduce_window {kind}",
        lambda xp, x, kind=kind: xp.reduce_window(x, kind, (1, 2, 3), (1, 2, 1), [(0, 0), (1, 0), (1, 1)], (1, 1, 2)),
        real(2, 6, 7),
    )
case("cholesky", lambda xp, x: xp.cholesky(xp.multiply(xp.add(x, xp.matrix_transpose(x)), 0.5)), spd(4, 2))
for lower in (True, False):
    for left in (True, False):
        for how in ({}, {"transpose": True}, {"adjoint": True}):
            case(
                f"triangular_solve {lower} {left} {how}",
                lambda xp, a, b, lower=lower, left=left, how=how: xp.triangular_solve(
                    xp.add(a, xp.multiply(xp.eye(3, 3, xp.dtype_of(a)), 3)), b, lower=lower, left=left, **how
                ),
                cplx(2, 3, 3),
                cplx(2, 3, 3),
            )
case(
    "triangular_solve unit",
    lambda xp, a, b: xp.triangular_solve(a, b, lower=True, unit_diagonal=True),
    real(3, 3),
    real(3, 2),
)
case("qr", lambda xp, x: xp.qr(x), real(2, 5, 3))
case("eigh values", lambda xp, x: xp.eigh(xp.add(x, xp.matrix_transpose(x)))[0], real(4, 4))
case("eigh", lambda xp, x: xp.abs(xp.eigh(xp.add(x, xp.matrix_transpose(x)))[1]), real(4, 4))
case("svd", lambda xp, x: (lambda u, s, v: (xp.abs(u), s, xp.abs(v)))(*xp.svd(x)), real(5, 3))
case("svd wide", lambda xp, x: (lambda u, s, v: (xp.abs(u), s, xp.abs(v)))(*xp.svd(x)), real(2, 3, 5))
case("svdvals", lambda xp, x: xp.svdvals(x), real(2, 4, 3))
case("eig", lambda xp, x: xp.sum(xp.abs(xp.eig(x)[0])), real(4, 4))
case("lu", lambda xp, x: xp.lu(x)[0], real(2, 4, 4))
case(
    "solve",
    lambda xp, a, b: xp.solve(xp.add(a, xp.multiply(xp.eye(3, 3, np.dtype("float64")), 4)), b),
    real(3, 3),
    real(3, 2),
)
case("fft", lambda xp, x: xp.fft(x, axis=1), cplx(2, 5))
case("ifft", lambda xp, x: xp.ifft(x, axis=0), cplx(4, 2))
for n in (6, 7):
    case(f"rfft {n}", lambda xp, x: xp.rfft(x, axis=-1), real(2, n))
    case(f"irfft {n}", lambda xp, x, n=n: xp.irfft(x, n=n, axis=-1), cplx(2, n // 2 + 1))


def flat(fn):
    def run(xp, *arrays):
        made = fn(xp, *arrays)
        return tuple(made) if isinstance(made, tuple | list) else (made,)

    return run


def seeds(results):
    rng = np.random.default_rng(1)
    out = []
    for r in results:
        v = rng.standard_normal(np.shape(r))
        out.append(v + 1j * rng.standard_normal(np.shape(r)) if np.asarray(r).dtype.kind == "c" else v)
    return out


# JAX has no derivative of these, or takes it for zero
BY_DIFFERENCES = ("zeta", "polygamma", "nextafter", "bitcast", "bitcast back", "scatter multiply", "eig")


def by_jax(fn, arrays, given):
    """(results, cotangents of the arrays), compiled as one program."""

    def both(arrays, given):
        results, pullback = JAX.vjp(flat(fn), *arrays)
        return results, pullback(given)

    with JAX.scope():
        return jax.jit(both)([jnp.asarray(a) for a in arrays], [jnp.asarray(g) for g in given])


def by_differences(fn, arrays, given):
    """The same for real and complex arrays, in JAX's convention: of u, du/dx - i du/dy."""

    def total(*xs):
        return sum(float(np.sum(np.real(np.asarray(g) * r))) for g, r in zip(given, flat(fn)(NUMPY, *xs), strict=True))

    found, h = [], 1e-6
    for k, a in enumerate(arrays):
        out = np.zeros_like(a)
        for at in np.ndindex(a.shape):
            for step in (h, 1j * h) if a.dtype.kind == "c" else (h,):
                sides = []
                for sign in (1, -1):
                    moved = a.copy()
                    moved[at] += sign * step
                    sides.append(total(*arrays[:k], moved, *arrays[k + 1 :]))
                slope = (sides[0] - sides[1]) / (2 * h)
                out[at] += slope if step == h else -1j * slope
        found.append(out)
    return flat(fn)(NUMPY, *arrays), found


@pytest.mark.parametrize("key", CASES)
def test_the_pullback(key):
    fn, arrays = CASES[key]
    numerical = key in BY_DIFFERENCES
    with NUMPY.scope():
        results, pullback = vjp(NUMPY, flat(fn), arrays)
        given = [np.asarray(s, r.dtype) for s, r in zip(seeds(results), results, strict=True)]
        found = pullback(given)
        wanted, right = (by_differences if numerical else by_jax)(fn, arrays, given)
    for a, b in zip(results, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9)
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if numerical else 1e-6, atol=1e-7, err_msg=key)
        assert a.dtype == b.dtype


@pytest.mark.parametrize(
    "key", ["tanh", "multiply complex", "dot_general", "convolution", "prod with a zero", "lu", "sort"]
)
def test_tangents_and_second_derivatives_are_jaxs(key):
    fn, arrays = CASES[key]
    moved = seeds(arrays)
    with NUMPY.scope():
        _, found = jvp(NUMPY, flat(fn), arrays, moved)
    with JAX.scope():
        _, right = JAX.jvp(flat(fn), [jnp.asarray(a) for a in arrays], [jnp.asarray(m) for m in moved])
    for a, b in zip(found, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    if any(a.dtype.kind == "c" for a in arrays):
        return

    def gradient(outer):
        """(backend, arrays) -> the gradient of the sum of squares of the first result."""

        def run(xp, *xs):
            def loss(inner, *ys):
                made = flat(fn)(inner, *ys)[0]
                return (inner.sum(inner.multiply(made, made)),)

            results, pullback = outer(xp, loss, xs)
            return pullback([xp.ones_like(results[0])])

        return run

    with NUMPY.scope():
        results, pullback = vjp(NUMPY, gradient(vjp), arrays)
        given = seeds(results)
        second = pullback(given)
    _, right = by_jax(gradient(lambda xp, f, xs: xp.vjp(f, *xs)), arrays, given)
    for a, b in zip(second, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_control_flow_is_unrolled():
    def program(xp, x):
        doubled = xp.cond(xp.less(xp.sum(x), 100.0), lambda v: xp.multiply(v, 2.0), lambda v: v, x)
        _, y = xp.while_loop(
            lambda s: xp.less(s[0], xp.full((), 3, np.dtype("int64"))),
            lambda s: (xp.add(s[0], 1), xp.multiply(s[1], x)),
            (xp.full((), 0, np.dtype("int64")), doubled),
        )
        carry, rows = xp.scan(lambda c, v: (xp.add(c, v), xp.multiply(c, v)), xp.sum(y), y, length=3, reverse=True)
        return carry, rows

    x = np.array([1.0, -2.0, 0.5])
    with NUMPY.scope():
        _, pullback = vjp(NUMPY, program, [x])
        (found,) = pullback([np.ones(()), np.ones(3)])
    with JAX.scope():

        def pure(x):
            y = 2 * x * x**3
            carry, rows = jax.lax.scan(lambda c, v: (c + v, c * v), y.sum(), y, reverse=True)
            return carry + rows.sum()

        np.testing.assert_allclose(found, jax.grad(pure)(jnp.asarray(x)), rtol=1e-10)


def test_every_rule_has_a_case():
    names = {key.split(" ")[0] for key in CASES}
    assert set(RULES) <= names


def test_what_has_no_derivative_says_so():
    with NUMPY.scope(), pytest.raises(NotImplementedError, match="householder_product has no derivative"):
        vjp(NUMPY, lambda xp, a, t: (xp.householder_product(a, t),), [real(4, 2), real(2)])[1]([real(4, 2)])
    tape = TapeBackend(NUMPY)
    with pytest.raises(TypeError, match="lose its derivative"):
        vjp(NUMPY, lambda xp, x: (xp.lifted(xp.materialize(x)),), [real(2)])
    assert tape.name == "numpy"
