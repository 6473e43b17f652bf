"""Elementwise primitives, products, factorisations and random bits at their edges, compared with JAX itself."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.lax import lax as internal
from jax._src.random import prng
from tests.frontends.jax.test_rules_structure import agree

BACKENDS = ("numpy", "torch", "tensorflow")
NAN, INF = np.nan, np.inf
F = np.array([NAN, -NAN, INF, -INF, 0.0, -0.0, 0.5, -2.5, 1e30, -3e9, 7e-46, 127.5, 2.0**31], np.float32)
C = np.array([1 + 2j, 1 - 2j, -3 + 0j, 2j], np.complex64)
RNG = np.random.default_rng(0)
SQUARE = RNG.standard_normal((4, 4)).astype(np.float32)
POSITIVE = SQUARE @ SQUARE.T + 4 * np.eye(4, dtype=np.float32)
WIDE = RNG.standard_normal((2, 5, 3)).astype(np.float32)

INTEGERS = {
    "div": lax.div,
    "rem": lax.rem,
    "shift_left": lax.shift_left,
    "shift_right_logical": lax.shift_right_logical,
    "shift_right_arithmetic": lax.shift_right_arithmetic,
    **({"mulhi": lax.mulhi} if hasattr(lax, "mulhi") else {}),  # since JAX 0.10
}


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_integers(dtype: str) -> None:
    """By zero, by -1, by counts of bits beyond the width."""
    info = np.iinfo(dtype)
    x = np.array([info.min, info.max, 0, 1, 7, 100, info.max - 1, 3], dtype)
    y = np.array([0, 1, 2, 7, info.max, 31 % info.max, 33, 3], dtype)
    if info.min:
        y[:2] = [-1, 0]

    def everything(x: Any, y: Any) -> Any:
        return [f(x, y) for f in INTEGERS.values()], lax.clz(x), lax.population_count(x), lax.integer_pow(x, 3), ~x

    agree(BACKENDS if dtype in ("int8", "uint32") else ("numpy", "torch"), everything, x, y)


def test_floats_to_integers_saturate() -> None:
    agree(
        BACKENDS,
        lambda x: [
            lax.convert_element_type(x, t) for t in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "bool")
        ],
        F,
    )


def test_floats() -> None:
    def everything(x: Any) -> Any:
        reduced = [lax.reduce_precision(x, e, m) for e, m in ((8, 7), (5, 10), (5, 2), (8, 23), (3, 30))]
        rounded = lax.round(x), lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN), lax.cbrt(x), lax.exp2(x / 64)
        clamped = lax.clamp(np.float32(-1), x, np.float32(2))
        return reduced, rounded, clamped, lax.is_finite(x), lax.sign(x), lax.integer_pow(x, -2)

    agree(BACKENDS, everything, np.delete(F, 10))  # XLA flushes subnormal numbers, backends do not
    agree("numpy", lambda x: [lax.bitcast_convert_type(x, t) for t in ("int8", "uint16", "int32")], F)


def test_complex_numbers_are_ordered_lexicographically() -> None:
    def everything(x: Any, y: Any) -> Any:
        return lax.max(x, y), lax.min(x, y), lax.atan2(x, y), lax.conj(lax.real(x)), x**2.5, lax.pow(x, np.int32(-2))

    agree(("numpy", "torch"), everything, C, C[::-1].copy())


def test_total_order() -> None:
    primitives = (internal.eq_to_p, internal.lt_to_p, internal.le_to_p)
    agree(("numpy", "torch"), lambda x, y: [p.bind(x, y) for p in primitives], np.repeat(F, F.size), np.tile(F, F.size))


def test_special_functions() -> None:
    a = np.array([0.3, 1.0, 2.5, 9.0], np.float32)
    x = np.array([0.1, 0.5, 0.9, 0.3], np.float32)

    def everything(a: Any, x: Any) -> Any:
        unary = [f(a) for f in (lax.lgamma, lax.digamma, lax.bessel_i0e, lax.bessel_i1e, lax.erf, lax.erfc)]
        binary = [f(a, x) for f in (lax.igamma, lax.igammac, lax.igamma_grad_a, lax.random_gamma_grad)]
        return (
            unary,
            binary,
            lax.erf_inv(x),
            lax.betainc(a, a + 1, x),
            lax.polygamma(jnp.round(a), x),
            lax.zeta(a + 1, x),
        )

    agree(("numpy", "torch"), everything, a, x)


def test_special_functions_at_their_edges() -> None:
    edges = np.array([0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5, -0.5, 1.5, -1.5, 4.0, INF, -INF, NAN], np.float32)
    a, x = (g.reshape(-1) for g in np.meshgrid(edges, edges, indexing="ij"))
    a, x = a[~np.isinf(a)], x[~np.isinf(a)]  # docs/differences.md
    agree(BACKENDS, lambda a, x: (lax.zeta(a, x), lax.polygamma(a, x)), a, x)
    agree(BACKENDS, lambda x: (lax.digamma(x), lax.lgamma(x), lax.erf_inv(x)), edges)


@pytest.mark.skipif(jax.__version_info__ < (0, 11), reason="`lax.mul` has an `out_dtype` since JAX 0.11")
def test_products_in_another_dtype() -> None:
    x = np.array([1, 200, 100], np.uint8)
    agree(BACKENDS, lambda x: [lax.mul(x, x, out_dtype=t) for t in ("int32", "uint16", "float32")], x)


def test_scans_of_complex_numbers() -> None:
    z = np.array([1 + 1j, 2 - 1j, 0, -1, 1j, 3 + 3j, -2 - 2j, 50 + 3j], np.complex64)
    agree(BACKENDS, lambda x: [lax.cumlogsumexp(x, reverse=r) for r in (False, True)], z)


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ("int8", "int8", "int32"),
        ("bfloat16", "bfloat16", "float32"),
        ("float32", "bfloat16", "float32"),
        ("float64", "float32", "float32"),
        ("uint8", "uint8", None),
        ("bool", "bool", None),
        ("complex64", "complex64", None),
    ],
)
def test_dot_general(a: str, b: str, out: str | None) -> None:
    x = RNG.integers(0, 5, (2, 3, 4)).astype(jnp.dtype(a))
    y = RNG.integers(0, 5, (4, 2, 5)).astype(jnp.dtype(b))
    numbers = (((2,), (0,)), ((0,), (1,)))
    agree(BACKENDS, lambda x, y: lax.dot_general(x, y, numbers, preferred_element_type=out), x, y)


def test_factorisations() -> None:
    def everything(x: Any, w: Any) -> Any:
        linalg = lax.linalg
        packed = [jnp.tril(linalg.cholesky(x)), *linalg.lu(x), *jnp.linalg.qr(w, mode="raw")]
        solved = [
            linalg.triangular_solve(x, x, left_side=left, lower=lower, transpose_a=trans, unit_diagonal=unit)
            for left, lower, trans, unit in ((True, True, False, True), (False, False, True, False))
        ]
        values = linalg.eigh(x)[1], linalg.svd(w, compute_uv=False), jnp.linalg.slogdet(x)
        made = linalg.householder_product(w, w[:, 0, :3]), linalg.symmetric_product(x, x, alpha=2.0, beta=1.0)
        return packed, solved, values, made, jnp.linalg.inv(x), jnp.linalg.pinv(x), linalg.qr(x, pivoting=True)[1:]

    agree(("numpy", "torch"), everything, POSITIVE, WIDE)


def test_fourier_transforms() -> None:
    def everything(x: Any) -> Any:
        f = jnp.fft
        return f.fft2(x), f.ifftn(x), f.rfft2(x.real), f.irfft(x, 7), f.irfftn(x, (4, 5)), f.hfft(x)

    agree(BACKENDS, everything, (SQUARE + 1j * SQUARE.T).astype(np.complex64))


# ---- random numbers: every bit ---------------------------------------------------------------------------------------


def _drawn(data: Any, implementation: str) -> Any:
    key = jax.random.wrap_key_data(data, impl=implementation)
    keys = jax.random.split(key, (2, 3))
    folded = jax.vmap(jax.random.fold_in)(keys[0], jnp.arange(3))
    seeded = jax.random.key(jnp.int32(-5), impl=implementation)
    bits = [jax.random.bits(key, (7,), f"uint{n}") for n in (8, 16, 32, 64)]
    batched = jax.vmap(lambda k: jax.random.bits(k, (2,)))(folded)
    return bits, batched, [jax.random.key_data(k) for k in (keys, folded, seeded)], keys[0] == keys[0, :1]


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg", "philox4x32"])
def test_random_bits(implementation: str) -> None:
    if implementation not in prng.prngs:
        pytest.skip(f"JAX {jax.__version__} has none")
    words = jax.random.key(0, impl=implementation).dtype._impl.key_shape[0]
    backends = BACKENDS if implementation == "threefry2x32" else "numpy"
    agree(backends, lambda data: _drawn(data, implementation), np.arange(7, 7 + words, dtype=np.uint32))


@pytest.mark.parametrize("algorithm", [1, 2])
def test_rng_bit_generator(algorithm: int) -> None:
    def everything(key: Any) -> Any:
        shapes = ((8,), (7,), (2, 3), (3, 5), (3, 4, 2), ())
        return [
            lax.rng_bit_generator(key, shape, dtype=dtype, algorithm=algorithm)
            for shape in shapes
            for dtype in ("uint8", "uint32", "uint64")
        ]

    agree(("numpy", "torch"), everything, np.array([1, 2, 0xFFFFFFFF, 0xFFFFFFFF], np.uint32))


def test_distributions() -> None:
    def everything(data: Any) -> Any:
        key = jax.random.wrap_key_data(data)
        r = jax.random
        whole = (
            r.randint(key, (5,), 0, 77),
            r.permutation(key, 9),
            r.categorical(key, jnp.zeros((3, 4))),
            r.bernoulli(key),
        )
        return (
            whole,
            r.normal(key, (3,)),
            r.gamma(key, 0.7, (3,)),
            r.truncated_normal(key, -1.0, 1.0),
            r.poisson(key, 3.0),
        )

    agree("numpy", everything, np.array([3, 4], np.uint32))
