"""Weights that a network computes of its parameters: normalized ones."""

import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.porting.mapping import Mapping

X = np.random.default_rng(0).standard_normal((5, 4)).astype("f")
parametrizations = torch.nn.utils.parametrizations
NORM = parametrizations.weight_norm


class Layers(nn.Module):
    def __init__(self, of=lambda layer: layer):
        super().__init__()
        self.a, self.b = of(nn.Linear(4, 6)), of(nn.Linear(6, 3))

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


class Convolutions(nn.Module):
    def __init__(self, of=lambda layer: layer):
        super().__init__()
        self.a, self.b = of(nn.Conv1d(4, 6, 3, padding=1)), nn.Conv1d(6, 3, 1)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def whole(ported):
    assert ported.ok and not ported.mapping.unmatched, str(ported)
    assert all(c.ok for c in ported.report.comparisons) and ported.report.comparisons
    return ported


def loaded(target, arrays):
    target.load_state_dict({n: torch.from_numpy(np.array(x)) for n, x in arrays.items()}, strict=False)
    return target


@pytest.mark.parametrize("names", ["computed plain", "plain computed", "computed computed"])
@pytest.mark.parametrize("kind", [Layers, Convolutions])
def test_weight_norm(kind, names, tmp_path):
    source, target = (kind(NORM).eval() if name == "computed" else kind().eval() for name in names.split())
    x = X if kind is Layers else np.random.default_rng(0).standard_normal((2, 4, 7)).astype("f")
    ported = whole(tg.port(source, target, x))
    state = {n: v.numpy() for n, v in source.state_dict().items()}
    ported.mapping.save(tmp_path / "m.json")
    namespace = {"__name__": "converter"}
    exec(ported.source(), namespace)
    for arrays in (
        ported.convert(state),
        Mapping.load(tmp_path / "m.json").convert(state),
        namespace["convert"](state),
    ):
        found = loaded(target, arrays)(torch.from_numpy(x)).detach()
        torch.testing.assert_close(found, source(torch.from_numpy(x)).detach(), rtol=1e-5, atol=1e-5)
    if names == "computed computed":
        assert all(e.sources == [e.target] for e in ported.mapping)
    if names == "plain computed":
        assert ported.mapping["a.parametrizations.weight.original1"].sources == ["a.weight"]


def test_spectral_norm_in_evaluation():
    source = Layers(parametrizations.spectral_norm).eval()
    ported = whole(tg.port(source, Layers().eval(), X))
    found = loaded(Layers(), ported.weights)(torch.from_numpy(X)).detach()
    torch.testing.assert_close(found, source(torch.from_numpy(X)).detach(), rtol=1e-5, atol=1e-5)


def test_a_target_whose_parameters_do_not_follow():
    ported = tg.port(Layers().eval(), Layers(parametrizations.spectral_norm).eval(), X)
    assert set(ported.mapping.unmatched) >= {"a.parametrizations.weight.original"}, str(ported)
    assert "does not follow from" in ported.mapping["a.parametrizations.weight.original"].note
    assert {"a.bias", "b.bias"}.isdisjoint(ported.mapping.unmatched)


def test_weight_norm_of_flax():
    nnx = pytest.importorskip("flax.nnx")

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.a = nnx.WeightNorm(nnx.Linear(4, 6, rngs=rngs), rngs=rngs)
            self.b = nnx.Linear(6, 3, rngs=rngs)

        def __call__(self, x):
            return self.b(nnx.tanh(self.a(x)))

    target = Network(nnx.Rngs(0))
    ported = whole(tg.port(target, Layers().eval(), X))
    found = loaded(Layers(), ported.weights)(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(found, np.asarray(target(X)), rtol=1e-5, atol=1e-5)
    whole(tg.port(Layers(NORM).eval(), target, X))


def test_spectral_norm_of_keras():
    keras = pytest.importorskip("keras")
    layers = keras.layers
    source = keras.Sequential(
        [layers.Input((4,)), layers.SpectralNormalization(layers.Dense(6, "tanh")), layers.Dense(3)]
    )
    ported = whole(tg.port(source, Layers().eval(), X))
    found = loaded(Layers(), ported.weights)(torch.from_numpy(X)).detach().numpy()
    np.testing.assert_allclose(found, np.asarray(source(X, training=False)), rtol=1e-5, atol=1e-5)


def test_a_scale_of_a_weight():
    """A number times the weight: a learning rate that is equal for all layers."""

    class Equalized(Layers):
        def forward(self, x):
            h = torch.tanh(nn.functional.linear(x, self.a.weight * 0.5, self.a.bias))
            return nn.functional.linear(h, self.b.weight * 0.25, self.b.bias)

    source = Equalized().eval()
    ported = whole(tg.port(source, Layers().eval(), X))
    np.testing.assert_array_equal(ported.weights["a.weight"], source.a.weight.detach().numpy() * np.float32(0.5))
