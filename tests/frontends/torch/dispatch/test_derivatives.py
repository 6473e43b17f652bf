"""Derivatives of every kind against CPU PyTorch: double backward, forward mode, forward over reverse, batches."""

import pytest
import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from torch.func import jacfwd, jacrev, jvp, vmap

import tensorgraft as tg

pytestmark = pytest.mark.sampled

X = torch.linspace(-2, 2, 24).reshape(4, 6)
W = torch.linspace(0.5, 2, 18).reshape(3, 6)
Z = torch.complex(X, X.flip(0))
V = torch.complex(W, W.flip(1))
SPD = X[:, :4] @ X[:, :4].t() + torch.diag(torch.arange(1.0, 5))

# name -> (function, arguments, all of which are differentiated)
FUNCTIONS = {
    "linear": (lambda x, w: F.linear(x, w, w[:, 0]), (X, W)),
    "linear of three axes": (lambda x, w: F.linear(x.reshape(2, 2, 6), w), (X, W)),
    "linear of one output": (lambda x, w: F.linear(x, w[0]), (X, W)),
    "linear, complex": (lambda x, w: F.linear(x, w, w[:, 0]), (Z, V)),
    "glu": (F.glu, (X,)),
    "glu along the first axis": (lambda x: F.glu(x, 0), (X,)),
    "softmax": (lambda x: x.softmax(1), (X,)),
    "layer_norm": (lambda x, w: F.layer_norm(x, (6,), w[0], w[1]), (X, W)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 5, 2, 2], device=x.device)), (X,)),
    "conv1d": (lambda x, w: F.conv1d(x[None], w.reshape(1, 4, -1)[..., :2], padding=1), (X, W[:2])),
    "attention": (lambda x, w: F.scaled_dot_product_attention(x[None], w[None], w[None] ** 2), (X, W)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 2), (X,)),
    "cholesky": (lambda a: torch.linalg.cholesky(a), (SPD,)),
    "eigh": (lambda a: torch.linalg.eigvalsh(a), (SPD,)),
    "solve": (lambda a, x: torch.linalg.solve(a, x), (SPD, X)),
    "fft": (lambda x: torch.fft.rfft(x).abs(), (X,)),
    "cumprod": (lambda x: x.cumprod(1), (X,)),
    "index_put": (lambda x, w: x.clone().index_put_((torch.tensor([2, 0, 2], device=x.device),), w, True), (X, W)),
    "gather": (lambda x: x.gather(1, torch.tensor([[1, 1, 0]], device=x.device)), (X,)),
    "complex product": (lambda z, v: (z @ v.mH).angle(), (Z, V)),
}
# every new shape is compiled there, and the operators are the same: those that the front end treats in their own way
ON_JAX = ("linear", "linear, complex", "glu", "attention")


@pytest.fixture(params=["jax", "numpy"])
def device(request):
    return tg.device(request.param)


def random_like(t, seed):
    return torch.randn(t.shape, generator=torch.Generator().manual_seed(seed), dtype=t.dtype).to(t.device)


def double_backward(f, xs):
    xs = [x.clone().requires_grad_() for x in xs]
    y = f(*xs)
    cotangent = random_like(y.detach().cpu(), 1).to(y.device).requires_grad_()
    first = torch.autograd.grad(y, xs, cotangent, create_graph=True)
    total = sum((g * g.conj()).real.sum() for g in first)
    return [*first, *torch.autograd.grad(total, [*xs, cotangent], allow_unused=True)]


def forward_over_reverse(f, xs):
    """The tangents of the result, and of the gradients."""
    with fwd.dual_level():
        duals = [
            fwd.make_dual(x.clone().requires_grad_(), random_like(x.cpu(), i).to(x.device)) for i, x in enumerate(xs)
        ]
        y = f(*duals)
        grads = torch.autograd.grad((y * y.conj()).real.sum(), duals, create_graph=True)
        return [fwd.unpack_dual(t).tangent for t in (y, *grads)]


def batched(f, xs):
    return [vmap(f)(*[torch.stack([x, x * 1.01]) for x in xs])]


def jacobians(f, xs):
    where = tuple(range(len(xs)))
    if any(x.is_complex() for x in xs):
        return [jvp(f, tuple(xs), tuple(x.conj() for x in xs))[1]]
    return [*jacrev(f, where)(*xs), *jacfwd(f, where)(*xs)]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap's own, without a batching rule
@pytest.mark.parametrize(
    ("device", "name"),
    [*(("numpy", name) for name in FUNCTIONS), *(("jax", name) for name in ON_JAX)],
    indirect=["device"],
)
@pytest.mark.parametrize("way", [double_backward, forward_over_reverse, batched, jacobians], ids=lambda f: f.__name__)
def test_as_on_the_cpu(device, name, way):
    f, xs = FUNCTIONS[name]
    expected = way(f, xs)
    actual = way(f, [x.to(device) for x in xs])
    for want, got in zip(expected, actual, strict=True):
        assert (want is None) == (got is None)
        if want is not None:
            assert got.device == device
            torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)


def test_linear_is_one_operator_again_after_forward_mode(device):
    x, w = X.to(device).requires_grad_(), W.to(device)
    with fwd.dual_level():
        assert fwd.unpack_dual(F.linear(fwd.make_dual(x, x.detach()), w)).tangent is not None
    assert type(F.linear(x, w).grad_fn).__name__ == "LinearBackward0"


def test_fractional_windows_outside_of_the_unit_interval(device):
    """PyTorch truncates where a window begins, for negative samples too."""
    x = X.repeat(2, 2)[None, None]
    samples = torch.tensor([[[4.9, -0.7]]])
    options = {"kernel_size": 2, "output_ratio": (0.5, 0.5), "return_indices": True}
    want = F.fractional_max_pool2d(x, **options, _random_samples=samples)
    got = F.fractional_max_pool2d(x.to(device), **options, _random_samples=samples.to(device))
    assert torch.equal(got[1].cpu(), want[1])


def test_ends_of_a_range_are_mapped_over(device):
    def ranges(x):
        return (
            vmap(lambda a: torch.linspace(a, 5, 4, device=x.device))(x),
            vmap(lambda a: torch.linspace(0.5, a, 4, device=x.device, dtype=torch.float32))(x),
            vmap(lambda a: torch.logspace(1, a, 4, base=2, device=x.device))(x),
        )

    torch.testing.assert_close([t.cpu() for t in ranges(X[0].to(device))], [*ranges(X[0])])


def test_tensor_split_at_numbers_on_the_device(device):
    x = X.to(device).requires_grad_()
    parts = x.tensor_split(torch.tensor([1, 4], device=device), 1)
    (parts[1] ** 2).sum().backward()
    assert [p.shape[1] for p in parts] == [1, 3, 2]
    torch.testing.assert_close(x.grad.cpu()[:, 1:4], 2 * X[:, 1:4])
