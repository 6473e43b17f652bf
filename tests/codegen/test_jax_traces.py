"""Traces of JAX programs: run on another backend they give what JAX gives, in the words that people use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.codegen.replay import replay, said, shown

import tensorgraft as tg
from tensorgraft.codegen.recorders.calls import NotExpressibleError
from tensorgraft.codegen.trace import SourceTrace, steps
from tensorgraft.frontends.jax.codegen import trace_function

eqx = pytest.importorskip("equinox")
KEY = jax.random.key(0)


def host(x: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 1e-5) -> SourceTrace:
    """The trace, which gives what the program gives."""
    trace = trace_function(fn, args)
    names = {name for name, _ in trace.arguments}
    given = list(args) if len(names) == len(args) else [x for x in args if not _is_held(x, trace)]
    got = jax.tree.leaves(replay(trace, *[host(x) for x in jax.tree.leaves(given) if hasattr(x, "dtype")])[0])
    want = [host(x) for x in jax.tree.leaves(fn(*args))]
    assert [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in want]
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, tolerance, tolerance * (np.abs(w).max(initial=0) + 1e-30))
    return trace


def _is_held(x: Any, trace: SourceTrace) -> bool:
    shapes = [leaf.shape for leaf in jax.tree.leaves(x) if hasattr(leaf, "shape")]
    return not hasattr(x, "dtype") and shapes == [v.shape for v in trace.parameters.values()]


def mlp(params: Any, x: Any) -> Any:
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    logits = x @ w + b
    return jax.nn.softmax(logits)


class Block(eqx.Module):
    """A block of a transformer."""

    attn: eqx.nn.MultiheadAttention
    n1: eqx.nn.LayerNorm
    n2: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, d: int, h: int, key: Any) -> None:
        a, b = jax.random.split(key)
        self.attn = eqx.nn.MultiheadAttention(h, d, key=a)
        self.n1 = eqx.nn.LayerNorm(d)
        self.n2 = eqx.nn.LayerNorm(d)
        self.mlp = eqx.nn.MLP(d, d, 4 * d, 1, activation=jax.nn.gelu, key=b)

    def __call__(self, x: Any) -> Any:
        y = jax.vmap(self.n1)(x)
        x = x + self.attn(y, y, y, mask=jnp.tril(jnp.ones((x.shape[0],) * 2, bool)))
        return x + jax.vmap(self.mlp)(jax.vmap(self.n2)(x))


def test_function_of_parameters() -> None:
    keys = jax.random.split(KEY, 3)
    params = [(jax.random.normal(keys[0], (8, 16)), jnp.ones(16)), (jax.random.normal(keys[1], (16, 4)), jnp.zeros(4))]
    trace = check(mlp, params, jax.random.normal(keys[2], (5, 8)))
    assert list(trace.parameters) == ["0.0", "0.1", "1.0", "1.1"]
    assert shown(trace.root).split() == ["mlp(x)", "matmul", "add", "relu", "matmul", "add", "softmax"]
    assert [step.names for step in trace.root.calls][-2] == ("logits",)


def test_transformer_of_equinox() -> None:
    block, x = Block(32, 4, KEY), jax.random.normal(KEY, (3, 6, 32))
    trace = check(jax.vmap(block), x)
    assert trace.name == "Block" and trace.root.doc == "A block of a transformer."
    assert [n for n in trace.parameters if n.startswith("n1")] == ["n1.weight", "n1.bias"]
    assert (
        shown(trace.root)
        == """\
Block(x)
  layer_norm
  ones
  tril
  MultiheadAttention(query, key_, value, mask)
    linear
    reshape
    linear
    reshape
    linear
    reshape
    divide
    einsum
    where
    softmax
    einsum
    reshape
    linear
  add
  layer_norm
  MLP(x)
    linear
    gelu
    linear
  add"""
    )
    assert said(check(block, x[0])) == said(trace)


def test_model_by_itself_and_as_an_argument() -> None:
    model = eqx.nn.MLP(8, 3, 16, 2, key=KEY)
    assert shown(check(model, jnp.ones(8)).root).split() == ["MLP(x)", "linear", "relu", "linear", "relu", "linear"]
    p, s = eqx.partition(model, eqx.is_inexact_array)
    trace = check(lambda params, x: jax.vmap(eqx.combine(params, s))(x), p, jnp.ones((4, 8)))
    assert list(trace.parameters) == [f"layers.{i}.{n}" for i in range(3) for n in ("weight", "bias")]


def words_of(fn: Callable[..., Any], *args: Any) -> str:
    return " ".join(step.method for step in steps(check(fn, *args).root))


X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 6)), jnp.float32)


@pytest.mark.parametrize(
    ("fn", "args", "said_as"),
    [
        (lambda x: jax.nn.gelu(x, approximate=False), (X,), "gelu"),
        (jax.nn.silu, (X,), "silu"),
        (lambda x: jax.nn.log_softmax(x, 0), (X,), "log_softmax"),
        (lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), (X,), "square sum sqrt divide"),
        (lambda x: jnp.var(x, axis=0) + x.mean(0), (X,), "var mean add"),
        (lambda x: jnp.einsum("ij,kj->ik", x, x)[:, -1], (X,), "linear getitem"),
        (lambda x: x.T @ x, (X,), "permute_dims matmul"),
        (lambda x, i: x[i], (X, jnp.array([0, -1])), "embedding"),
        (lambda x: jnp.tril(x @ x.T, -1), (X,), "linear tril"),
        (lambda i: jax.nn.one_hot(i, 3), (jnp.array([0, 2]),), "one_hot"),
        (lambda k: jax.random.normal(jax.random.split(k)[0], (3,)), (KEY,), "jax_split getitem jax_normal"),
        (lambda k: jax.random.uniform(jax.random.fold_in(k, 3), (3,)), (KEY,), "jax_fold_in jax_uniform"),
        (lambda x: jnp.floor_divide(x.astype(int), 3) % 2, (X * 9,), "astype floor_divide remainder"),
        (lambda x: jnp.clip(x, -1, 1), (X,), "clip"),
        (lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID"), (X,), "max_pool"),
    ],
)
def test_words(fn: Callable[..., Any], args: tuple[Any, ...], said_as: str) -> None:
    assert words_of(fn, *args) == said_as


def test_layers_of_equinox() -> None:
    table = eqx.nn.Embedding(7, 3, key=KEY)
    assert words_of(jax.vmap(table), jnp.array([2, 6, 0])) == "embedding"
    image = jax.random.normal(KEY, (2, 4, 5, 5))
    assert words_of(jax.vmap(eqx.nn.GroupNorm(2, 4)), image) == "group_norm"
    assert words_of(jax.vmap(eqx.nn.Conv2d(4, 3, 3, use_bias=False, key=KEY)), image) == "conv"
    assert words_of(jax.vmap(eqx.nn.MaxPool2d(2, 2)), image) == "max_pool"


def test_loops_stay_loops() -> None:
    cell = eqx.nn.GRUCell(4, 5, key=KEY)
    final = lambda xs: jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(5), xs)[0]  # noqa: E731
    trace = check(final, jnp.ones((7, 4)))
    assert words_of(final, jnp.ones((7, 4))) == "zeros scan"
    assert list(trace.parameters) == ["weight_ih", "weight_hh", "bias", "bias_n"]
    assert words_of(lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), X) == "sum greater cond"
    halved = lambda x: jax.lax.while_loop(lambda s: s.sum() > 1, lambda s: s / 2, x)  # noqa: E731
    assert words_of(halved, jnp.abs(X)) == "while_loop"


def test_images_with_channels_last() -> None:
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, image):
            h = nn.relu(nn.Conv(4, (3, 3))(image))
            h = nn.avg_pool(nn.max_pool(h, (2, 2), (2, 2)), (2, 2), (2, 2))
            return nn.Dense(3)(h.reshape(h.shape[0], -1))

    image = jax.random.normal(KEY, (2, 8, 8, 3))
    variables = Net().init(KEY, image)
    trace = trace_function(Net(), (variables, image))
    expected = "Net(image) conv_channels_last relu max_pool_channels_last avg_pool_channels_last reshape matmul add"
    assert shown(trace.root).split() == expected.split()
    assert sorted(trace.parameters) == ["Conv_0.bias", "Conv_0.kernel", "Dense_0.bias", "Dense_0.kernel"]
    got, _ = replay(trace, host(image))
    np.testing.assert_allclose(got, Net().apply(variables, image), 1e-5, 1e-6)


def test_state_of_nnx_is_written() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.linear = nnx.Linear(6, 4, rngs=nnx.Rngs(0))
            self.norm = nnx.BatchNorm(4, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.norm(self.linear(x))

    model = Net()
    model.train()
    trace = trace_function(model, (X,))
    got, written = replay(trace, host(X))
    np.testing.assert_allclose(got, model(X), 1e-4, 1e-5)
    assert sorted(written) == ["norm.mean", "norm.var"] and sorted(trace.buffers) == sorted(written)
    np.testing.assert_allclose(written["norm.mean"], model.norm.mean[...], 1e-5, 1e-6)


def test_derivatives_of_ones_own_are_noted() -> None:
    @jax.custom_jvp
    def rounded(x):
        return jnp.round(x)

    rounded.defjvp(lambda p, t: (rounded(*p), t[0]))

    @jax.custom_jvp
    def sine(x):
        return jnp.sin(x)

    sine.defjvp(lambda p, t: (sine(*p), jnp.cos(p[0]) * t[0]))
    (note,) = check(lambda x: sine(rounded(x)), X).notes
    assert "the derivative that rounded has of its own differs" in note and "test_jax_traces.py:" in note


def test_functions_and_their_names() -> None:
    @jax.jit
    def doubled(values):
        total = values + values
        return jnp.tanh(total)

    trace = check(lambda x: doubled(doubled(x)), X)
    assert (
        shown(trace.root) == "function(x)\n  doubled(values)\n    add\n    tanh\n  doubled(values)\n    add\n    tanh"
    )
    assert trace.root.calls[0].calls[0].names == ("total",)


def test_what_cannot_be_said_is_an_error_with_its_line() -> None:
    def program(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    with pytest.raises(NotImplementedError, match="calls a function of the host") as error:
        trace_function(program, (X,))
    assert "test_jax_traces.py:" in error.value.__notes__[0]


def test_a_namespace_is_that_of_an_array() -> None:
    def fn() -> Any:
        return jnp.arange(3.0) * 2

    with pytest.raises(NotExpressibleError, match="fn creates arrays without having one as an argument"):
        tg.source(fn, onto="array_api")


@pytest.mark.parametrize("onto", ["numpy", "torch"])
def test_constants_and_numbers_are_results_too(onto: str) -> None:
    def fn(x: Any) -> Any:
        return {"x": x * 2, "three": jnp.asarray(3), "row": (jnp.arange(20) * 1.5, 0, jax.nn.softmax(x[:0]))}

    written = tg.source(fn, np.ones(3, np.float32), onto=onto)
    assert written.report.ok
