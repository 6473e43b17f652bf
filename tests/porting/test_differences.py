"""`tg.port` of networks that differ, or that the example shows in part: the mapping is whole, nothing is guessed."""

import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg

RNG = np.random.default_rng(0)


class Residual(nn.Module):
    def __init__(self, epsilon=1e-5, stride=2):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride, padding=1, bias=False)
        self.norm, self.conv, self.out = nn.BatchNorm2d(8, epsilon), nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        return self.out((x + torch.relu(self.conv(x))).mean((2, 3)))


def residual_of_keras(epsilon=1e-5, padding=((1, 1), (1, 1)), side=12):
    from keras import Input, Model, layers

    inputs = Input((side, side, 3))
    x = layers.ZeroPadding2D(padding)(inputs)
    x = layers.Conv2D(8, 3, 2, use_bias=False, name="stem")(x)
    x = layers.ReLU()(layers.BatchNormalization(epsilon=epsilon, name="norm")(x))
    h = layers.ReLU()(layers.Conv2D(8, 3, padding="same", name="conv")(x))
    x = layers.GlobalAveragePooling2D()(layers.Add()([x, h]))
    return Model(inputs, layers.Dense(5, name="out")(x))


def ported(side=12, **changes):
    pytest.importorskip("keras")
    x = RNG.standard_normal((2, 3, side, side)).astype("f")
    target = residual_of_keras(side=side, **changes)
    return tg.port(Residual().eval(), target, x, target_example=[x.transpose(0, 2, 3, 1)])


def test_zeros_around_an_image_are_padding():
    found = ported()
    assert found.ok, found
    assert found.mapping["stem.kernel"].steps == "source['stem.weight'].transpose(2, 3, 1, 0)"


def test_an_epsilon_is_named_once():
    found = ported(epsilon=1e-3)
    assert not found.mapping.unmatched
    (difference,) = found.report.differences
    assert difference.reason == "epsilon" and "0.001 here, 1e-05 there" in difference.text
    assert not found.ok


def test_padding_that_is_not_symmetric_is_named():
    found = ported(padding=((0, 1), (0, 1)))
    assert not found.mapping.unmatched
    assert found.report.first_difference.reason == "padding"
    assert found.mapping["stem.kernel"].steps == "source['stem.weight'].transpose(2, 3, 1, 0)"


def test_images_smaller_than_the_kernel():
    """After the stem an image has 2 x 2 places: no window of 3 x 3 is without padding."""
    found = ported(side=4)
    assert found.ok, found


def test_results_of_which_one_program_has_more():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(4, 6, batch_first=True)

        def forward(self, x):
            return self.layer(x)

    class One(Both):
        def forward(self, x):
            return self.layer(x)[0]

    found = tg.port(Both().eval(), One().eval(), RNG.standard_normal((2, 5, 4)).astype("f"))
    assert found.ok, found
    assert [c.what for c in found.report.comparisons] == ["results", "results", "gradients"]


def test_networks_of_another_structure():
    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.b(torch.tanh(self.a(x)))

    x = RNG.standard_normal((2, 3, 12, 12)).astype("f")
    found = tg.port(Residual().eval(), Dense().eval(), x, target_example=[RNG.standard_normal((2, 8)).astype("f")])
    assert set(found.mapping.unmatched) == {"a.bias", "a.weight", "b.bias", "b.weight"}
    assert not found.ok
    with pytest.raises(ValueError, match="no array of Residual is known for"):
        found.convert(Residual().state_dict())


def test_a_number_that_is_added_to_what_is_normalized():
    """The 3 of a hard swish: it is of no statistics, though scale and shift with it are as many numbers."""

    class Swish(nn.Module):
        def __init__(self, written):
            super().__init__()
            self.conv, self.norm, self.squeeze = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
            self.out, self.written = nn.Conv2d(8, 5, 1), written

        def forward(self, x):
            x = self.norm(self.conv(x))
            if self.written:
                x = nn.functional.relu6(x + 3) * (1 / 6) * x
                return self.out(x * (nn.functional.relu6(3 + self.squeeze(x)) / 6))
            x = nn.functional.hardswish(x)
            return self.out(x * nn.functional.hardsigmoid(self.squeeze(x)))

    x = RNG.standard_normal((2, 3, 6, 6)).astype("f")
    for source, target in ((False, True), (True, False), (True, True)):
        found = tg.port(Swish(source).eval(), Swish(target).eval(), x)
        assert found.ok, found
        for entry in found.mapping:
            assert entry.sources == [entry.target], found


def test_a_number_that_is_of_a_bias():
    """The 1 of a forget gate, in either program."""

    class Gate(nn.Module):
        def __init__(self, number):
            super().__init__()
            self.gate, self.value, self.out = nn.Linear(4, 6), nn.Linear(4, 6), nn.Linear(6, 2)
            self.number = number

        def forward(self, x):
            gate = self.gate(x)
            gate = gate + self.number if self.number else gate
            return self.out(torch.sigmoid(gate) * torch.tanh(self.value(x)))

    x = RNG.standard_normal((5, 4)).astype("f")
    for source, target in ((0, 1), (1, 0), (2, 1)):
        found = tg.port(Gate(source).eval(), Gate(target).eval(), x)
        assert found.ok, found
        assert f"{float(source - target)!r}" in found.mapping["gate.bias"].steps
        assert found.mapping["value.bias"].sources == ["value.bias"]


def test_rounding_does_not_add_up():
    """A constant of float32 in each of many layers: every step is equal to rounding."""

    class Deep(nn.Module):
        def __init__(self, constant):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(24))
            self.constant = constant

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x)) * (x / self.constant if self.constant > 1 else x * self.constant)
            return x

    x = RNG.standard_normal((4, 16)).astype("f")
    found = tg.port(Deep(6.0).eval(), Deep(float(np.float32(1 / 6))).eval(), x)
    assert found.ok, found
