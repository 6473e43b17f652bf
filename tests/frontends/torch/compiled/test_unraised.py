"""Checks of values that PyTorch makes in its own code, which raise nothing inside a compiled function."""

import pytest
import torch
import torch.distributions as D
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg

pytestmark = pytest.mark.sampled


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def spectrum(x):
    window = torch.hann_window(16, device=x.device)
    return torch.istft(torch.stft(x.flatten(), 16, 4, window=window, return_complex=True), 16, 4, window=window)


def weighted(x):
    counts = torch.arange(1, 17, device=x.device)
    return x.cov(fweights=counts), x.cov(aweights=x[0]), x.cov(fweights=counts, aweights=x[1], correction=0)


FUNCTIONS = {
    "istft": spectrum,
    "gaussian_nll_loss": lambda x: F.gaussian_nll_loss(x, x, x + 1),
    "Normal": lambda x: D.Normal(x, x + 1).log_prob(x),
    "Categorical": lambda x: D.Categorical(probs=x).log_prob(torch.zeros(4, dtype=torch.long, device=x.device)),
    "Dirichlet": lambda x: D.Dirichlet(x).log_prob(x / x.sum(-1, keepdim=True)),
    "MultivariateNormal": lambda x: D.MultivariateNormal(x[0, :4], x[:, :4] @ x[:, :4].T + torch.eye(4).to(x)).mean,
    "kl_divergence": lambda x: D.kl_divergence(D.Gamma(x, x), D.Gamma(x + 1, x)),
    "cov": lambda x: (x.cov(), x.cov(correction=0), x.corrcoef()),
    "cov with weights": weighted,
    "linspace": lambda x: (
        torch.linspace(x[0, 0], x[0, 1], 5),
        torch.logspace(0, x[0, 0], 3),
        torch.full((2,), x[0, 0]),
    ),
    "lstsq": lambda x: torch.linalg.lstsq(x.T, x.T[:, :1]).solution,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_checks_of_values_raise_nothing(name, device):
    x = torch.rand(4, 16, generator=torch.Generator().manual_seed(0)) + 0.1

    def run(x):
        with torch.device(x.device):
            return FUNCTIONS[name](x)

    ours, theirs = tg.jit(run)(x.to(device)), run(x)
    for a, b in zip(*((r if isinstance(r, tuple) else [r]) for r in (ours, theirs)), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_questions_of_the_program_are_refused(backend):
    def run(x):
        if not torch.all(x > 0):
            raise ValueError
        return x * 2

    with pytest.raises(tg.TracedValueError, match="if not torch"):
        tg.jit(run)(torch.ones(2, device=tg.device(backend)))


def test_batch_norm_averages_over_all_batches(device):
    def trained(where, wrap):
        torch.manual_seed(0)
        model = nn.BatchNorm1d(3, momentum=None).to(where)
        run = wrap(model)
        results = [run(torch.randn(8, 3).to(where) * k) for k in (1, 2, 3)]
        model.eval()
        return [*results, run(torch.ones(2, 3, device=where)), *model.buffers()]

    for ours, theirs in zip(trained(device, tg.jit), trained("cpu", lambda fn: fn), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_identities_of_any_size(device):
    for make in (lambda d: torch.eye(300, 4, device=d), lambda d: torch.eye(256, dtype=torch.int32, device=d)):
        assert torch.equal(
            tg.jit(lambda x, make=make: make(x.device) * x)(torch.ones((), device=device).int()).cpu(), make("cpu")
        )
        assert torch.equal(make(device).cpu(), make("cpu"))
