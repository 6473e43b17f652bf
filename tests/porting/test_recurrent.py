"""Recurrent and gated networks whose gates have another order, or are one minus the other program's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.porting.mapping import Mapping

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 5, 4)).astype("f")


def dense(*shape):
    return RNG.standard_normal(shape).astype("f")


def gru(order, complement):
    """A GRU with one kernel of gates in an order, and one bias; the reset gate before the product."""

    def step(p, h, x):
        a, b = x @ p["w"] + p["b"], h @ p["u"]
        at = {g: slice(6 * k, 6 * k + 6) for k, g in enumerate(order)}
        z, r = (jax.nn.sigmoid(a[:, at[g]] + b[:, at[g]]) for g in "zr")
        n = jnp.tanh(a[:, at["n"]] + (r * h) @ p["u"][:, at["n"]])
        new = (1 - z) * h + z * n if complement else z * h + (1 - z) * n
        return new, new

    def run(p, x):
        return jax.lax.scan(lambda h, x: step(p, h, x), jnp.zeros((len(x), 6)), x.transpose(1, 0, 2))[1]

    return run, {"w": dense(4, 18), "u": dense(6, 18), "b": dense(18)}


@pytest.mark.parametrize("orders", ["zrn zrn", "zrn rzn", "nzr zrn"])
@pytest.mark.parametrize("complement", [False, True])
def test_an_update_gate_of_the_other_sign(orders, complement, tmp_path):
    first, second = orders.split()
    ported = tg.port(gru(first, complement), gru(second, not complement), X)
    assert ported.ok and not ported.mapping.unmatched, str(ported)
    weights = {n: dense(*e.shape) for n, e in ported.mapping.entries.items()}
    expected = {
        n: np.concatenate([(-1 if g == "z" else 1) * np.split(x, 3, -1)[first.index(g)] for g in second], -1)
        for n, x in weights.items()
    }
    ported.mapping.save(tmp_path / "m.json")
    namespace = {"__name__": "converter"}
    exec(ported.source(), namespace)
    for found in (ported.convert(weights), Mapping.load(tmp_path / "m.json").convert(weights)):
        for name, x in expected.items():
            np.testing.assert_array_equal(found[name], x)
            np.testing.assert_array_equal(namespace["convert"](weights)[name], x)


def test_a_sum_of_biases_of_the_other_sign():
    """PyTorch's reset gate comes after the product, and it has two biases."""

    def step(p, h, x):
        a, b = x @ p["w"], h @ p["u"]
        (zx, rx, nx), (zh, rh, nh) = jnp.split(a, 3, -1), jnp.split(b, 3, -1)
        z, r = jax.nn.sigmoid(zx + zh + p["bz"]), jax.nn.sigmoid(rx + rh + p["br"])
        n = jnp.tanh(nx + p["bx"] + r * (nh + p["bh"]))
        new = h + z * (n - h)
        return new, new

    def run(p, x):
        return jax.lax.scan(lambda h, x: step(p, h, x), jnp.zeros((len(x), 6)), x.transpose(1, 0, 2))[1]

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(4, 6, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0]

    shapes = {"w": dense(4, 18), "u": dense(6, 18), **{n: dense(6) for n in ("bz", "br", "bx", "bh")}}
    source = Layer().eval()
    ported = tg.port(source, (run, shapes), X)
    assert ported.ok and not ported.mapping.unmatched, str(ported)
    bias = sum(source.state_dict()[f"layer.bias_{n}h_l0"].numpy()[6:12].astype("f8") for n in "ih")
    np.testing.assert_allclose(ported.weights["bz"], -bias, rtol=1e-6)


def test_both_directions_of_two_layers():
    keras = pytest.importorskip("keras")
    layers = keras.layers
    target = keras.Sequential([layers.Input((5, 4))])
    for _ in range(2):
        target.add(layers.Bidirectional(layers.LSTM(6, return_sequences=True)))

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.LSTM(4, 6, 2, batch_first=True, bidirectional=True)

        def forward(self, x):
            return self.layers(x)[0]

    ported = tg.port(Layers().eval(), target, X)
    assert ported.ok and not ported.mapping.unmatched, str(ported)
    for entry in ported.mapping:
        assert len({n.rpartition("_l")[2] for n in entry.sources}) == 1
        assert all(("backward" in entry.target) == n.endswith("reverse") for n in entry.sources)


def test_highway():
    class Highway(nn.Module):
        def __init__(self, complement):
            super().__init__()
            self.gate, self.value, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
            self.complement = complement

        def forward(self, x):
            t, h = torch.sigmoid(self.gate(x)), torch.relu(self.value(x))
            return self.out(t * x + (1 - t) * h if self.complement else t * h + (1 - t) * x)

    ported = tg.port(Highway(False).eval(), Highway(True).eval(), X)
    assert ported.ok, str(ported)
    assert ported.mapping["gate.weight"].steps == "-source['gate.weight']"
    assert ported.mapping["gate.bias"].steps == "-source['gate.bias']"
    assert ported.mapping["value.weight"].steps == "source['value.weight']"


def test_no_sign_is_changed_without_a_gate():
    """Weights of the other sign would make these equal, but that is another network."""
    shapes = {"a": dense(4, 4), "b": dense(4, 3)}
    ported = tg.port(
        (lambda p, x: jnp.exp(x @ p["a"]) @ p["b"], shapes), (lambda p, x: jnp.exp(-(x @ p["a"])) @ p["b"], shapes), X
    )
    assert not ported.ok
    assert all(e.sources == [e.target] and "-" not in e.steps for e in ported.mapping if e.expression), str(ported)
