"""Models that are trained with rounded weights, then quantised."""

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.quantization import convert_, fake_quantize, prepare_qat_


def device(backend):
    return torch.device("cpu") if backend == "cpu" else tg.device(backend)


def data(backend):
    g = torch.Generator().manual_seed(3)
    x = torch.randn(64, 32, generator=g)
    return x.to(device(backend)), (x @ torch.randn(32, 4, generator=g)).tanh().to(device(backend))


@pytest.mark.parametrize(
    ("backend", "scheme", "compiled"),
    [
        ("numpy", "int4_per_group_32", False),
        ("numpy", "int8_dynamic", False),
        ("cpu", "int4_per_group_32", False),
        ("cpu", "int8_dynamic", False),
        ("torch", "int4_per_group_32", True),
        ("jax", "int8_dynamic", True),
        ("tensorflow", "int8_dynamic", True),
        ("tensorflow", "int4_per_group_32", True),
    ],
)
def test_the_quantised_model_is_the_one_that_was_trained(backend, scheme, compiled):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 4)).to(device(backend))
    x, y = data(backend)
    assert prepare_qat_(model, {"2": None, "*": scheme}) is model
    assert len(list(model.parameters())) == 4
    optimizer = torch.optim.Adam(model.parameters(), 0.02)

    def step():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = tg.jit(step) if compiled else step
    losses = [float(run()) for _ in range(15)]
    assert losses[-1] < 0.5 * losses[0]
    with torch.no_grad():
        trained = model(x).cpu()
        assert convert_(model) is model
        assert model[0].weight.is_graft_quantized and not hasattr(model[0], "parametrizations")
        assert set(model.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
        torch.testing.assert_close(model(x).cpu(), trained, rtol=1e-4, atol=1e-5)


def test_derivatives_and_batches():
    x = torch.randn(3, 8, 32, generator=torch.Generator().manual_seed(0)).to(tg.device("torch"))

    def fake(x):
        return fake_quantize(x, "int4_per_group_32")

    want = tg.dequantize(tg.quantize(x, "int4_per_group_32"))
    assert torch.equal(torch.vmap(fake)(x).cpu(), want.cpu())
    g = torch.func.grad(lambda x: (fake(x) ** 2).sum())(x)
    torch.testing.assert_close(g.cpu(), 2 * want.cpu())
    _, moved = torch.func.jvp(fake, (x,), (want,))
    assert torch.equal(moved.cpu(), want.cpu())


def test_tied_weights_are_converted_once():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).to(tg.device("numpy"))
    model[1].weight = model[0].weight
    convert_(prepare_qat_(model, "int8_per_channel"))
    assert model[0].weight is model[1].weight and model[0].weight.is_graft_quantized


def test_quantisation_inside_a_compiled_function():
    w = torch.randn(8, 32).to(tg.device("jax"))
    step = tg.jit(lambda w: tg.dequantize(tg.quantize(w, "int8_per_channel")) + 0)
    for weight in (w, -2 * w):
        want = tg.dequantize(tg.quantize(weight, "int8_per_channel"))
        torch.testing.assert_close(step(weight).cpu(), want.cpu())


def test_models_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(30, 8)).to(tg.device("numpy"))
    with pytest.raises(ValueError, match=r"prepare_qat_: 1\.weight: .*does not divide into groups of 32"):
        prepare_qat_(model, "int4_per_group_32")
    assert not hasattr(model[0], "parametrizations")
    with pytest.raises(ValueError, match="no prepared weight"):
        convert_(model)
    prepare_qat_(model, "int8_per_channel")
    with pytest.raises(ValueError, match=r"0\.weight is already parametrised"):
        prepare_qat_(model, "int8_per_channel")
    with torch.no_grad():
        model[1].parametrizations.weight.original[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"convert_: 1\.weight: .*has NaN"):
        convert_(model)
    assert hasattr(model[0], "parametrizations") and not model[0].weight.is_graft_quantized
