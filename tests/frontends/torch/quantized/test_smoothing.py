"""SmoothQuant."""

import pytest
import torch
from torch import nn

import tensorgraft as tg
from tensorgraft.quantization import smooth_


class Block(nn.Module):
    def __init__(self, norm=nn.LayerNorm):
        super().__init__()
        self.norm, self.q, self.k = norm(64), nn.Linear(64, 32), nn.Linear(64, 32)
        with torch.no_grad():
            self.norm.weight[::16] *= 60  # the outliers of large language models

    def forward(self, x):
        x = self.norm(x)
        return self.q(x) * self.k(x)


def block(device, norm=nn.LayerNorm):
    torch.manual_seed(0)
    return Block(norm).to(device), torch.randn(4, 50, 64).to(device)


def sqnr(got, want):
    return float(10 * torch.log10((want**2).mean() / ((got - want) ** 2).mean()))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_activations_with_outliers_lose_less(backend, norm):
    with torch.no_grad():
        plain, x = block(tg.device(backend), norm)
        want = plain(x).cpu()
        smooth, _ = block(tg.device(backend), norm)
        assert smooth_(smooth, {"norm": ["q", "k"]}, [x[:2], (x[2:],)]) is smooth
        assert sqnr(smooth(x).cpu(), want) > 100  # it computes what it computed
        tg.quantize_(plain, "int8_dynamic"), tg.quantize_(smooth, "int8_dynamic")
        assert sqnr(smooth(x).cpu(), want) > sqnr(plain(x).cpu(), want) + 4


def test_models_are_left_as_they_were():
    model, x = block(tg.device("numpy"))
    before = {name: p.clone() for name, p in model.state_dict().items()}
    model.train()
    with pytest.raises(ValueError, match=r"the input of q, of shape \(4, 50, 64\), has NaN"):
        smooth_(model, {"norm": ["q", "k"]}, [x, x * float("nan")])
    with pytest.raises(ValueError, match="no batch reached q, k"):
        smooth_(model, {"norm": ["q", "k"]}, [])
    with pytest.raises(ValueError, match="no module 'v'"):
        smooth_(model, {"norm": ["q", "v"]}, [x])
    with pytest.raises(ValueError, match=r"smooth_: expected q to be a LayerNorm or RMSNorm .* got Linear"):
        smooth_(model, {"q": "k"}, [x])
    with pytest.raises(ValueError, match="expected strength from 0 to 1, got 2"):
        smooth_(model, {"norm": ["q", "k"]}, [x], strength=2)
    tied, _ = block(tg.device("numpy"))
    tied.k.weight = tied.q.weight
    with pytest.raises(ValueError, match="q shares its weight"):
        smooth_(tied, {"norm": ["q", "k"]}, [x])
    assert model.training and model.norm.training and not model.q._forward_pre_hooks
    assert all(torch.equal(p.cpu(), before[name].cpu()) for name, p in model.state_dict().items())
