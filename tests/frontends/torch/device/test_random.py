"""Random numbers: every distribution passes a test of fit, and is the same on every backend, eager and compiled.

Seeds are fixed, so that a test that passes passes for ever. Fits are tested on NumPy, which compiles nothing: the other
backends have the same numbers.
"""

import io
import math
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import distributions as D

import tensorgraft as tg

pytestmark = pytest.mark.sampled

N = 20_000
RARE = 1e-3  # a test of fit fails below this probability


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def values(like, *numbers):
    return torch.tensor(numbers, dtype=like.dtype, device=like.device)


def zeros(device, n=N):
    return torch.zeros(n, device=device)


# what is drawn, from zeros -> the distribution
CONTINUOUS = {
    "rand": (lambda x: torch.rand(x.shape, device=x.device), stats.uniform()),
    "rand_like": (lambda x: torch.rand_like(x), stats.uniform()),
    "uniform_": (lambda x: x.uniform_(-1, 3), stats.uniform(-1, 4)),
    "uniform_ in double": (lambda x: x.double().uniform_(), stats.uniform()),
    "randn": (lambda x: torch.randn(x.shape, device=x.device), stats.norm()),
    "normal_": (lambda x: x.normal_(2, 3), stats.norm(2, 3)),
    "normal_ in double": (lambda x: x.double().normal_(2, 3), stats.norm(2, 3)),
    "normal of tensors": (lambda x: torch.normal(x + 1, x + 2), stats.norm(1, 2)),
    "normal of a number": (lambda x: torch.normal(1.0, x + 2), stats.norm(1, 2)),
    "normal of sizes": (lambda x: torch.normal(1.0, 2.0, x.shape, device=x.device), stats.norm(1, 2)),
    "real parts": (lambda x: torch.randn_like(x, dtype=torch.complex64).real, stats.norm(0, 0.5**0.5)),
    "exponential_": (lambda x: x.exponential_(2), stats.expon(scale=0.5)),
    "cauchy_": (lambda x: x.cauchy_(1, 2), stats.cauchy(1, 2)),
    "log_normal_": (lambda x: x.log_normal_(0.5, 0.7), stats.lognorm(0.7, scale=math.exp(0.5))),
    "gamma": (lambda x: torch._standard_gamma(x + 2.5), stats.gamma(2.5)),
    "gamma below 1": (lambda x: torch._standard_gamma(x + 0.4), stats.gamma(0.4)),
    "gamma in double": (lambda x: torch._standard_gamma(x.double() + 30), stats.gamma(30)),
    "dirichlet": (lambda x: torch._sample_dirichlet(x.view(-1, 1) + values(x, 2, 3))[:, 0], stats.beta(2, 3)),
    "rrelu": (lambda x: F.rrelu(x - 1, 0.1, 0.5, training=True), stats.uniform(-0.5, 0.4)),
    "gumbel_softmax": (
        lambda x: torch.logit(F.gumbel_softmax(x.view(-1, 1) + values(x, 0, 1), tau=1)[:, 1].double()),
        stats.logistic(1),
    ),
    "multinomial races": (lambda x: torch.multinomial(x + 1, len(x)) + torch.rand_like(x), stats.uniform(0, N)),
    "randperm": (lambda x: torch.randperm(len(x), device=x.device) + torch.rand_like(x), stats.uniform(0, N)),
    "Normal": (lambda x: D.Normal(x + 1, x + 2).rsample(), stats.norm(1, 2)),
    "LogNormal": (lambda x: D.LogNormal(x, x + 0.5).sample(), stats.lognorm(0.5)),
    "Uniform": (lambda x: D.Uniform(x - 1, x + 1).sample(), stats.uniform(-1, 2)),
    "Exponential": (lambda x: D.Exponential(x + 2).sample(), stats.expon(scale=0.5)),
    "Gamma": (lambda x: D.Gamma(x + 2, x + 3).sample(), stats.gamma(2, scale=1 / 3)),
    "Beta": (lambda x: D.Beta(x + 0.5, x + 2).sample(), stats.beta(0.5, 2)),
    "Dirichlet": (lambda x: D.Dirichlet((x + 1).view(-1, 4)).sample().flatten(), stats.beta(1, 3)),
    "Chi2": (lambda x: D.Chi2(x + 3).sample(), stats.chi2(3)),
    "StudentT": (lambda x: D.StudentT(x + 4).sample(), stats.t(4)),
    "FisherSnedecor": (lambda x: D.FisherSnedecor(x + 4, x + 6).sample(), stats.f(4, 6)),
    "Cauchy": (lambda x: D.Cauchy(x + 1, x + 2).sample(), stats.cauchy(1, 2)),
    "HalfCauchy": (lambda x: D.HalfCauchy(x + 2).sample(), stats.halfcauchy(0, 2)),
    "HalfNormal": (lambda x: D.HalfNormal(x + 2).sample(), stats.halfnorm(0, 2)),
    "Laplace": (lambda x: D.Laplace(x + 1, x + 2).sample(), stats.laplace(1, 2)),
    "Gumbel": (lambda x: D.Gumbel(x + 1, x + 2).sample(), stats.gumbel_r(1, 2)),
    "Weibull": (lambda x: D.Weibull(x + 2, x + 1.5).sample(), stats.weibull_min(1.5, scale=2)),
    "Pareto": (lambda x: D.Pareto(x + 2, x + 3).sample(), stats.pareto(3, scale=2)),
    "Kumaraswamy": (lambda x: 1 - (1 - D.Kumaraswamy(x + 2, x + 3).sample() ** 2) ** 3, stats.uniform()),
    "InverseGamma": (lambda x: D.InverseGamma(x + 3, x + 2).sample(), stats.invgamma(3, scale=2)),
    "VonMises": (lambda x: D.VonMises(x, x + 2).sample(), stats.vonmises(2)),
    "LogisticNormal": (
        lambda x: torch.logit(D.LogisticNormal(values(x, 1), values(x, 2)).sample(x.shape)[:, 0].double()),
        stats.norm(1, 2),
    ),
    "MultivariateNormal": (
        lambda x: D.MultivariateNormal(values(x, 1, 1), values(x, 4, 1, 1, 3).view(2, 2)).sample(x.shape)[:, 0],
        stats.norm(1, 2),
    ),
    "MixtureSameFamily": (
        lambda x: D.MixtureSameFamily(D.Categorical(values(x, 1, 2)), D.Normal(x[:2] + 1, x[:2] + 2)).sample(x.shape),
        stats.norm(1, 2),
    ),
    "ContinuousBernoulli": (lambda x: D.ContinuousBernoulli(x + 0.5).sample(), stats.uniform()),
    "RelaxedBernoulli": (
        lambda x: torch.logit(D.RelaxedBernoulli(values(x, 1), logits=x + 1).sample().double()), stats.logistic(1),
    ),
    "Wishart": (
        lambda x: D.Wishart(values(x, 4), torch.eye(2).to(x)).sample((N // 20,))[..., 0, 0].flatten(),
        stats.chi2(4),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Singular sample detected")
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name):
    draw, expected = CONTINUOUS[name]
    torch.manual_seed(0)
    x = draw(zeros(tg.device("numpy")))
    assert x.device == tg.device("numpy")
    assert stats.kstest(x.double().cpu().numpy(), expected.cdf).pvalue > RARE


DISCRETE = {
    "bernoulli_": (lambda x: x.bernoulli_(0.3), stats.bernoulli(0.3)),
    "bernoulli_ of a tensor": (lambda x: x.bernoulli_(x + 0.3), stats.bernoulli(0.3)),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.7), stats.bernoulli(0.7)),
    "bernoulli of booleans": (lambda x: x.bool().bernoulli_(0.3), stats.bernoulli(0.3)),
    "geometric_": (lambda x: x.geometric_(0.4), stats.geom(0.4)),
    "geometric_ of integers": (lambda x: x.long().geometric_(0.1), stats.geom(0.1)),
    "random_": (lambda x: x.random_(3, 17), stats.randint(3, 17)),
    "random_ of bytes": (lambda x: x.to(torch.uint8).random_(), stats.randint(0, 256)),
    "random_ of signed bytes": (lambda x: x.to(torch.int8).random_(-128, None), stats.randint(-128, 128)),
    "randint": (lambda x: torch.randint(-5, 9, x.shape, device=x.device), stats.randint(-5, 9)),
    "randint_like": (lambda x: torch.randint_like(x, 6), stats.randint(0, 6)),
    "first of randperm": (
        lambda x: torch.stack([torch.randperm(7, device=x.device) for _ in range(300)])[:, 0], stats.randint(0, 7),
    ),
    "multinomial": (lambda x: torch.multinomial(values(x, 1, 3, 0, 4), len(x), True), (1, 3, 0, 4)),
    "multinomial of rows": (
        lambda x: torch.multinomial(values(x, 1, 3, 0, 4).repeat(100, 1), 150, True), (1, 3, 0, 4),
    ),
    "multinomial once": (lambda x: torch.multinomial(values(x, 1, 3, 0, 4).repeat(5000, 1), 1), (1, 3, 0, 4)),
    "first without replacement": (
        lambda x: torch.multinomial(values(x, 1, 3, 0, 4).repeat(5000, 1), 3)[:, 0], (1, 3, 0, 4),
    ),
    "second without replacement": (
        lambda x: torch.multinomial(values(x, 1, 3, 4).repeat(9000, 1), 2)[:, 1],
        (3 / 8 / 5 + 4 / 8 / 4, 3 / 8 / 7 + 4 / 8 * 3 / 4, 4 / 8 / 7 + 3 / 8 * 4 / 5),
    ),
    "poisson": (lambda x: torch.poisson(x + 3), stats.poisson(3)),
    "poisson of few": (lambda x: torch.poisson(x + 0.2), stats.poisson(0.2)),
    "poisson of many": (lambda x: torch.poisson(x + 40), stats.poisson(40)),
    "poisson between": (lambda x: torch.poisson(x + 10), stats.poisson(10)),
    "binomial": (lambda x: torch.binomial(x + 9, x + 0.7), stats.binom(9, 0.7)),
    "binomial of many": (lambda x: torch.binomial(x + 90, x + 0.7), stats.binom(90, 0.7)),
    "binomial of rare ones": (lambda x: torch.binomial(x + 900, x + 0.002), stats.binom(900, 0.002)),
    "dropout": (lambda x: F.dropout(x + 1, 0.2) * 0.8, stats.bernoulli(0.8)),
    "dropout in place": (lambda x: F.dropout(x + 1, 0.2, inplace=True) * 0.8, stats.bernoulli(0.8)),
    "dropout1d": (lambda x: F.dropout1d((x + 1).view(1, -1, 1), 0.3) * 0.7, stats.bernoulli(0.7)),
    "dropout2d": (lambda x: F.dropout2d((x + 1).view(1, -1, 1, 1), 0.3) * 0.7, stats.bernoulli(0.7)),
    "dropout3d": (lambda x: F.dropout3d((x + 1).view(1, -1, 1, 1, 1), 0.3) * 0.7, stats.bernoulli(0.7)),
    "alpha_dropout": (lambda x: F.alpha_dropout(x, 0.3, training=True) > 0, stats.bernoulli(0.7)),
    "feature_alpha_dropout": (
        lambda x: F.feature_alpha_dropout(x.view(1, -1, 1), 0.3, training=True) > 0, stats.bernoulli(0.7),
    ),
    "hard gumbel_softmax": (
        lambda x: F.gumbel_softmax(x.view(-1, 1) + values(x, 1, 3, 4).log(), hard=True).argmax(1), (1, 3, 4),
    ),
    "Bernoulli": (lambda x: D.Bernoulli(x + 0.3).sample(), stats.bernoulli(0.3)),
    "Binomial": (lambda x: D.Binomial(12, x + 0.3).sample(), stats.binom(12, 0.3)),
    "Categorical": (lambda x: D.Categorical(values(x, 1, 3, 0, 4)).sample((N,)), (1, 3, 0, 4)),
    "OneHotCategorical": (
        lambda x: D.OneHotCategorical(values(x, 1, 3, 4)).sample((N,)).argmax(1), (1, 3, 4),
    ),
    "Geometric": (lambda x: D.Geometric(x + 0.3).sample() + 1, stats.geom(0.3)),
    "Poisson": (lambda x: D.Poisson(x + 4).sample(), stats.poisson(4)),
    "NegativeBinomial": (lambda x: D.NegativeBinomial(x + 5, x + 0.6).sample(), stats.nbinom(5, 0.4)),
    "Multinomial": (lambda x: D.Multinomial(12, values(x, 3, 7)).sample((5000,))[:, 0], stats.binom(12, 0.3)),
}  # fmt: skip


def fit(x, expected):
    """The probability of counts at least as far from the expected ones, values that are rare taken together."""
    values, counts = np.unique(x, return_counts=True)
    if isinstance(expected, tuple):
        mass = np.asarray(expected) / np.sum(expected)
        assert not set(values.tolist()) - set(np.flatnonzero(mass).tolist())
        at = np.flatnonzero(mass)
        mass = mass[at]
    else:
        low, high = (int(expected.ppf(q)) for q in (1e-9, 1 - 1e-9))
        assert expected.pmf(values).min() > 0
        at = np.arange(low, high + 1)
        mass = expected.pmf(at)
    seen = dict(zip(values.tolist(), counts.tolist(), strict=True))
    observed, wanted = np.array([seen.get(k, 0) for k in at.tolist()], float), mass * len(x)
    common = wanted >= 5
    rest = [len(x) - observed[common].sum()], [len(x) - wanted[common].sum()]
    observed, wanted = (np.concatenate([a[common], r]) for a, r in zip((observed, wanted), rest, strict=True))
    if wanted[-1] < 1:
        assert observed[-1] <= 5
        observed, wanted = observed[:-1], wanted[:-1]
    return stats.chisquare(observed, wanted * observed.sum() / wanted.sum()).pvalue


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete(name):
    draw, expected = DISCRETE[name]
    torch.manual_seed(0)
    x = draw(zeros(tg.device("numpy")))
    assert x.device == tg.device("numpy")
    assert fit(x.double().cpu().round().flatten().numpy(), expected) > RARE


# ---- the same numbers everywhere -------------------------------------------------------------------------------------

EXACT = ["rand", "uniform_ in double", "randperm", "random_", "random_ of bytes", "randint", "bernoulli_", "dropout"]
EXACT += ["multinomial", "second without replacement", "alpha_dropout", "feature_alpha_dropout", "dropout2d"]
CLOSE = ["randn", "exponential_", "cauchy_", "log_normal_", "gamma", "gamma below 1", "dirichlet", "rrelu"]
CLOSE += ["geometric_", "poisson", "poisson of many", "binomial", "binomial of many", "Beta", "StudentT"]


@pytest.mark.parametrize("name", EXACT + CLOSE)
def test_the_same_numbers_everywhere(name, monkeypatch):
    """NumPy and JAX, and JAX under tg.jit: what passes through logarithms and the like to a few units."""
    monkeypatch.setattr(D.Distribution, "_validate_args", False)  # which asks for values
    draw = {**CONTINUOUS, **DISCRETE}[name][0]
    found = []
    pytest.importorskip("jax")
    for backend, wrap in (("numpy", lambda f: f), ("jax", lambda f: f), ("jax", tg.jit)):
        torch.manual_seed(5)
        run = wrap(draw)
        device = tg.device(backend)
        found.append([run(zeros(device, n=500)).double().cpu() for _ in range(2)])
    tolerance = {"rtol": 0, "atol": 0} if name in EXACT else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(found[1], found[0], **tolerance)
    torch.testing.assert_close(found[2], found[1], **tolerance)
    assert not torch.equal(found[0][0], found[0][1])


@pytest.mark.parametrize(
    ("dtype", "low", "high", "least", "most"),
    [
        (torch.float16, 0, 32752, 0, 32736),  # 32751 is 32752 in float16
        (torch.bfloat16, -42, 42, -42, 41),
        (torch.bfloat16, -4097, -1001, -4096, -1008),
        (torch.float32, 0, 2**24, 0, 2**24 - 1),
        (torch.int64, 2**63 - 3, 2**63 - 1, 2**63 - 3, 2**63 - 2),
    ],
)
@pytest.mark.filterwarnings("ignore:.*out of bounds")
def test_integers_stay_below_their_bound(device, dtype, low, high, least, most):
    t = torch.empty(50_000, dtype=dtype, device=device).random_(low, high)
    assert least <= t.min().item() and t.max().item() <= most
    if most - least < 100:  # each number is there
        assert (t.min().item(), t.max().item()) == (least, most)


def test_draws_are_independent(device):
    """Of one another, of their neighbours, and of those of the next seed and of the next offset."""
    draws = []
    for seed in (0, 1, 2**32, 2**63):
        torch.manual_seed(seed)
        draws += [torch.randn(N, device=device).cpu().double() for _ in range(3)]
    draws.append(draws[0].roll(1))
    draws.append(draws[0].roll(1000))
    correlations = np.corrcoef(torch.stack(draws).numpy())
    off = correlations[~np.eye(len(draws), dtype=bool)]
    assert np.abs(off).max() < 5 / math.sqrt(N)


# ---- generators and states -------------------------------------------------------------------------------------------


def test_generators_are_streams_of_their_own(device):
    one, other = (torch.Generator(device=device).manual_seed(seed) for seed in (1, 2))
    torch.manual_seed(0)
    alone = [torch.rand(3, device=device, generator=one).tolist() for _ in range(3)]
    one.manual_seed(1)
    before = torch.graft.get_rng_state(device)
    mixed = []
    for _ in range(3):
        mixed.append(torch.rand(3, device=device, generator=one).tolist())
        torch.rand(3, device=device, generator=other)
        torch.rand(3)
    assert mixed == alone
    assert torch.equal(torch.graft.get_rng_state(device), before)  # the device's own stream has not moved
    assert one.initial_seed() == 1 and alone[0] != alone[1]


GENERATED = {
    "randn": lambda d, g: torch.randn(4, device=d, generator=g),
    "randint": lambda d, g: torch.randint(9, (4,), device=d, generator=g),
    "randperm": lambda d, g: torch.randperm(9, device=d, generator=g),
    "normal": lambda d, g: torch.normal(torch.zeros(4, device=d), 1.0, generator=g),
    "normal of sizes": lambda d, g: torch.normal(0.0, 1.0, (4,), device=d, generator=g),
    "bernoulli": lambda d, g: torch.bernoulli(torch.full((40,), 0.5, device=d), generator=g),
    "multinomial": lambda d, g: torch.multinomial(torch.ones(20, device=d), 10, generator=g),
    "poisson": lambda d, g: torch.poisson(torch.full((9,), 5.0, device=d), generator=g),
    "binomial": lambda d, g: torch.binomial(torch.full((9,), 9.0, device=d), torch.tensor(0.5, device=d), generator=g),
    "gamma": lambda d, g: torch._standard_gamma(torch.ones(4, device=d), generator=g),
    "exponential_": lambda d, g: torch.zeros(4, device=d).exponential_(generator=g),
    "random_": lambda d, g: torch.zeros(4, device=d).random_(generator=g),
    "out": lambda d, g: torch.rand(4, out=torch.empty(4, device=d), generator=g),
    "rrelu": lambda d, g: torch.rrelu(-torch.ones(9, device=d), 0.1, 0.9, True, g),
    "kaiming": lambda d, g: torch.nn.init.kaiming_uniform_(torch.zeros(3, 3, device=d), generator=g),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATED)
def test_generators_are_used(name, device):
    g = torch.Generator(device=device)
    state = g.manual_seed(3).get_state()
    first = GENERATED[name](device, g).tolist()
    assert GENERATED[name](device, g).tolist() != first
    g.set_state(state)
    assert GENERATED[name](device, g).tolist() == first
    twin = torch.Generator(device=device)
    twin.set_state(state)
    assert GENERATED[name](device, twin).tolist() == first


def test_a_generator_goes_into_a_file(device):
    g = torch.Generator(device=device).manual_seed(3)
    torch.rand(2, device=device, generator=g)
    file = io.BytesIO()
    torch.save({"generator": g.get_state(), "device": torch.graft.get_rng_state(device)}, file)
    expected = [torch.rand(2, device=device, generator=g).tolist(), torch.rand(2, device=device).tolist()]
    file.seek(0)
    saved = torch.load(file)
    g.set_state(saved["generator"])
    torch.graft.set_rng_state(saved["device"], device)
    assert [torch.rand(2, device=device, generator=g).tolist(), torch.rand(2, device=device).tolist()] == expected


def test_generators_under_jit():
    device = tg.device("jax")
    g = torch.Generator(device=device)

    def draw(x):
        return x + torch.rand(3, device=device, generator=g), torch.randn(3, device=device, generator=g)

    def values(function):
        g.manual_seed(4)
        return [t.tolist() for _ in range(3) for t in function(torch.ones(3, device=device))]

    assert values(tg.jit(draw)) == pytest.approx(np.asarray(values(draw)), rel=1e-6)


def test_fork_rng_and_seeds(device):
    torch.manual_seed(7)
    first = torch.rand(3, device=device)
    with torch.random.fork_rng([device.index], device_type="graft"):
        torch.manual_seed(7)
        assert torch.equal(torch.rand(3, device=device), first)
        torch.rand(3, device=device)
    second = torch.rand(3, device=device)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3, device=device), first) and torch.equal(torch.rand(3, device=device), second)
    with torch.graft.device(device):
        torch.graft.seed()
        assert not torch.equal(torch.rand(3, device=device), first)
    assert torch.seed() == torch.initial_seed()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpoint_repeats_the_mask(device, reentrant, preserve):
    """Without `preserve_rng_state` the recomputation draws anew, as PyTorch says."""
    masks = []

    def layer(x):
        y = F.dropout(x, 0.5)
        masks.append(y.detach().ne(0).tolist())
        return y * y

    torch.manual_seed(0)
    x = torch.ones(64, device=device, requires_grad=True)
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant, preserve_rng_state=preserve)
        after = torch.graft.get_rng_state(device)
        y.sum().backward()
    assert (masks[0] == masks[1]) is preserve
    if preserve:
        assert torch.equal(torch.graft.get_rng_state(device), after)  # the recomputation takes nothing from the stream
        assert x.grad.ne(0).tolist() == masks[0]


# ---- derivatives of samples ------------------------------------------------------------------------------------------

PATHWISE = {
    "Normal": lambda a, b: D.Normal(a, b),
    "LogNormal": lambda a, b: D.LogNormal(a, b),
    "Uniform": lambda a, b: D.Uniform(a, a + b),
    "Exponential": lambda a, b: D.Exponential(a + b),
    "Laplace": lambda a, b: D.Laplace(a, b),
    "Gumbel": lambda a, b: D.Gumbel(a, b),
    "Cauchy": lambda a, b: D.Cauchy(a, b),
    "Gamma": lambda a, b: D.Gamma(a, b),
    "Beta": lambda a, b: D.Beta(a, b),
    "Dirichlet": lambda a, b: D.Dirichlet(torch.stack([a, b, a + b], -1)),
    "StudentT": lambda a, b: D.StudentT(a + 1, a, b),
    "Weibull": lambda a, b: D.Weibull(a, b),
    "Pareto": lambda a, b: D.Pareto(a, b + 1),
    "MultivariateNormal": lambda a, b: D.MultivariateNormal(a, scale_tril=torch.diag(b)),
    "LowRankMultivariateNormal": lambda a, b: D.LowRankMultivariateNormal(a, b.unsqueeze(1), b),
    "RelaxedOneHotCategorical": lambda a, b: D.RelaxedOneHotCategorical(b[0], logits=a),
}


@pytest.mark.parametrize("name", PATHWISE)
def test_reparametrised_gradients(name):
    """The mean of the samples' gradients is the gradient of the mean, which differences give with the same draws."""
    make, device = PATHWISE[name], tg.device("numpy")

    def mean(a, b):
        torch.manual_seed(3)
        return torch.tanh(make(a, b).rsample((4000,))).mean()

    a, b = (torch.tensor(v, dtype=torch.float64).to(device).requires_grad_() for v in ([1.3, 2.0], [0.8, 1.5]))
    made = torch.autograd.grad(mean(a, b), (a, b), allow_unused=True)
    rejected = name in ("Gamma", "Beta", "Dirichlet", "StudentT")  # draws differ where a proposal is refused
    step, tolerance = (0.2, 0.01) if rejected else (1e-5, 1e-6)
    for which, grad in zip((0, 1), made, strict=True):
        for i in range(2):
            shift = torch.zeros_like(a)
            shift[i] = step
            up, down = ([p + s * shift if k == which else p for k, p in enumerate((a, b))] for s in (1, -1))
            difference = (mean(*up).item() - mean(*down).item()) / (2 * step)
            assert (0.0 if grad is None else grad[i].item()) == pytest.approx(difference, abs=tolerance)


FIRST_USE = """
import random
import numpy as np
import torch
import tensorgraft as tg
random.seed(0), np.random.seed(0)
total = (torch.ones(2, device=tg.device("jax")) * 2).sum().item()
print(total, random.random(), np.random.rand())
"""


def test_the_first_use_of_a_backend_draws_no_numbers_of_the_program():
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, check=True)
    generator = random.Random(0)
    assert done.stdout.split() == ["4.0", str(generator.random()), str(np.random.RandomState(0).rand())]
