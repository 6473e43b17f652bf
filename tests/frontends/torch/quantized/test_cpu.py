"""Quantised tensors among ordinary CPU tensors: PyTorch's own rules, without a device of ours."""

import copy
import gc
import io
import pickle
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg

SCHEMES = ["int8_per_channel", "int4_per_group_32"]


def weight(scheme="int8_per_channel", shape=(16, 64)):
    return tg.quantize(torch.randn(shape, generator=torch.Generator().manual_seed(0)), scheme)


def inputs(rows=5):
    return torch.randn(rows, 64, generator=torch.Generator().manual_seed(1))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))


VIEWS = {
    "t": lambda w: w.t(),
    "rows": lambda w: w[2:9:2, 3:40],
    "diagonal": lambda w: w.diagonal(),
    "unfold": lambda w: w.unfold(1, 4, 2),
    "transposed, flat": lambda w: w.t().flatten(),
    "as_strided": lambda w: w.as_strided((3, 5), (1, 16), 7),
    "unbind": lambda w: w.unbind(1)[60],
    "split": lambda w: w.split([3, 13])[1],
    "stack": lambda w: torch.stack([w, w], 1),
    "cat": lambda w: torch.cat([w, w[:, :32]], 1),
    "repeat": lambda w: w.repeat(2, 1),
    "roll": lambda w: w.roll(3, 0),
    "flip": lambda w: w.flip(0),
    "gather": lambda w: w.gather(1, torch.tensor([[1], [2]])),
    "index": lambda w: w[:, torch.tensor([3, 0])],
    "mask": lambda w: w[torch.arange(16) % 3 == 0],
    "clone": lambda w: w.t().clone(),
    "double": lambda w: w.double(),
    "movedim": lambda w: w.view(4, 4, 64).movedim(0, 2),
}
DENSE = {
    "add": lambda w: w + 1,
    "add in another order": lambda w: w.t() + 1,
    "softmax": lambda w: w.softmax(1),
    "sort": lambda w: w.sort(1)[0],
    "int": lambda w: w.int(),
    "bits": lambda w: w.view(torch.int32),
    "zeros_like": lambda w: torch.zeros_like(w.t()),
    "mixed cat": lambda w: torch.cat([w, inputs(2)]),
    "conv1d": lambda w: F.conv1d(inputs().t()[None], w[:, :, None]),
    "complex": lambda w: w.to(torch.complex64),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_operators(scheme):
    w = weight(scheme)
    dense = tg.dequantize(w)
    assert w.device == torch.device("cpu") and not dense.is_graft_quantized
    for name, fn in {**VIEWS, **DENSE}.items():
        got, want = fn(w), fn(dense)
        assert got.is_graft_quantized == (name in VIEWS), name
        assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride()), name
        if name in VIEWS:
            assert torch.equal(tg.dequantize(got), want), name
        else:
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("scheme", [*SCHEMES, "int8_dynamic", "nf4_per_group_32"])
def test_products_three_times(scheme):
    """The second call records a program, the third runs it."""
    w, x, bias = weight(scheme), inputs(), torch.randn(16)
    dense = tg.dequantize(w)
    column = x.t().contiguous().t()
    for product in (
        lambda w: F.linear(x, w, bias),
        lambda w: F.linear(x[None], w),
        lambda w: F.linear(x[:0], w),
        lambda w: column @ w.t(),
        lambda w: w @ x.t(),
        lambda w: w @ x[0],
        lambda w: torch.einsum("bk,nk->nb", x, w),
        lambda w: torch.bmm(x[None], w.t()[None]),
        lambda w: torch.addmm(bias, x, w.t(), beta=0.5, alpha=2.0),
        lambda w: w @ w.t(),
    ):
        want = product(dense)
        got = [product(w) for _ in range(3)]
        assert torch.equal(got[0], got[1]) and torch.equal(got[0], got[2])
        assert type(got[2]) is torch.Tensor and (got[2].shape, got[2].stride()) == (want.shape, want.stride())
        assert (got[2] - want).norm() <= (2e-2 if "dynamic" in scheme else 1e-5) * want.norm()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_writes_show_in_every_view(scheme):
    w = weight(scheme)
    rows, version = w[2:4], w._version
    rows.zero_()
    assert bool((w[2:4] == 0).all()) and w._version > version and rows._base is w
    w.t()[5:9] = 3.0
    w[torch.tensor([0, 1])] = torch.ones(64)
    assert w.is_graft_quantized and float(w[0, 5]) == 1.0
    with pytest.raises(RuntimeError, match="single memory location"):
        w.add_(w.view(64, 16).t())
    w.mul_(2).t_().unsqueeze_(0)
    assert w.shape == (1, 64, 16) and float(w[0, 5, 0]) == 2.0
    plain = torch.empty(5, 16)
    w.squeeze_(0).t_()
    assert torch.mm(inputs(), w.t(), out=plain) is plain
    assert torch.equal(plain, inputs() @ w.t())
    plain.zero_().addmm_(inputs(), w.t())
    torch.testing.assert_close(plain, inputs() @ w.t())
    other = weight("int8_per_channel").clone().copy_(w)
    assert other.is_graft_quantized and torch.allclose(tg.dequantize(other), tg.dequantize(w), atol=0.05)
    with pytest.raises(RuntimeError, match="cannot grow"):
        w.resize_(99, 99)


CALLS = {
    "shapes": lambda w: inputs() @ w,
    "dtypes": lambda w: inputs().double() @ w.t(),
    "view": lambda w: w.t().view(-1),
    "index": lambda w: w[20],
    "indices": lambda w: w[torch.tensor([99])],
    "rows": lambda w: F.embedding(torch.tensor([99]), w),
    "sizes": lambda w: torch.cat([w, inputs()[:, :3]]),
    "memory": lambda w: w.as_strided((100, 100), (100, 1)),
    "item": lambda w: w.item(),
    "growing": lambda w: w.add_(torch.ones(3, 16, 64)),
}


def test_errors_are_those_of_dense_tensors():
    for name, call in CALLS.items():
        said = []
        for w in (weight(), tg.dequantize(weight())):
            with pytest.raises(Exception) as error:
                call(w)
            said.append((error.type, str(error.value)))
        assert said[0] == said[1], name
    with pytest.raises(RuntimeError, match="on the same device"):
        torch.matmul(inputs().to(tg.device("numpy")), weight().t())
    with pytest.raises(RuntimeError, match=r"shape \(16, 64\) has no memory with its dense numbers"):
        weight().data_ptr()
    with pytest.raises(TypeError, match="expected a dense tensor"):
        tg.quantize(torch.eye(4).to_sparse(), "int8_per_channel")


def test_derivatives():
    w, x = weight(), inputs().requires_grad_()
    dense = tg.dequantize(w)

    def loss(w):
        return (x @ w.t()).pow(2).sum()

    (first,), (want,) = (torch.autograd.grad(loss(v), x, create_graph=True) for v in (w, dense))
    torch.testing.assert_close(first, want, rtol=1e-4, atol=1e-3)
    (second,), (want,) = (torch.autograd.grad(g.sum(), x) for g in (first, want))
    torch.testing.assert_close(second, want, rtol=1e-4, atol=1e-3)
    p = nn.Parameter(w.clone(), requires_grad=True)
    assert isinstance(p, nn.Parameter) and p.is_graft_quantized
    F.linear(x, p).sum().backward()
    assert type(p.grad) is torch.Tensor
    torch.testing.assert_close(p.grad, x.detach().sum(0).expand(16, 64))
    with torch.no_grad():
        p.sub_(p.grad)
    assert p.is_graft_quantized
    x = inputs()
    for transform in (
        lambda w: torch.func.vmap(lambda a: F.linear(a, w))(x),
        lambda w: torch.func.vmap(lambda row: row @ x[0])(w),
        lambda w: torch.func.vmap(torch.func.grad(lambda a: F.linear(a, w).pow(2).sum()))(x),
        lambda w: torch.func.hessian(lambda a: F.linear(a, w).pow(2).sum())(x[0]),
        lambda w: torch.func.jvp(lambda a: F.linear(a, w), (x,), (x,))[1],
        lambda w: torch.func.functional_call(nn.Linear(64, 16, bias=False), {"weight": w}, (x,)),
    ):
        torch.testing.assert_close(transform(w), transform(dense), rtol=1e-4, atol=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.linear(x, w).dtype == torch.bfloat16 and (w * x[0]).dtype == torch.float32


def test_models():
    dense, x = model(), inputs()
    quantised = tg.quantize_(copy.deepcopy(dense), {"0": "int8_dynamic", "*": "int4_per_group_32"})
    want = quantised(x).detach()
    assert (want - dense(x)).norm() < 0.15 * dense(x).norm()
    quantised(x).sum().backward()
    assert quantised[0].weight.grad is None and quantised[0].bias.grad is not None
    with torch.inference_mode():
        torch.testing.assert_close(quantised(x), want)
    assert torch.equal(copy.deepcopy(quantised)(x), want)
    file = io.BytesIO()
    torch.save(quantised, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded[0].weight, nn.Parameter) and torch.equal(loaded(x), want)
    there = copy.deepcopy(quantised).to(tg.device("numpy"))
    assert there[0].weight.is_graft_quantized and there[0].weight.device.type == "graft"
    with torch.no_grad():
        torch.testing.assert_close(there(x.to(tg.device("numpy"))).cpu(), want, rtol=1e-4, atol=1e-5)
    back = there.to("cpu")
    assert isinstance(back[0].weight, nn.Parameter) and torch.equal(back(x), want)
    half = copy.deepcopy(quantised).to(torch.bfloat16)
    assert half[0].weight.is_graft_quantized and half(x.bfloat16()).dtype == torch.bfloat16
    held = half[0].weight
    held.data = torch.ones(64, 64)  # and dense again
    assert type(held) is nn.Parameter and not held.is_graft_quantized
    held.data = weight(shape=(64, 64))
    assert isinstance(held, nn.Parameter) and held.is_graft_quantized and (x @ held.t()).shape == (5, 64)
    quantised.share_memory()
    assert quantised[0].weight.is_shared()


def test_tied_weights_in_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    from safetensors import safe_open

    tied = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    tied[1].weight = tied[0].weight
    tg.quantize_(tied, "int4_per_group_32")
    state = {**tied.state_dict(), "view": tied[0].weight.detach().t()[3:9]}
    for device in ("cpu", tg.device("numpy")):
        tensors, metadata = tg.quantization.flatten_tensor_state_dict(state)
        assert sorted(tensors) == ["0.bias", "0.weight.codes", "0.weight.scale", "1.bias"]
        safetensors.save_file(tensors, tmp_path / "m.safetensors", metadata)
        with safe_open(tmp_path / "m.safetensors", "pt") as file:
            found = file.metadata()
        loaded = safetensors.load_file(tmp_path / "m.safetensors")
        made = tg.quantization.unflatten_tensor_state_dict(loaded, found, device)
        assert list(map(str, {t.device for t in made.values()})) == [str(torch.device(device))]
        for name, t in state.items():
            assert made[name].is_graft_quantized == t.is_graft_quantized
            assert torch.equal(tg.dequantize(made[name]).cpu(), tg.dequantize(t)), name
    with pytest.raises(ValueError, match=r"'0\.weight\.scale' is missing"):
        tg.quantization.unflatten_tensor_state_dict({"0.weight.codes": loaded["0.weight.codes"]}, found)
    with pytest.raises(RuntimeError, match="flatten_tensor_state_dict"):
        weight().data_ptr()


def test_what_reads_memory():
    w = weight()
    dense = tg.dequantize(w)
    assert w.tolist() == dense.tolist() and bool((w.numpy() == dense.numpy()).all())
    assert bool((np.asarray(w) == dense.numpy()).all()) and bool((np.from_dlpack(w) == dense.numpy()).all())
    assert float(w[1, 2]) == float(dense[1, 2]) and f"{w[1, 2]:.3f}" == f"{dense[1, 2]:.3f}"
    assert "scheme=int8_per_channel" in repr(w) and w.nbytes == 16 * 64 + 16 * 4
    assert torch.equal(tg.dequantize(pickle.loads(pickle.dumps(w[3:]))), dense[3:])
    on = w.to(tg.device("numpy"))
    assert on.tolist() == dense.tolist()


def test_what_is_counted():
    w = weight()
    tg.quantization.reset()
    for _ in range(3):
        F.linear(inputs(), w)
    assert tg.quantization.report() == {"quantized": {"dot_general": 3}, "dequantized": {}}
    with tg.quantization.on_missing("error"):
        copy.deepcopy(w)[2:].t(), repr(w), w[0, 0].item(), torch.zeros_like(w), w.to(tg.device("numpy"))
        with pytest.raises(tg.quantization.NoQuantizedRuleError, match=r"add.Tensor of int8\[16, 64\]"):
            w + 1


def test_nothing_is_kept_alive():
    w = weight()
    for _ in range(3):
        x = inputs()
        F.linear(x, w)
        x = weakref.ref(x)
        assert x() is None
    cell, rows = weakref.ref(w.untyped_storage().cell), w[3:]
    del w
    assert cell() is not None
    del rows
    gc.collect()
    assert cell() is None


@pytest.mark.parametrize("scheme", ["int8_dynamic", "int4_per_group_32"])
def test_compiled_and_exported(scheme):
    torch._dynamo.reset()
    quantised, x = tg.quantize_(model(), scheme), inputs()
    compiled = torch.compile(quantised, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), quantised(x))
    compiled(x).sum().backward()
    assert quantised[0].bias.grad is not None
    with torch.no_grad():
        quantised[0].weight.mul_(2)
        torch.testing.assert_close(compiled(x), quantised(x))

    @torch.compile(backend="aot_eager", fullgraph=True)
    def written(w, x):
        w.mul_(2)
        return x @ w[:4].t()

    w, other = weight(scheme), weight(scheme)
    with torch.no_grad():
        got, want = written(w, x), x @ other.mul_(2)[:4].t()
    assert w.is_graft_quantized and torch.equal(tg.dequantize(w), tg.dequantize(other))
    torch.testing.assert_close(got, want)
    exported = torch.export.export(quantised.eval(), (x,))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), quantised(x))
