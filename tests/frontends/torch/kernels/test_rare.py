"""Rare operators have kernels too: against CPU PyTorch, and none of them runs there. A case is a line."""

import math

import mpmath
import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import tensorgraft as tg
import tensorgraft.frontends.torch as front

pytestmark = pytest.mark.sampled

aten = torch.ops.aten
CASES = {}


@pytest.fixture(params=["jax", "numpy"])
def device(request):
    return tg.device(request.param)


def case(name, fn, *args, tol=1e-4):
    assert name not in CASES
    CASES[name] = (fn, args, tol)


def _random(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


# the diagonal is small, so that pivots of two by two are taken
M = _random(2, 5, 5, dtype=torch.float64) * (1 - 0.99 * torch.eye(5))
H = _random(5, 5, dtype=torch.complex128) * (1 - 0.99 * torch.eye(5))
X, W = torch.linspace(-2, 3, 24).reshape(2, 4, 3), torch.linspace(0, 1, 8).reshape(2, 4)
NANS = torch.tensor([[1.0, 0.0], [2.0, 0.0], [math.nan, 3.0], [2.0, 2.0], [0.0, -1.0]])
LENGTHS, EACH = torch.tensor([2, 0, 3]), torch.tensor([[1, 0, 3], [2, 2, 0]])
ODD = torch.tensor([0.5, -0.5, 0.25, math.nan, 2, -3])
INFINITE = torch.tensor([[1 + 1j, 2j, complex(-math.inf, 1), 3], [1, complex(math.inf, 1), complex(math.inf, 2), 0]])


def ldl(x, hermitian=False):
    return torch.linalg.ldl_factor_ex(x, hermitian=hermitian)


def ldl_solve(x, b, hermitian=False):
    made = torch.linalg.ldl_factor_ex(x, hermitian=hermitian)
    return torch.linalg.ldl_solve(made.LD, made.pivots, b, hermitian=hermitian)


case("ldl_factor", ldl, M)
case("ldl_factor complex", ldl, H)
case("ldl_factor hermitian", lambda x: ldl(x, True), H)
case("ldl_factor singular", ldl, torch.zeros(2, 3, 3))
case("ldl_factor empty", ldl, torch.zeros(2, 0, 0))
case("ldl_solve", ldl_solve, M, _random(2, 5, 2, dtype=torch.float64))
case("ldl_solve hermitian", lambda x, b: ldl_solve(x, b, True), H, _random(3, 5, 2, dtype=torch.complex128))


def segments(reduce, *, initial=None, axis=0, **fixed):
    def fn(x, **bounds):
        return torch.segment_reduce(x, reduce, axis=axis, initial=initial, **fixed, **bounds)

    return fn


def with_gradient(fn):
    def both(x, bounds):
        x = x.clone().requires_grad_()
        out = fn(x, **bounds)
        out.backward(torch.linspace(-1, 1, out.numel(), device=x.device).view(out.shape))
        return out.detach(), x.grad

    return both


for _reduce in ("sum", "mean", "prod", "max", "min"):
    for _initial in (None, 2.0):
        _fn = with_gradient(segments(_reduce, initial=_initial))
        case(f"segment_reduce {_reduce} {_initial}", _fn, NANS, {"lengths": LENGTHS})
    case(f"segment_reduce rows {_reduce}", with_gradient(segments(_reduce, axis=1)), X, {"lengths": EACH})
case("segment_reduce offsets", with_gradient(segments("sum")), NANS, {"offsets": torch.tensor([1, 1, 4])})
case("segment_reduce unsafe", with_gradient(segments("max", unsafe=True)), NANS, {"lengths": torch.tensor([1, 1])})

for _dtype in (torch.float32, torch.bfloat16, torch.int8, torch.uint8, torch.bool):
    case(f"hash_tensor {_dtype}", lambda x: torch.hash_tensor(x, (0, 2)), X.to(_dtype))
case("hash_tensor all", torch.hash_tensor, X)
case("hash_tensor nothing", lambda x: torch.hash_tensor(x, 0, keepdim=True), torch.zeros(2, 0))

EDGES = [torch.tensor([-2.0, 0, 1]), torch.tensor([-2.0, 3]), torch.tensor([0.0, 1, 2, 3])]
case("histogramdd", lambda x: tuple(torch.histogramdd(x, [2, 3, 4]).bin_edges), X)
case("histogramdd counts", lambda x, w: torch.histogramdd(x, [2, 3, 4], weight=w, density=True).hist, X, W)
case("histogramdd range", lambda x: torch.histogramdd(x, [2, 1, 4], range=[-1.0, 1, 0, 2, -5, 5]).hist, X)
case("histogramdd edges", lambda x, w: torch.histogramdd(x, [e.to(x.device) for e in EDGES], weight=w).hist, X, W)
case("unique rows of nothing", lambda x: torch.unique(x, dim=0, return_counts=True), torch.zeros(0, 3))
case("addr of dtypes", torch.addr, torch.arange(6).reshape(2, 3), torch.ones(2), torch.ones(3, dtype=torch.bool))
case("addr of bool", torch.addr, *(torch.tensor(v) > 0 for v in ([[1, 0], [0, 0]], [1, 0], [0, 1])))
case("hardshrink_backward", lambda x: aten.hardshrink_backward(x, x, 0.5), ODD)
case("softshrink_backward", lambda x: aten.softshrink_backward(x, x, 0.5), ODD)
case("logcumsumexp complex", lambda x: torch.logcumsumexp(x, 1), INFINITE)
case("logaddexp complex", lambda x: torch.logaddexp(x[0], x[1]), INFINITE)
case("linspace integers", lambda x: torch.linspace(4.7, -3, 9, dtype=torch.int32, device=x.device), X)
case("logspace integers", lambda x: torch.logspace(4.3, 0, 4, base=3.0, dtype=torch.int64, device=x.device), X)
case("logspace", lambda x: torch.logspace(-1.5, 2, 5, device=x.device), X)
case("_masked_softmax pairs", lambda x: aten._masked_softmax(x, x[0, 0] > 1, 3, 0), _random(2, 2, 3, 3))
case("_masked_softmax places", lambda x: aten._masked_softmax(x, x[:, 0, 0] > 1, None, 1), _random(2, 2, 3, 3))
case("_masked_softmax elements", lambda x: aten._masked_softmax(x, x > 1, 2, 2), _random(2, 2, 3, 3))
case("_masked_softmax_backward", lambda x: aten._masked_softmax_backward(x, x.exp(), x > 1, 2), _random(2, 2, 3, 3))
case("_int_mm", torch._int_mm, torch.arange(-60, 60).reshape(20, 6).char(), torch.arange(48).reshape(6, 8).char())


BYTES = torch.randint(0, 256, (1, 2, 37, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
for _mode, _smooth in (("bilinear", False), ("bilinear", True), ("bicubic", False), ("bicubic", True)):
    for _size in ((64, 69), (20, 33), (36, 41)):
        case(
            f"bytes {_mode} {_smooth} {_size}",
            lambda x, *, size=_size, m=_mode, a=_smooth: F.interpolate(x, size, mode=m, antialias=a),
            BYTES,
        )


def batch_norm_out(x):
    running = x.new_zeros(3), x.new_ones(3)
    outs = tuple(x.new_empty(0) for _ in range(3))
    made = torch.native_batch_norm(x, None, None, *running, True, 0.1, 1e-5, out=outs)
    assert all(m is out for m, out in zip(made, outs, strict=True))
    return *outs, *running


case("native_batch_norm out", batch_norm_out, _random(4, 3))


def eigenvalues_out(x):
    out = x.new_empty(0, dtype=torch.complex128)
    assert torch.linalg.eigvals(x, out=out) is out
    return out.abs().sort().values


case("eigvals out", eigenvalues_out, M[0])


def batch_norm_legit_out(x):
    running = x.new_zeros(3), x.new_ones(3)
    outs = {name: x.new_empty(0) for name in ("out", "save_mean", "save_invstd")}
    aten._native_batch_norm_legit.out(x, None, None, *running, True, 0.1, 1e-5, **outs)
    return *outs.values(), *running


case("_native_batch_norm_legit out", batch_norm_legit_out, _random(4, 3))


def moved(a, device):
    if isinstance(a, dict):
        return {name: moved(v, device) for name, v in a.items()}
    return a.to(device)


@pytest.mark.parametrize("name", CASES)
def test_as_on_the_cpu(name, device):
    fn, args, tol = CASES[name]
    expected, before = fn(*args), front.fallbacks()
    got = fn(*[moved(a, device) for a in args])
    assert front.fallbacks() == before
    pairs = [(got, expected)] if isinstance(expected, torch.Tensor) else list(zip(got, expected, strict=True))
    for mine, theirs in pairs:
        assert_close(mine.cpu(), theirs, rtol=tol, atol=tol, equal_nan=True)
        assert mine.stride() == theirs.stride() or not theirs.numel()


REFUSED = {
    "lengths that do not fill": lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([1]).to(x.device)),
    "negative length": lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([3, -1]).to(x.device)),
    "no lengths": lambda x: torch.segment_reduce(x, "sum"),
    "reduction": lambda x: torch.segment_reduce(x, "median", lengths=torch.tensor([2]).to(x.device)),
    "nothing to hash": lambda x: torch.hash_tensor(x[:0], 0),
    "mode": lambda x: torch.hash_tensor(x, mode=1),
    "ldl": lambda x: torch.linalg.ldl_factor(x * 0),
    "range": lambda x: torch.histogramdd(x, [2, 2], range=[0.0, 1, 2]),
    "mask": lambda x: aten._masked_softmax(x, x, 1, 2),
    "assertion": lambda x: torch._assert_async((x * 0).sum()),
    "said": lambda x: aten._assert_async.msg((x * 0).sum(), "no sum"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_the_cpus_words(name, device):
    with pytest.raises(Exception) as expected:
        REFUSED[name](torch.eye(2))
    with pytest.raises(type(expected.value)) as got:
        REFUSED[name](torch.eye(2).to(device))
    assert str(got.value) == str(expected.value)


def implicit(cumulative, density, a):
    """-(dF/da) / f, by differences in 30 digits."""
    with mpmath.workdps(30):
        return float(-mpmath.diff(cumulative, a) / density(a))


@pytest.mark.parametrize("a", [0.01, 0.5, 1.0, 3.0, 20.0, 1000.0])
def test_gamma_samples_move_with_their_distribution_function(a, device):
    """PyTorch's own formula is right to about 1e-3."""
    x = a * torch.tensor([0.5, 0.9, 1, 1.2], dtype=torch.float64)
    alpha = torch.full_like(x, a)
    got = aten._standard_gamma_grad(alpha.to(device), x.to(device)).cpu()
    expected = [
        implicit(
            lambda a, v=v: mpmath.gammainc(a, 0, v, regularized=True),
            lambda a, v=v: mpmath.exp((a - 1) * mpmath.log(v) - v - mpmath.loggamma(a)),
            a,
        )
        for v in x.tolist()
    ]
    assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-8, atol=1e-12)
    assert_close(got, aten._standard_gamma_grad(alpha, x), rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("a", [0.3, 1.0, 2.5, 40.0])
@pytest.mark.parametrize("b", [0.3, 1.0, 2.5, 40.0])
def test_dirichlet_samples_move_with_their_distribution_function(a, b, device):
    x = torch.tensor([0.05, 0.4, 0.8], dtype=torch.float64)
    alpha = torch.full_like(x, a)
    got = aten._dirichlet_grad(*[v.to(device) for v in (x, alpha, alpha + b)]).cpu()
    expected = [
        implicit(
            lambda a, v=v: mpmath.betainc(a, b, 0, v, regularized=True),
            lambda a, v=v: v ** (a - 1) * (1 - v) ** (b - 1) / mpmath.beta(a, b),
            a,
        )
        / (1 - v)
        for v in x.tolist()
    ]
    assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-9)


def test_uniform_numbers_of_both_parts(device):
    x = torch.empty(1000, dtype=torch.complex64, device=device).uniform_(2, 3).cpu()
    for part in (x.real, x.imag):
        assert part.min() >= 2 and part.max() <= 3 and abs(part.mean() - 2.5) < 0.05
    assert not torch.equal(x.real, x.imag)
