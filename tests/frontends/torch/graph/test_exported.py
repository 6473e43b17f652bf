"""Programs of `torch.export` as pure functions of JAX."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import tensorgraft as tg

jax = pytest.importorskip("jax")

pytestmark = [  # capturing looks at everything
    pytest.mark.filterwarnings("ignore:.*deprecated:"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, scale=2.0):
        self.calls.add_(1)
        y = self.norm(self.linear(x)).relu() * scale
        y = y + torch.arange(4) + torch.tensor([1.0, 2.0, 3.0, 4.0])
        return {"y": y, "z": torch.cond(x[0, 0] > 0, torch.sin, torch.cos, (y,))}


@pytest.fixture(scope="module")
def captured():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(3, 4)
    shapes = {"x": {0: torch.export.Dim("n", min=2)}}
    return model, x, torch.export.export(model, (x,), dynamic_shapes=shapes)


@pytest.mark.parametrize("what", [lambda program: program, lambda program: program.module()])
def test_an_exported_program_is_a_pure_function(captured, what):
    model, x, program = captured
    model = copy.deepcopy(model)
    apply, params, buffers = tg.graft(what(program), onto="jax")
    assert set(params) == set(dict(model.named_parameters()))
    assert {"calls", "norm.running_mean", "norm.num_batches_tracked"} <= set(buffers)

    def loss(params, buffers, x):
        out, buffers = apply(params, buffers, x)
        return out["y"].sum() + out["z"].sum(), buffers

    (value, after), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, buffers, x.numpy())
    out = model(x)
    expected = out["y"].sum() + out["z"].sum()
    expected.backward()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-5)
    for name, p in model.named_parameters():
        np.testing.assert_allclose(grads[name], p.grad.numpy(), rtol=1e-4, atol=1e-5)
    for name, b in model.named_buffers():
        np.testing.assert_allclose(after[name], b.numpy(), rtol=1e-5)
    assert apply(params, buffers, np.ones((5, 4), np.float32))[0]["y"].shape == (5, 4)
    assert program.module()(x)["y"].device.type == "cpu"  # the program is as it was
