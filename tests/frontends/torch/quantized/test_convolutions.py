"""Convolutions with quantised weights: PyTorch's with the dequantised ones, results and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg
from tensorgraft.quantization import Scheme

BACKENDS = ["numpy", "torch", "cpu", "jax", "tensorflow"]
on_each = pytest.mark.parametrize("backend", BACKENDS)
SCHEMES = [
    "int8_per_channel",
    "int8_dynamic",
    "uint4_asymmetric_per_tensor",
    "nf4_per_channel",
    Scheme("int8", axis=1),
    Scheme("int4", "block", block=(2, *(1,) * 2)),
]
SETTINGS = [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2}]


def device(backend):
    return torch.device("cpu") if backend == "cpu" else tg.device(backend)


def drawn(backend, *shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device(backend))


def ran(convolve, x, w, bias, **options):
    x, bias = (t.detach().clone().requires_grad_() for t in (x, bias))
    out = convolve(x, w, bias, **options)
    out.square().mean().backward()
    return out, x.grad, bias.grad


def cases():
    for backend in BACKENDS:
        for dims in (1, 2, 3):
            for scheme in SCHEMES:
                few = backend in BACKENDS[:3]
                if (few or (dims, scheme) in ((2, SCHEMES[0]),)) and (dims == 2 or scheme in SCHEMES[:3]):
                    yield pytest.param(backend, dims, scheme, id=f"{backend}-{dims}-{scheme}")


@pytest.mark.sampled(by_parameters=True)
@pytest.mark.parametrize(("backend", "dims", "scheme"), list(cases()))
def test_as_with_dense_weights(backend, dims, scheme):
    tg.quantization.reset()
    for transposed in (False, True):
        convolve = getattr(F, f"conv{'_transpose' * transposed}{dims}d")
        for groups, options in ((1, SETTINGS[0]), (2, SETTINGS[1]), (1, SETTINGS[2]))[
            slice(3) if backend in BACKENDS[:3] else slice(1, 2)
        ]:
            w = tg.quantize(drawn(backend, 8, 4, *(3,) * dims), scheme)
            channels = 8 if transposed else 4 * groups
            bias = drawn(backend, 4 * groups if transposed else 8, seed=2)
            for extent in (6, 1) if options else (6,):  # more comes out than there are weights, or less
                x = drawn(backend, 2, channels, *(extent,) * dims, seed=1)
                got = ran(convolve, x, w, bias, groups=groups, **options)
                want = ran(convolve, x.cpu(), tg.dequantize(w).cpu(), bias.cpu(), groups=groups, **options)
                for a, b in zip(got, want, strict=True):
                    assert not a.is_graft_quantized
                    assert a.stride() == b.stride()
                    torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
    assert not tg.quantization.report()["dequantized"]


@on_each
def test_models(backend):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 2, stride=2),
        nn.Conv2d(8, 8, 1, groups=2),
        nn.Flatten(),
        nn.Linear(8 * 64, 4),
    ).to(device(backend))
    x = drawn(backend, 2, 8, 4, 4)
    want = model(x).detach().cpu()
    convolutions = (nn.Conv2d, nn.ConvTranspose2d)
    tg.quantize_(model, {"4": "int8_per_channel", "*": "int4_per_group_8"}, filter=convolutions)
    assert [p.is_graft_quantized for m in model if (p := getattr(m, "weight", None)) is not None and p.dim() > 1] == [
        True,
        True,
        True,
        False,
    ]
    assert model[0].weight.nbytes == 16 * 8 * 9 // 2 + 4 * 16 * 9
    out = model(x)
    assert (out.detach().cpu() - want).norm() < 0.2 * want.norm()
    out.square().mean().backward()
    assert model[0].bias.grad is not None and model[0].weight.grad is None
    run = model.eval() if backend == "cpu" else tg.jit(model.eval())
    torch.testing.assert_close(run(x).detach().cpu(), model(x).detach().cpu(), rtol=1e-4, atol=1e-5)
    other = nn.Conv2d(8, 16, 3, padding=1).to(device(backend))
    other.load_state_dict(model[0].state_dict(), assign=True)
    with torch.no_grad():
        torch.testing.assert_close(other(x).cpu(), model[0](x).cpu())


def test_what_is_quantised_by_default_and_what_cannot_be():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 4)).to(tg.device("numpy"))
    tg.quantize_(model, "int8_per_channel")
    assert not model[0].weight.is_graft_quantized and model[2].weight.is_graft_quantized
    with pytest.raises(ValueError, match=r"0\.weight: .*does not divide into groups of 32 along axis 1, which has 3"):
        tg.quantize_(model, "int4_per_group_32", filter=nn.Conv2d)
    with pytest.raises(
        ValueError, match="0 is a Conv2d: the inputs of convolutions are neither measured nor quantised"
    ):
        tg.quantize_(model, "int8_static", filter=nn.Conv2d, calibrate=[])
    with pytest.raises(TypeError, match=r"expected filter to be a pattern of names, a function, a class"):
        tg.quantize_(model, "int8_per_channel", filter=3)
    assert not model[0].weight.is_graft_quantized


def test_training_for_it():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(8, 4, 3), nn.ConvTranspose1d(4, 8, 3)).to(tg.device("numpy"))
    tg.quantization.prepare_qat_(model, "int4_per_group_4", filter=(nn.Conv1d, nn.ConvTranspose1d))
    x = drawn("numpy", 2, 8, 6)
    out = model(x)
    out.square().mean().backward()
    assert model[0].parametrizations.weight.original.grad is not None
    tg.quantization.convert_(model)
    assert model[0].weight.is_graft_quantized and model[1].weight.is_graft_quantized
    torch.testing.assert_close(model(x).cpu(), out.cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_frozen_dense_weights_with_trained_biases(dims):
    """PyTorch's meta function leaves out the gradient that is not asked for."""
    x, w, bias = drawn("cpu", 2, 4, *(5,) * dims), drawn("cpu", 8, 4, *(3,) * dims), drawn("cpu", 8)
    want = ran(getattr(F, f"conv{dims}d"), x, w, bias)
    got = ran(getattr(F, f"conv{dims}d"), *(t.to(device("numpy")) for t in (x, w, bias)))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
