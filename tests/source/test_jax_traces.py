"""Traces of JAX programs: run on another backend they give what JAX gives, in the words that people use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tensorgraft.frontends.jax.sourced import trace_function
from tensorgraft.source.trace import Trace
from tests.source.replay import replay, said, shown

eqx = pytest.importorskip("equinox")
KEY = jax.random.key(0)


def host(x: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 1e-5) -> Trace:
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


def _is_held(x: Any, trace: Trace) -> bool:
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
    assert shown(trace.root).split() == "mlp(x) matmul add relu matmul add softmax".split()
    assert [step.names for step in trace.root.calls][-2] == ("logits",)


def test_transformer_of_equinox() -> None:
    block, x = Block(32, 4, KEY), jax.random.normal(KEY, (3, 6, 32))
    trace = check(jax.vmap(block), x)
    assert trace.name == "Block" and trace.root.doc == "A block of a transformer."
    assert [n for n in trace.parameters if n.startswith("n1")] == ["n1.weight", "n1.bias"]
    assert shown(trace.root) == """\
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
    assert said(check(block, x[0])) == said(trace)


def test_model_by_itself_and_as_an_argument() -> None:
    model = eqx.nn.MLP(8, 3, 16, 2, key=KEY)
    assert shown(check(model, jnp.ones(8)).root).split() == "MLP(x) linear relu linear relu linear".split()
    p, s = eqx.partition(model, eqx.is_inexact_array)
    trace = check(lambda params, x: jax.vmap(eqx.combine(params, s))(x), p, jnp.ones((4, 8)))
    assert list(trace.parameters) == [f"layers.{i}.{n}" for i in range(3) for n in ("weight", "bias")]
