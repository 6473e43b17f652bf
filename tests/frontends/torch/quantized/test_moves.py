"""Quantised tensors elsewhere: on other devices, in other dtypes, files and processes, under autocast."""

import copy
import pickle

import pytest
import torch
import torch.multiprocessing
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, default_collate

import tensorgraft as tg

pytestmark = pytest.mark.sampled

PLACES = ["cpu", "numpy", "torch", "jax", "tensorflow"]
on_each = pytest.mark.parametrize("place", PLACES)
SCHEMES = ["int4_per_group_32", "uint4_asymmetric_per_group_32", "int8_dynamic", "float8_e4m3"]


def device(place):
    return torch.device("cpu") if place == "cpu" else tg.device(place)


def weight(place, scheme="int4_per_group_32"):
    drawn = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)) * 0.1
    return tg.quantize(drawn, scheme).to(device(place))


def same(got, want, quantised=True):
    assert got.is_graft_quantized == quantised
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    got, want = (tg.dequantize(t).detach().cpu() for t in (got, want))
    assert torch.equal(got, want)


@on_each
def test_devices_keep_codes(place):
    for scheme in SCHEMES:
        w = weight(place, scheme)
        for other in ("cpu", "numpy", "torch", "jax"):
            there = w.to(device(other))
            assert there.device == device(other) and there.nbytes == w.nbytes
            same(there, w)
            same(w.t()[3:9].to(device(other)), tg.dequantize(w).t()[3:9])
    for dtype in (torch.int32, torch.uint8):  # the bits of numbers are bits
        same(w.view(dtype).cpu(), tg.dequantize(w).cpu().view(dtype), quantised=False)
    narrow = w.bfloat16()
    same(narrow.view(torch.float16).cpu(), tg.dequantize(narrow).cpu().view(torch.float16), quantised=False)


@on_each
def test_dtypes_of_modules(place):
    for convert in (nn.Module.half, nn.Module.bfloat16, nn.Module.double, lambda m: m.to(torch.float16)):
        model = nn.Linear(64, 16).to(device(place))
        tg.quantize_(model, "int4_per_group_32")
        dense = tg.dequantize(model.weight).detach()
        want = convert(nn.ParameterList([nn.Parameter(dense)]))[0]
        convert(model)
        assert isinstance(model.weight, nn.Parameter) and not model.weight.requires_grad
        same(model.weight, want)
        x = torch.ones(2, 64, dtype=want.dtype, device=device(place))
        got, want = model(x), F.linear(x, want, model.bias)
        assert got.dtype == want.dtype
        torch.testing.assert_close(got.detach().cpu(), want.detach().cpu(), rtol=1e-2, atol=1e-2)


@on_each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_gives_the_dtypes_of_dense_weights(place, dtype):
    rows = torch.tensor([0, 5], device=device(place))
    for scheme in ("int8_per_channel", "int4_per_group_32", "int8_dynamic"):
        w = weight(place, scheme)
        x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1)).to(device(place))
        for program in (
            lambda x, w: x @ w.t(),
            lambda x, w: F.linear(x.to(dtype), w),
            lambda x, w: torch.einsum("bk,nk->bn", x, w),
            lambda x, w: F.embedding(rows, w),
            lambda x, w: w.t(),
            lambda x, w: torch.cat([w, w]),
            lambda x, w: F.conv1d(x.detach()[..., None], w[..., None]),
            lambda x, w: F.conv1d(x.detach().to(dtype)[..., None], w[..., None]),
            lambda x, w: w.sum() + (x @ w.t()).sum(),
        ):
            results = []
            for used in (w, tg.dequantize(w)):
                leaf = x.clone().requires_grad_()
                with torch.autocast(x.device.type, dtype=dtype):
                    out = program(leaf, used)
                if out.requires_grad:
                    out.float().sum().backward()
                results.append((out, leaf.grad))
            (got, got_grad), (want, want_grad) = results
            assert got.dtype == want.dtype
            torch.testing.assert_close(tg.dequantize(got).float().cpu(), want.float().cpu(), rtol=5e-2, atol=5e-2)
            assert (got_grad is None) == (want_grad is None)
            if got_grad is not None:
                assert got_grad.dtype == want_grad.dtype
                torch.testing.assert_close(got_grad.cpu(), want_grad.cpu(), rtol=5e-2, atol=5e-2)
        if place not in ("cpu", "numpy"):
            return  # each dtype and scheme is compiled anew


def test_mixed_dtypes_are_refused_as_of_dense_weights():
    w, x = weight("numpy"), torch.ones(5, 64, dtype=torch.bfloat16, device=tg.device("numpy"))
    said = []
    for used in (w, tg.dequantize(w)):
        with pytest.raises(RuntimeError) as error:
            used @ x.t()
        said.append(str(error.value))
    assert said[0] == said[1]


@on_each
def test_copies(place):
    w = weight(place)
    for made in (copy.copy(w), copy.deepcopy(w), pickle.loads(pickle.dumps(w))):
        same(made, w)
        assert made.device == w.device
    same(copy.deepcopy(w.t()[2:5]), tg.dequantize(w).t()[2:5])
    model = pickle.loads(pickle.dumps(nn.ModuleList([nn.Linear(64, 16).to(device(place))])))
    tg.quantize_(model, "int4_per_group_32")
    again = copy.deepcopy(model)
    assert isinstance(again[0].weight, nn.Parameter)
    same(again[0].weight, model[0].weight)
    same(default_collate([w[0], w[1]]), tg.dequantize(w)[:2])
    same(list(DataLoader(w, batch_size=4))[-1], tg.dequantize(w)[-4:])


def _transposed(given, back):
    w = given.get()
    back.put(w.t()[1:3])
    given.get()


@pytest.mark.parametrize("place", ["cpu", "numpy"])
@pytest.mark.slow_with("cpu")
def test_other_processes(place):
    context = torch.multiprocessing.get_context("spawn")
    given, back = context.Queue(), context.Queue()
    child = context.Process(target=_transposed, args=(given, back))
    child.start()
    w = weight(place, "float8_e4m3")
    given.put(w)
    try:
        same(back.get(timeout=120), tg.dequantize(w).t()[1:3])
    finally:
        given.put(None)
        child.join(60)


@pytest.mark.parametrize("place", ["cpu", "numpy"])
def test_dequantize_in_transforms(place):
    w = weight(place)
    dense = tg.dequantize(w)
    torch.testing.assert_close(torch.func.grad(lambda w: (tg.dequantize(w) ** 2).sum())(w).cpu(), 2 * dense.cpu())
    torch.testing.assert_close(torch.vmap(lambda row: tg.dequantize(row) * 2)(w).cpu(), 2 * dense.cpu())
    torch.testing.assert_close(torch.func.grad(lambda x: (tg.dequantize(w) * x).sum())(dense).cpu(), dense.cpu())
