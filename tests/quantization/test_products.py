"""Products with quantised operands, from both sides, under every transform."""

import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.hub import registry

pytestmark = pytest.mark.sampled

BACKENDS = ["numpy", "torch", "jax", "tensorflow"]
SCHEMES = ["int8_per_channel", "int8_dynamic", "int4_per_group_32", "float8_e4m3", "nf4_per_group_32"]
PRODUCTS = {
    "x @ w.T": lambda x, y, w: x @ w.T,
    "w @ x.T": lambda x, y, w: w @ x.T,
    "y @ w": lambda x, y, w: y @ w,
    "w.T @ y.T": lambda x, y, w: w.T @ y.T,
    "w @ vector": lambda x, y, w: w @ x[0],
    "vector @ w": lambda x, y, w: y[0] @ w,
    "batched": lambda x, y, w: xp.matmul(xp.stack([x, 2 * x]), w.T),
    "of a slice": lambda x, y, w: x[:, 32:64] @ w[3:9, 32:64].T,
    "no rows": lambda x, y, w: x[:0] @ w.T,
    "both quantised": lambda x, y, w: w @ w.T,
    "tensordot": lambda x, y, w: xp.tensordot(x, w, axes=((1,), (1,))),
}


def arrays(backend):
    rng = np.random.default_rng(0)
    shapes = ((5, 96), (5, 12), (12, 96))
    return [xp.asarray(rng.standard_normal(shape).astype(np.float32), device=backend) for shape in shapes]


def close(got, want, scheme):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == want.dtype
    # the codes of activations are rounded, too: 2 % of the largest is what 7 bits leave
    np.testing.assert_allclose(
        got, want, rtol=1e-4, atol=(2e-2 if "dynamic" in scheme else 1e-5) * np.abs(want).max(initial=1)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_products(backend, scheme):
    if backend != "numpy" and scheme not in SCHEMES[:3]:
        pytest.skip("a sample")
    x, y, w = arrays(backend)
    q = tg.quantize(w, scheme)
    dense = tg.dequantize(q)
    for product in PRODUCTS.values():
        got = product(x, y, q)
        assert not isinstance(got, tg.QuantizedArray)
        close(got, product(x, y, dense), scheme)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("scheme", SCHEMES[:3])
def test_transforms(backend, scheme):
    x, _, w = arrays(backend)
    q = tg.quantize(w, scheme)
    dense = tg.dequantize(q)

    def loss(x, w):
        return xp.sum((x @ w.T) ** 2)

    for run in (
        lambda w: tg.grad(loss)(x, w),
        lambda w: tg.jit(lambda x, w: x @ w.T)(x, w),
        lambda w: tg.jit(lambda x: x @ w.T)(x),
        lambda w: tg.jit(tg.grad(loss))(x, w),
        lambda w: tg.vmap(lambda row: w @ row)(x),
    ):
        close(run(q), run(dense), "dynamic" if "dynamic" in scheme else scheme)
    view = tg.jit(lambda w: w.T[3:7])(q)
    assert isinstance(view, tg.QuantizedArray)
    np.testing.assert_array_equal(np.asarray(view), np.asarray(dense).T[3:7])


@pytest.mark.parametrize("backend", BACKENDS)
def test_products_of_bytes_are_exact(backend):
    hub = registry.get(backend)
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 3000, 5), (3, 7, 1), (16, 2500, 33), (2, 0, 3)):
        a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (n, k)))
        want = a.astype(np.int32) @ b.astype(np.int32).T
        with hub.scope():

            def product(p, q):
                return (hub.dot_general(p, q, ((1,), (1,)), ((), ()), np.dtype(np.int32)),)

            for run in (product, hub.compile(product)):
                np.testing.assert_array_equal(hub.to_numpy(run(hub.asarray(a), hub.asarray(b))[0]), want)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("large_first", [False, True])
@pytest.mark.parametrize("small", [((1, 512), 1), ((512, 1), 0), ((5, 512), 1), ((512,), 0), ((2, 3, 512), 2)], ids=str)
@pytest.mark.parametrize("large", [((300, 512), 1), ((512, 300), 0)], ids=str)
def test_products_of_few_rows_and_many_bytes_are_exact(backend, large_first, small, large):
    """Compilers are given them turned round, or with a row of zeros."""
    hub = registry.get(backend)
    rng = np.random.default_rng(0)
    (left, i), (right, j) = (large, small) if large_first else (small, large)
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in (left, right))
    want = np.tensordot(a.astype(np.int32), b.astype(np.int32), (i, j))
    with hub.scope():
        product = hub.compile(lambda a, b: (hub.dot_general(a, b, ((i,), (j,)), ((), ()), np.dtype(np.int32)),))
        found = hub.to_numpy(product(hub.asarray(a), hub.asarray(b))[0])
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, want)
