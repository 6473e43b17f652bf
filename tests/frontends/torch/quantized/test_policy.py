"""`on_missing` and `report` on tensors: every operation that computes on dense numbers, each time that it does."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tensorgraft as tg

BACKENDS = ["numpy", "torch", "jax", "tensorflow"]
on_each = pytest.mark.parametrize("backend", BACKENDS)


def weight(backend):
    drawn = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    return tg.quantize(drawn.to(tg.device(backend)), "int8_per_channel")


@on_each
def test_every_call_is_counted_or_forbidden(backend):
    w = weight(backend)
    for run in (lambda w: w + 1, tg.jit(lambda w: w.t() + 1)):
        tg.quantization.reset()
        for times in (1, 2, 3):
            run(w)
            assert tg.quantization.report()["dequantized"] == {"add": times}
        with (
            tg.quantization.on_missing("error"),
            pytest.raises(tg.quantization.NoQuantizedRuleError, match="add of int8"),
        ):
            run(w)  # the program is compiled by now
        with tg.quantization.on_missing("warn"), pytest.warns(UserWarning, match="add of int8") as caught:
            run(w)
        assert caught[0].filename == __file__


def test_forbidden_is_not_done_on_the_cpu_and_changes_nothing():
    w = weight("jax")
    dense = tg.dequantize(w)
    target = torch.zeros(4, 64, device=w.device)
    with tg.quantization.on_missing("error"):
        for forbidden in (lambda: target.add_(w), lambda: w.mul_(2), lambda: torch.cat([w, target]), lambda: w.sort()):
            with pytest.raises(tg.quantization.NoQuantizedRuleError, match=r"int8\[4, 64\]"):
                forbidden()
    assert not target.any() and torch.equal(tg.dequantize(w).cpu(), dense.cpu())


def test_what_is_no_operation_on_numbers_is_allowed():
    w, x = weight("numpy"), torch.ones(2, 64, device=tg.device("numpy"))
    tg.quantization.reset()
    with tg.quantization.on_missing("error"):
        assert repr(w[:2, :2]).startswith("tensor([[") and repr(w).endswith("scheme=int8_per_channel)")
        assert repr(torch.nn.Parameter(w.t(), requires_grad=False)).startswith("Parameter containing:\ntensor([[")
        w.tolist(), w[0, 0].item(), w.cpu(), w.bfloat16(), torch.empty(4, 64, device=w.device).copy_(w)
        torch.zeros_like(w), torch.ones_like(w), w.clone().zero_(), w.clone().copy_(x[:1]), w.new_zeros(3)
        F.linear(x, w), F.embedding(torch.tensor([1], device=w.device), w), torch.einsum("bk,nk->bn", x, w)
    assert not tg.quantization.report()["dequantized"]


def test_optimizers_refuse_what_would_lose_their_steps():
    w = weight("numpy")
    frozen, other = torch.nn.Parameter(w, requires_grad=False), torch.nn.Parameter(w.clone())
    torch.optim.SGD([frozen], 0.1)
    with pytest.raises(
        ValueError, match=r"SGD: parameter 1 of the group, of shape \(4, 64\), is quantised and requires"
    ):
        torch.optim.SGD([frozen, other], 0.1)
    (other @ torch.ones(64, device=w.device)).sum().backward()
    assert other.grad is not None and not other.grad.is_graft_quantized


@pytest.mark.parametrize("onto", ["numpy", "jax"])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_grafted_modules(device, onto):
    """Their state is dense arrays, and that is not silent."""
    place = torch.device("cpu") if device == "cpu" else tg.device(device)
    model = torch.nn.Linear(8, 4).to(place).eval()
    tg.quantize_(model, "int4_per_group_4")
    x = torch.randn(3, 8)
    wanted = model(x.to(place)).detach().cpu()
    before = tg.quantization.report()["dequantized"].get("tg.graft", 0)
    made = tg.graft(model, onto=onto)
    found = made(x.numpy()) if onto == "numpy" else made.apply(made.params, made.buffers, x.numpy())[0]
    torch.testing.assert_close(torch.tensor(np.asarray(found)), wanted)
    assert tg.quantization.report()["dequantized"]["tg.graft"] == before + 1
    with tg.quantization.on_missing("error"), pytest.raises(tg.quantization.NoQuantizedRuleError, match="weight"):
        tg.graft(model, onto=onto)
    model = tg.quantize_(torch.nn.Linear(8, 4).to(place), "int8_dynamic")
    with pytest.raises(NotImplementedError, match="weight is quantised as int8_dynamic"):
        tg.graft(model, onto=onto)
