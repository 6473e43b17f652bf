"""PyTorch models whose inputs are measured: static activations, and GPTQ over all weights."""

import copy
import io

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.quantization import quantize_


class Block(nn.Module):
    """Attention by several weights of the same input, one by a slice of its rows, and a head that is tied."""

    def __init__(self, d=32):
        super().__init__()
        self.e = nn.Embedding(50, d)
        self.n = nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(d, 50, bias=False)
        self.head.weight = self.e.weight

    def forward(self, i, scale=None):
        x = self.e(i)
        y = self.n(x)
        s = torch.softmax(self.q(y) @ self.k(y).mT / 6, -1)
        x = x + self.o(s @ self.v(y))
        x = x + self.down(self.drop(nn.functional.gelu(self.up(x))))
        return self.head(x if scale is None else x * scale)


def device(name):
    return torch.device("cpu") if name == "cpu" else tg.device(name)


def setting(name="numpy", batches=4):
    torch.manual_seed(0)
    model, inputs = Block(), [torch.randint(0, 50, (4, 16)) for _ in range(batches + 1)]
    with torch.no_grad():
        model.n.weight[::8] *= 4
        want = model.eval()(inputs[-1])
    where = device(name)
    return model.to(where), [i.to(where) for i in inputs[:-1]], inputs[-1].to(where), want


def sqnr(model, i, want):
    with torch.no_grad():
        return float(20 * torch.log10(want.norm() / (model(i).cpu() - want).norm()))


DENSE = {"head": None, "e": None, "*": "int8_static"}


@pytest.mark.parametrize("name", ["cpu", "numpy", "torch", "jax"])
def test_static_activations(name):
    model, batches, i, want = setting(name)
    model.train()
    dynamic = quantize_(copy.deepcopy(model), {**DENSE, "*": "int8_dynamic"}).eval()
    static = quantize_(copy.deepcopy(model), DENSE, calibrate=batches)
    assert static.training
    assert static.drop.training
    assert not static.head.weight.is_graft_quantized
    assert static.q.weight.is_graft_quantized
    static.eval()
    near, far = sqnr(dynamic, i, want), sqnr(static, i, want)
    assert far > 30
    assert far < near + 1
    better = quantize_(copy.deepcopy(model).eval(), {**DENSE, "*": "int8_static_asymmetric"}, calibrate=batches)
    assert sqnr(better, i, want) > far - 1
    if name != "cpu":
        compiled = tg.jit(lambda i: static(i))
        torch.testing.assert_close(compiled(i).cpu(), static(i).cpu(), rtol=1e-4, atol=1e-3)
    file = io.BytesIO()
    torch.save(static.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        loaded = torch.load(file, weights_only=True)
        other = copy.deepcopy(model).eval()
        other.load_state_dict(loaded, assign=True)
        assert torch.equal(other(i).cpu(), static(i).cpu())


def test_gradients_flow_through():
    model, batches, i, _ = setting("torch")
    quantize_(model, {"up": "int8_static", "*": None}, calibrate=batches)
    model(i).square().mean().backward()
    assert model.q.weight.grad.abs().max() > 0
    assert model.up.weight.grad is None


@pytest.mark.parametrize("name", ["cpu", "numpy", "jax"])
def test_gptq(name):
    model, batches, i, want = setting(name, batches=10)
    choice = {"head": None, "*": "int4_per_group_32"}
    nearest = quantize_(copy.deepcopy(model), choice)
    calls = []
    hook = model.register_forward_pre_hook(lambda *_: calls.append(1))
    good = quantize_(model, choice, calibrate=batches, rounding="gptq")
    assert good is model
    # once to see the order, then one after the other: q, k and v, which have the same inputs, then o, up and down
    assert len(calls) == 5 * len(batches)
    hook.remove()
    assert sqnr(good, i, want) > sqnr(nearest, i, want) + 0.5


def test_gptq_of_a_scheme_whose_inputs_are_measured():
    model, batches, i, want = setting("cpu")
    quantize_(model, {"up": "int8_static", "*": None}, calibrate=batches, rounding="gptq")
    assert model.up.weight.is_graft_quantized
    assert sqnr(model, i, want) > 30


def test_gptq_is_of_inputs_from_quantised_layers():
    model, batches, _, _ = setting("numpy", batches=4)
    quantize_(
        model, {"up": "int4_per_channel", "down": "int4_per_channel", "*": None}, calibrate=batches, rounding="gptq"
    )
    dense, _, _, _ = setting("numpy")
    inputs = []
    with torch.no_grad():
        hook = model.down.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        for batch in batches:
            model(batch)
        hook.remove()
        want = tg.quantization.gptq(dense.down.weight, inputs, "int4_per_channel")
    assert torch.equal(tg.dequantize(want).cpu(), tg.dequantize(model.down.weight).cpu())


def test_batches():
    """Tensors, tuples, mappings, generators of them, and functions; all the same, and tied weights once."""
    model, batches, i, _ = setting("numpy")
    two = torch.tensor(2.0, device=i.device)

    def ranges(calibrate, scheme="int8_static", **kwargs):
        m = quantize_(copy.deepcopy(model), scheme, calibrate=calibrate, filter="head", **kwargs)
        assert m.e.weight is m.head.weight
        with torch.no_grad():
            return m(i, two).cpu()

    want = ranges([(b, two) for b in batches])
    for given in (
        [{"i": b, "scale": two} for b in batches],
        ([b, two] for b in batches),
        lambda m: [m(b, scale=two) for b in batches],
    ):
        assert torch.equal(ranges(given), want)
    assert torch.equal(ranges(batches[0]), ranges([batches[0]]))
    assert not torch.equal(ranges(batches), want)
    assert not torch.equal(ranges(batches, activation_observer="percentile_99"), ranges(batches))


BAD = {
    "no batches given": ({}, "q.weight: int8_static_per_channel measures .*: pass calibrate="),
    "none": ({"calibrate": []}, "calibrate has no batches"),
    "a string": ({"calibrate": "x"}, "expected calibrate to be a list"),
    "a mapping": ({"calibrate": {"i": 1}}, "expected calibrate to be a list"),
    "an observer": ({"calibrate": [0], "activation_observer": "median"}, "expected activation_observer to be 'minmax'"),
    "an observer of weights": ({"calibrate": [0], "observer": "median"}, "expected observer to be 'minmax'"),
    "a rounding": ({"calibrate": [0], "rounding": "up"}, "expected rounding 'nearest' or 'gptq', got 'up'"),
    "damping": (
        {"calibrate": [0], "rounding": "gptq", "damping": 0.0},
        "quantize_: expected damping greater than 0, got 0.0",
    ),
    "nothing to measure": (
        {"calibrate": [0], "scheme": "int8_per_channel"},
        "calibrate is given, but nothing is measured",
    ),
    "groups": ({"calibrate": [0], "scheme": "int4_per_group_20", "rounding": "gptq"}, "q.weight: .* groups of 20"),
}


@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_models_are_left_as_they_were(name):
    model, batches, i, _ = setting(name, batches=2)
    model.train()
    del model.e
    model.e = nn.Embedding(50, 32).to(i.device)
    before = {n: (p, p.detach().cpu().clone()) for n, p in model.named_parameters()}

    def unchanged():
        now = dict(model.named_parameters())
        return all(now[n] is p and torch.equal(p.detach().cpu(), v) for n, (p, v) in before.items()) and model.training

    for what, (arguments, message) in BAD.items():
        arguments = {"scheme": "int8_static", **arguments}
        with pytest.raises((ValueError, TypeError), match=message):
            quantize_(model, arguments.pop("scheme"), **arguments)
        assert unchanged(), what
    nan = torch.tensor(float("nan"), device=i.device)
    for rounding in ("nearest", "gptq"):
        with pytest.raises(ValueError, match=r"batch 1: what multiplies head.weight, of shape \(64, 32\), has NaN"):
            quantize_(model, "int8_static", calibrate=[batches[0], (batches[1], nan)], rounding=rounding)
        assert unchanged()
        with pytest.raises(ValueError, match=r"no input reached e.weight in 2 batches: .* \{'e': None, '\*'"):
            quantize_(model, "int8_static", calibrate=batches, filter=lambda n, _: n != "", rounding=rounding)
        assert unchanged()
        with pytest.raises(IndexError if name == "numpy" else (IndexError, RuntimeError)):
            quantize_(model, "int8_static", calibrate=[batches[0], batches[1] + 100], rounding=rounding)
        assert unchanged()
    with torch.no_grad():
        model.up.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match=r"up.weight: quantize: the float32 tensor of shape \(64, 32\) has NaN or inf"):
        quantize_(model, "int8_static", calibrate=batches)
    assert model.up.weight is before["up.weight"][0]


@pytest.mark.parametrize("name", ["numpy", "jax"])
def test_compiled_models_tell_of_every_run(name):
    model, batches, i, _ = setting(name)
    choice = {"up": "int8_static", "*": None}
    with torch.no_grad():
        want = quantize_(copy.deepcopy(model), choice, calibrate=batches)(i).cpu()
        model.forward = tg.jit(model.forward)
        quantize_(model, choice, calibrate=batches)
        torch.testing.assert_close(Block.forward(model, i).cpu(), want, rtol=1e-5, atol=1e-5)


def test_compiled_models_that_cannot_tell():
    model, batches, _, _ = setting("torch")
    model.forward = tg.jit(model.forward)
    with pytest.raises(ValueError, match=r"batch 0: the product with \w+.weight is not seen: .* before tg.jit"):
        quantize_(model, "int8_static", calibrate=batches)
    assert not any(p.is_graft_quantized for p in model.parameters())


def test_static_schemes_are_not_trained():
    model, _, _, _ = setting()
    with pytest.raises(
        ValueError, match="prepare_qat_: q: int8_static_per_channel uses a range that is measured after training"
    ):
        tg.quantization.prepare_qat_(model, "int8_static")


@pytest.mark.parametrize("name", ["cpu", "numpy"])
def test_layers_that_pytorch_computes_by_one_operator(name):
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    batches, x = [torch.randn(4, 10, 32) for _ in range(4)], torch.randn(3, 10, 32)
    with torch.no_grad():
        want = model(x)
        model = model.to(device(name))
        quantize_(model, "int8_static", calibrate=[b.to(device(name)) for b in batches])
        assert torch.backends.mha.get_fastpath_enabled()
        assert sqnr(model, x.to(device(name)), want) > 40
