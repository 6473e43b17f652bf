"""Quantised tensors on the device: what holds for a tensor holds for them."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled

BACKENDS = ["numpy", "torch", "jax", "tensorflow", "cpu"]  # "cpu": ordinary tensors of PyTorch
on_each = pytest.mark.parametrize("backend", BACKENDS)


def device(backend):
    return torch.device("cpu") if backend == "cpu" else tg.device(backend)


def weight(backend, scheme="int8_per_channel", seed=0):
    dense = torch.randn(16, 64, generator=torch.Generator().manual_seed(seed)) * 0.1
    return tg.quantize(dense.to(device(backend)), scheme)


def inputs(backend):
    return torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(device(backend))


VIEWS = {
    "t": lambda w: w.t(),
    "permute, view": lambda w: w.view(4, 4, 64).permute(2, 0, 1),
    "rows": lambda w: w[2:9:2],
    "across groups": lambda w: w[:, 5:50],
    "flatten": lambda w: w.t().flatten(),
    "expand": lambda w: w.unsqueeze(0).expand(3, -1, -1),
    "chunks": lambda w: w.chunk(3, 1)[2],
    "index": lambda w: w[torch.tensor([3, 0], device=w.device)],
    "mask": lambda w: w[torch.arange(16, device=w.device) % 3 == 0],
    "cat": lambda w: torch.cat([w, w[:, :32]], 1),
    "clone": lambda w: w[:, 3:].clone(),
    "deepcopy": copy.deepcopy,
}


@on_each
@pytest.mark.parametrize("scheme", ["int8_per_channel", "int4_per_group_32"])
def test_views_are_exact_and_stay_quantised(backend, scheme):
    w = weight(backend, scheme)
    dense = tg.dequantize(w)
    for name, view in VIEWS.items():
        got, want = view(w), view(dense)
        assert got.is_graft_quantized, name
        assert not want.is_graft_quantized, name
        assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride()), name
        assert torch.equal(tg.dequantize(got).cpu(), want.cpu()), name


@on_each
@pytest.mark.parametrize("scheme", ["int8_per_channel", "int8_dynamic", "nf4_per_group_32"])
def test_products(backend, scheme):
    w, x = weight(backend, scheme), inputs(backend)
    dense = tg.dequantize(w)
    for product in (
        lambda w: x @ w.t(),
        lambda w: w @ x.T,
        lambda w: F.linear(x[None], w, torch.ones(16, device=w.device)),
        lambda w: torch.einsum("bk,nk->bn", x, w),
        lambda w: torch.mv(w, x[0]),
        lambda w: torch.bmm(x[None], w.t()[None]),
        lambda w: F.embedding(torch.tensor([0, 5], device=w.device), w),
        lambda w: torch.addmm(torch.ones(16, device=w.device), x, w.t()),
    ):
        got, want = tg.dequantize(product(w)).cpu(), product(dense).cpu()
        tolerance = 2e-2 if "dynamic" in scheme else 1e-5
        torch.testing.assert_close(got, want, rtol=1e-4, atol=tolerance * float(want.abs().max()))


@on_each
def test_models_are_quantised_trained_around_and_compiled(backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 32), nn.Linear(32, 8)).to(device(backend))
    model[2].weight = model[1 + 1].weight
    x = inputs(backend)
    want = model(x).detach().cpu()
    assert tg.quantize_(model, {"0": "int8_per_channel", "2": "int4_per_group_32", "*": None}) is model
    assert [m.weight.is_graft_quantized for m in (model[0], model[2], model[3])] == [True, True, False]
    got = model(x)
    assert (got.detach().cpu() - want).norm() < 0.1 * want.norm()
    got.sum().backward()  # what is not quantised is trained
    assert model[3].weight.grad is not None and model[0].weight.grad is None and model[0].bias.grad is not None
    step = tg.jit(model)
    with torch.no_grad():
        torch.testing.assert_close(step(x).cpu(), model(x).cpu())
        model[0].weight.mul_(2)
        assert model[0].weight.is_graft_quantized
        torch.testing.assert_close(step(x).cpu(), model(x).cpu())


def test_tied_weights_stay_tied():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(tg.device("numpy"))
    model[1].weight = model[0].weight
    tg.quantize_(model, "int8_per_channel")
    assert model[0].weight is model[1].weight and model[0].weight.is_graft_quantized


@on_each
def test_files_keep_codes(backend):
    model = nn.Linear(64, 16).to(device(backend))
    tg.quantize_(model, "int4_per_group_32")
    dense = tg.dequantize(model.weight).cpu()
    file = io.BytesIO()
    torch.save({**model.state_dict(), "view": model.weight.detach().t()[3:9]}, file)
    assert len(file.getvalue()) < 6000  # dense weights alone are 4096 bytes, and 1000 of codes and scales are left
    here = model.weight.device
    other = tg.device("torch" if here.index == 1 else "numpy")
    for location, there in (("cpu", "cpu"), ({str(here): "cpu"}, "cpu"), (lambda s, place: s, "cpu"), (other, other)):
        file.seek(0)
        moved = torch.load(file, map_location=location)
        assert {t.device for t in moved.values()} == {torch.device(there)} and moved["weight"].is_graft_quantized
    with pytest.raises(NotImplementedError, match="legacy format"):
        torch.save(model.state_dict(), io.BytesIO(), _use_new_zipfile_serialization=False)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    assert state["weight"].is_graft_quantized and state["weight"].device == model.weight.device
    assert torch.equal(tg.dequantize(state["weight"]).cpu(), dense)
    assert torch.equal(tg.dequantize(state["view"]).cpu(), dense.t()[3:9])
    other = nn.Linear(64, 16).to(device(backend))
    other.load_state_dict({"weight": state["weight"], "bias": state["bias"]})  # into dense parameters: dense
    assert torch.equal(other.weight.detach().cpu(), dense)
    other.load_state_dict({"weight": state["weight"], "bias": state["bias"]}, assign=True)
    assert other.weight.is_graft_quantized


def test_sizes():
    w = weight("numpy", "int4_per_group_32")
    assert w.nbytes == 16 * 64 // 2 + 4 * 16 * 2
    assert (w.element_size(), w.numel()) == (4, 16 * 64)
    assert w.cpu().device.type == "cpu" and torch.equal(w.cpu(), tg.dequantize(w).cpu())
    assert w.to(torch.bfloat16).is_graft_quantized and w.to(torch.bfloat16).dtype == torch.bfloat16
    assert torch.equal(w.double().cpu(), w.cpu().double()) and w.double().dtype == torch.float64
    assert not w.int().is_graft_quantized


def test_models_are_left_as_they_were():
    model = nn.Sequential(nn.Linear(64, 32), nn.Linear(32, 10)).to(device("numpy"))
    with pytest.raises(ValueError, match=r"1\.weight: .*the float32 tensor of shape \(10, 32\) has NaN"):
        with torch.no_grad():
            model[1].weight[0, 0] = float("nan")
        tg.quantize_(model, "int8_per_channel")
    assert not model[0].weight.is_graft_quantized
    with pytest.raises(ValueError, match="no weight fits the filter"):
        tg.quantize_(model, "int8_per_channel", filter="nothing")
    with pytest.raises(ValueError, match=r"is on meta: there are quantised tensors on the CPU and on tg.device"):
        tg.quantize_(nn.Linear(4, 4, device="meta"), "int8_per_channel")
