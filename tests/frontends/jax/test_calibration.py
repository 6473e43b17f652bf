"""Equinox models whose inputs are measured, as they are, compiled and batched."""

import equinox as eqx
import jax
import numpy as np
import pytest

import tensorgraft as tg

MIX = jax.random.normal(jax.random.key(9), (8, 32))


def inputs(seed, n=200):
    a, b = jax.random.split(jax.random.key(seed))
    return jax.random.normal(a, (n, 8)) @ MIX + 0.1 * jax.random.normal(b, (n, 32))


def sqnr(got, want):
    got, want = np.asarray(got), np.asarray(want)
    return 10 * np.log10((want**2).mean() / ((got - want) ** 2).mean())


@pytest.fixture(scope="module")
def model():
    return eqx.nn.MLP(32, 8, 32, 1, key=jax.random.key(0))


RUNS = {
    "jit": lambda m: [eqx.filter_jit(lambda m, x: jax.vmap(m)(x))(m, inputs(1)[i : i + 100]) for i in (0, 100)],
    "scan": lambda m: jax.lax.scan(lambda c, x: (c, m(x)), 0, inputs(1)),
    "grad": lambda m: jax.grad(lambda x: jax.vmap(m)(x).sum())(inputs(1)),
}


def test_static_activations_and_gptq(model):
    x = inputs(2)
    want = jax.vmap(model)(x)
    scales = set()
    for run in RUNS.values():
        made = tg.quantize_(model, "int8_static", calibrate=run)
        scales.add(int(made.layers[0].weight.parts[-1]))  # its bits
    assert len(scales) == 1  # whatever runs, all of it is seen
    assert sqnr(jax.vmap(made)(x), want) > 33
    nearest = sqnr(jax.vmap(tg.quantize_(model, "int4_per_group_16"))(x), want)
    good = tg.quantize_(model, "int4_per_group_16", calibrate=RUNS["jit"], rounding="gptq")
    assert sqnr(jax.vmap(good)(x), want) > nearest + 2


def test_bad_input(model):
    x = inputs(1)[0]
    with pytest.raises(ValueError, match=r"batch 1: what multiplies layers.0.weight, of shape \(1, 32\), has NaN"):
        tg.quantize_(model, "int8_static", calibrate=[x, x * float("nan")])
    with pytest.raises(ValueError, match=r"no input reached layers.1.weight in the run"):
        tg.quantize_(model, "int8_static", calibrate=lambda m: m.layers[0](x))
    q = tg.quantize(model.layers[0].weight, "int8_static", inputs=x)
    assert sqnr(q @ x, model.layers[0].weight @ x) > 30
