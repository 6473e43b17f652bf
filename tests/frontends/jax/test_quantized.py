"""Quantised arrays in programs of JAX, against the same programs on dequantised arrays."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.frontends.jax.quantized import QuantizedJaxArray
from tensorgraft.quantization import NoQuantizedRuleError, Scheme, is_quantized, on_missing

KEY = jax.random.key(0)
W = jax.random.normal(KEY, (6, 8))
X = jax.random.normal(jax.random.key(1), (8,))
SCHEMES = ("int8_per_channel", "int4_per_group_4", "nf4_per_group_8", "float8_e4m3", "uint4_asymmetric_per_group_2")


VIEWS: dict[str, Callable[[Any], Any]] = {
    "T": lambda q: q.T,
    "mT": lambda q: q.mT,
    "transpose": lambda q: q.transpose(1, 0),
    "reshape": lambda q: q.reshape(4, 12),
    "reshape of T": lambda q: q.T.reshape(-1),
    "ravel": lambda q: q.ravel(),
    "swapaxes": lambda q: q.swapaxes(0, 1),
    "squeeze": lambda q: q[None].squeeze(0),
    "int": lambda q: q[-1],
    "number": lambda q: q[2, 3],
    "steps": lambda q: q[1:5:2, ::-1],
    "through groups": lambda q: q[:, 3:6],
    "ellipsis": lambda q: q[..., 2, None],
    "mask": lambda q: q[np.array([True, False, True, False, False, True])],
    "diagonal": lambda q: q.diagonal(),
    "repeat": lambda q: q.repeat(2, axis=0),
    "copy": lambda q: q.copy(),
    "bfloat16": lambda q: q.astype(jnp.bfloat16),
    "jit": lambda q: jax.jit(lambda q: q.T)(q),
    "vmap": lambda q: jax.vmap(lambda row: row[2:5])(q),
    "cond": lambda q: jax.lax.cond(True, lambda q: q, lambda q: q, q),
    "pickle": lambda q: pickle.loads(pickle.dumps(q)),
    "split": lambda q: tg.graft(lambda q: jnp.split(q, 2, axis=1), onto="jax")(q)[1],
    "concatenate": lambda q: tg.graft(lambda q: jnp.concatenate([q, q]), onto="jax")(q),
    "lax.rev": lambda q: tg.graft(lambda q: jax.lax.rev(q, (0,)), onto="jax")(q),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "q @ x": lambda q: q @ X,
    "x @ q.T": lambda q: jnp.ones((3, 8)) @ q.T,
    "x @ q": lambda q: jnp.ones((3, 6)) @ q,
    "numpy @ q": lambda q: np.ones((3, 6), np.float32) @ q,
    "q @ q.T": lambda q: q @ q.T,
    "dot": lambda q: q.dot(X),
    "look-up": lambda q: q[jnp.array([0, 5, -1])],
    "take": lambda q: q.take(jnp.array([1, 0]), axis=1),
    "dynamic_slice": lambda q: jax.jit(lambda q, i: q[i])(q, 3),
    "+": lambda q: q + 1,
    "- reflected": lambda q: 1 - q,
    "/": lambda q: jnp.ones(8) / (q + 3),
    "**": lambda q: q**2,
    "compare": lambda q: (q > 0, jnp.zeros((6, 8)) < q, q == q),
    "divmod": lambda q: divmod(q, 0.5),
    "abs, round": lambda q: (abs(q), round(q, 1), -q),
    "reductions": lambda q: (q.sum(), q.mean(axis=0, keepdims=True), q.max(1), q.argmax(), q.std(axis=1), q.any()),
    "sort": lambda q: (q.sort(), q.argsort(), q.cumsum(0), q.clip(-1, 1)),
    "nonzero": lambda q: q.nonzero(),
    "int32": lambda q: q.astype(jnp.int32),
    "at": lambda q: q.at[1].set(0),
    "jnp": lambda q: (jnp.einsum("ij,j->i", q, X), jnp.where(q > 0, q, 0), jnp.linalg.norm(q), jax.nn.relu(q)),
    "lax": lambda q: (jax.lax.dot(q, X), jax.lax.exp(q), jax.lax.add(q, q), jax.lax.transpose(q, (1, 0))),
    "host": lambda q: (np.asarray(q), q[0].tolist(), float(q[0, 0]), list(q), len(q), q.shape, q.ndim, q.size),
    "vmap": lambda q: jax.vmap(lambda row: row * 2 @ X)(q),
    "scan": lambda q: jax.lax.scan(lambda c, row: (c + row @ X, row * 1), 0.0, q),
    "map": lambda q: jax.lax.map(lambda row: row @ X, q),
    "fori_loop": lambda q: jax.lax.fori_loop(0, 2, lambda i, c: jnp.tanh(q @ (q.T @ c)), jnp.ones(6)),
    "checkpoint": lambda q: jax.grad(lambda x: jax.checkpoint(lambda q, x: jnp.sum((q @ x) ** 2))(q, x))(X),
    "grad": lambda q: jax.grad(lambda x: jnp.sum(jnp.tanh(q @ x)))(X),
    "jvp": lambda q: jax.jvp(lambda x: jnp.tanh(q @ x), (X,), (X,)),
    "hessian": lambda q: jax.hessian(lambda x: jnp.sum(jnp.tanh(q @ x)))(X),
}
WRONG: dict[str, Callable[[Any], Any]] = {
    "product": lambda q: q @ jnp.ones(5),
    "index": lambda q: q[1, 2, 3],
    "list": lambda q: q[[0, 1]],
    "reshape": lambda q: q.reshape(7, 7),
    "sum": lambda q: q + jnp.ones(5),
    "bool": lambda q: bool(q),
    "operand": lambda q: q @ "a",
    "and": lambda q: q & 1,
    "hash": lambda q: hash(q),
    "scalar": lambda q: q @ 2,
    "write": lambda q: q.__setitem__(0, 1),
}


def values(x: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(x, is_leaf=is_quantized)]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [(name, "uint4_asymmetric_per_group_2") for name in VIEWS]
    + [(name, "float8_e4m3") for name in ("reshape of T", "through groups", "vmap", "pickle")],
)
def test_views_are_quantised_and_keep_the_law(name: str, scheme: str) -> None:
    q = tg.quantize(W, scheme)
    with on_missing("error"):
        seen = VIEWS[name](q)
    assert isinstance(seen, QuantizedJaxArray)
    dense = VIEWS[name](q.dequantize())
    assert seen.shape == dense.shape
    assert seen.dtype == dense.dtype
    assert np.array_equal(np.asarray(seen.dequantize()), np.asarray(dense))


@pytest.mark.parametrize("name", OTHERS)
def test_everything_else_computes_what_it_does_on_dense_arrays(name: str) -> None:
    q = tg.quantize(W, "int4_per_group_4")
    found, expected = values(OTHERS[name](q)), values(OTHERS[name](q.dequantize()))
    assert [x.dtype for x in found] == [x.dtype for x in expected]
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x.astype(float), y.astype(float), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_jax(name: str) -> None:
    quantised = tg.quantize(W, "int8_per_channel")
    with pytest.raises(Exception) as expected:
        (lambda w: w.__setitem__(0, 1) if name == "write" else WRONG[name](w))(quantised.dequantize())
    with pytest.raises(type(expected.value)):
        WRONG[name](quantised)


def test_shapes_alone() -> None:
    q = tg.quantize(W, "int4_per_group_4")
    found = jax.eval_shape(lambda q: (q.T @ q, q[1:]), q)
    assert found[0] == jax.ShapeDtypeStruct((8, 8), jnp.float32)
    assert found[1].shape == (5, 8)


@pytest.mark.parametrize("scheme", [*SCHEMES, "int8_dynamic"])
def test_codes_are_those_of_the_array_api(scheme: str) -> None:
    ours, theirs = tg.quantize(W, scheme), tg.quantize(xp.asarray(np.asarray(W), device="numpy"), scheme)
    assert np.array_equal(np.asarray(ours.dequantize()), np.asarray(theirs.dequantize()))
    assert ours.nbytes == theirs.nbytes


def test_dynamic_products_quantise_rows_alone_and_under_vmap() -> None:
    q = tg.quantize(W, "int8_dynamic")
    x = jax.random.normal(KEY, (5, 8))
    reference = tg.quantize(xp.asarray(np.asarray(W), device="jax"), "int8_dynamic")
    expected = np.asarray(xp.asarray(np.asarray(x), device="jax") @ reference.T)
    for found in (x @ q.T, jax.vmap(lambda row: q @ row)(x), jax.jit(jax.vmap(lambda row: row @ q.T))(x)):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    gradient = jax.vmap(jax.grad(lambda row: jnp.sum(q @ row)))(x)  # straight through
    np.testing.assert_allclose(gradient, jnp.broadcast_to(q.dequantize().sum(0), x.shape), rtol=1e-5)


def test_no_leaf_is_a_parameter() -> None:
    for scheme in SCHEMES:
        leaves = jax.tree.leaves(tg.quantize(W, scheme))
        assert not any(jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves)
    names = [
        jax.tree_util.keystr(path)
        for path, _ in jax.tree_util.tree_leaves_with_path(tg.quantize(W, "int8_static", inputs=X))
    ]
    assert names == [".codes", ".scale", ".input_scale"]


def test_dense_results_are_counted_at_every_call() -> None:
    q = tg.quantize(W, "int8_per_channel")
    tg.quantization.reset()
    for _ in range(3):
        q + 1
    jnp.exp(q)
    jax.lax.exp(q)
    q @ X
    report = tg.quantization.report()
    assert report["dequantized"]["add"] == 3
    assert sum(report["dequantized"].values()) == 5
    assert report["quantized"] == {"dot_general": 1}
    for dense in (lambda: q + 1, lambda: jax.lax.exp(q), lambda: X + q):
        with on_missing("error"), pytest.raises(NoQuantizedRuleError):
            dense()


def test_any_function_by_the_rules() -> None:
    q = tg.quantize(jax.random.normal(KEY, (16, 8)), "int8_per_channel")
    x = jax.random.normal(KEY, (5, 8))

    def program(q: Any, x: Any) -> Any:
        heads = jnp.reshape(q, (2, 8, 8))
        y = jnp.einsum("bk,hnk->bhn", x, heads)
        z = jax.lax.scan(lambda c, _: (jnp.tanh(jnp.dot(c, q.T) @ q), None), x, None, length=2)[0]
        return y, z, jax.lax.cond(x[0, 0] > 0, lambda: jnp.matmul(x, q.T), lambda: jnp.zeros((5, 16)))

    by_rules = tg.graft(program, onto="jax")
    with on_missing("error"):
        found = values(by_rules(q, x))
        compiled = values(jax.jit(by_rules)(q, x))
    for a, b, c in zip(found, values(program(q.dequantize(), x)), compiled, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(c, b, rtol=1e-5, atol=1e-5)
    gradient = jax.grad(lambda x: sum(jnp.sum(y**2) for y in by_rules(q, x)))(x)
    dense = jax.grad(lambda x: sum(jnp.sum(y**2) for y in program(q.dequantize(), x)))(x)
    np.testing.assert_allclose(gradient, dense, rtol=1e-4, atol=1e-4)


def test_what_is_not_quantised_keeps_its_own_derivative() -> None:
    q = tg.quantize(W, "int8_per_channel")
    f = tg.graft(lambda q, x: jnp.sum(jax.nn.relu(x)) + jnp.sum(q @ x), onto="jax")
    slope = jax.grad(lambda x: f(q, x))(jnp.zeros(8)) - q.dequantize().sum(0)
    np.testing.assert_allclose(slope, np.zeros(8), atol=1e-6)  # that of relu at 0, not 1/2 of maximum


def test_64_bits() -> None:
    with jax.enable_x64(True):
        q = tg.quantize(jnp.asarray(np.asarray(W), jnp.float64), "int8_per_channel")
        x = jnp.asarray(np.asarray(X), jnp.float64)
        assert (q @ x).dtype == jnp.float64
        np.testing.assert_allclose(q @ x, q.dequantize() @ x, rtol=1e-6)  # numbers are float32
        np.testing.assert_allclose(q[jnp.arange(2)], q.dequantize()[:2])


def test_fake_quantize() -> None:
    rounded = tg.quantization.fake_quantize(W, "int4_per_group_4")
    assert np.array_equal(rounded, tg.quantize(W, "int4_per_group_4").dequantize())
    gradient = jax.jit(jax.grad(lambda w: jnp.sum(tg.quantization.fake_quantize(w, "int4_per_group_4") * W)))(W)
    np.testing.assert_allclose(gradient, W)


def test_gptq() -> None:
    x = jax.random.normal(KEY, (100, 8)) @ jax.random.normal(KEY, (8, 64))
    w = jax.random.normal(KEY, (16, 64))
    near, nearest = tg.quantization.gptq(w, x, "int4_per_group_32"), tg.quantize(w, "int4_per_group_32")
    assert isinstance(near, QuantizedJaxArray)

    def error(q: Any) -> float:
        return float(jnp.sum((x @ q.T - x @ w.T) ** 2))

    assert error(near) < error(nearest)


def test_what_cannot_be_quantised() -> None:
    with pytest.raises(ValueError, match="does not divide into groups of 3"):
        tg.quantize(W, "int4_per_group_3")
    with pytest.raises(ValueError, match="NaN"):
        tg.quantize(W.at[0, 0].set(jnp.nan), "int8_per_channel")
    with pytest.raises(TypeError, match="floating-point dtype"):
        tg.quantize(jnp.arange(8), "int8_per_tensor")
    with pytest.raises(TypeError, match=r"tensorgraft\.array_api\.asarray\(x, device='numpy'\)"):
        tg.quantize(np.ones((4, 4)), "int8_per_tensor")
    with pytest.raises(ValueError, match="inconsistent sizes"):  # one scale for all rows cannot be mapped over them
        jax.vmap(lambda row: row)(tg.quantize(W, "int8_per_tensor"))
    with pytest.raises(ValueError, match="packed along the last axis"):
        jax.vmap(lambda x: x + 1)(tg.quantize(X, Scheme("int4", "group", 2)))
