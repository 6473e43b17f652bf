"""Compiled functions take tensors without axes where PyTorch takes numbers, and asks for their values."""

import pytest
import torch

import tensorgraft as tg

pytestmark = pytest.mark.filterwarnings("error::tensorgraft.transforms.UncompiledWarning")
METHODS = ("add", "sub", "mul", "div", "pow", "clamp_min", "clamp_max", "maximum", "minimum")


def arguments():
    with torch.device(tg.device("jax")):
        return [torch.full((2,), 2.0), torch.tensor([[1.0, 0.0]], dtype=torch.float16)], torch.tensor(0.75)


def agree(fn, *args, expected=None):
    compiled = tg.jit(fn)
    expected = fn(*args) if expected is None else expected
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_lists_and_one_tensor(method):
    agree(getattr(torch, f"_foreach_{method}"), *arguments())


@pytest.mark.parametrize("method", METHODS)
def test_in_place(method):
    tensors, number = arguments()
    expected, _ = arguments()
    getattr(torch, f"_foreach_{method}_")(expected, number)
    tg.jit(lambda tensors, number: getattr(torch, f"_foreach_{method}_")(tensors, number) and None)(tensors, number)
    torch.testing.assert_close(tensors, expected)


def test_powers_of_one_tensor():
    tensors, number = arguments()
    agree(torch._foreach_pow, number, tensors)
    agree(torch._foreach_pow, number.double(), [number, number.half()])


def test_interpolation():
    tensors, number = arguments()
    agree(torch._foreach_lerp, tensors, [t + 1 for t in tensors], number)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.tensor([x, 2]),
        lambda x: torch.tensor([[x, 1], [2, x.reshape(1)]], dtype=torch.float64),
        lambda x: torch.tensor((x.int(), True)),
        lambda x: torch.tensor([x.half(), 1j]),
        lambda x: torch.as_tensor([x, 1]),
        lambda x: torch.asarray([x, 1]),
        lambda x: torch.full((2,), x),
    ],
)
def test_tensors_of_lists(fn):
    with torch.device(tg.device("jax")):
        agree(fn, torch.tensor(1.5))


def test_what_pytorch_refuses():
    x = torch.ones(2, device=tg.device("jax"))
    with pytest.raises(ValueError, match="one element tensors"):
        tg.jit(lambda x: torch.tensor([x, x]))(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.complex64])
@pytest.mark.parametrize("backend", ["jax", "tensorflow"])
def test_nan_times_false(backend, dtype):
    """XLA makes a product with a converted boolean a selection, where it would be 0."""
    x = torch.tensor([float("nan"), float("inf"), 2], dtype=dtype, device=tg.device(backend))
    mask = torch.tensor([False, False, True], device=tg.device(backend))
    for fn in (lambda x, mask: x * mask, lambda x, mask: mask.to(x) * x):
        assert tg.jit(fn)(x, mask).isnan().tolist() == fn(x, mask).isnan().tolist() == [True, True, False]
    assert tg.jit(lambda x: x * (x == x))(x).isnan().tolist()[0]


ORDERS = (torch.inf, -torch.inf, torch.nan, 1.0, 3.0, 0.5, 0.0, 2.0, 171.5, 5e4, 1e30)
POINTS = (1.0, 2.0, 0.5, 0.0, -1.0, -0.5, -2.5, torch.inf, -torch.inf, torch.nan, 0.999, 5e4)
AT_EDGES = {
    "zeta": torch.special.zeta,
    "gammainc": torch.special.gammainc,
    "gammaincc": torch.special.gammaincc,
    **{f"polygamma {n}": lambda s, q, n=n: torch.polygamma(n, q) for n in (1, 2, 3)},
}


@pytest.mark.parametrize("name", AT_EDGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", tg.backends())
def test_special_functions_at_their_edges(backend, dtype, name):
    orders, points = (torch.tensor(values, dtype=dtype) for values in (ORDERS, POINTS))
    s, q = (t.flatten() for t in torch.meshgrid(orders, points, indexing="ij"))
    finite = (s != torch.tensor(1e30, dtype=dtype)) | (q <= 1)  # else PyTorch's sums overflow
    s, q = s[finite], q[finite]
    device, fn = tg.device(backend), AT_EDGES[name]
    found = tg.jit(fn)(s.to(device), q.to(device)).cpu()
    expected = fn(s, q)
    if name == "polygamma 1":  # at a pole it is what rounding has left of it
        pole = (q < 0) & (q == q.floor()) & q.isfinite()
        assert found[pole].abs().min() > 1e14
        found, expected = found[~pole], expected[~pole]
    torch.testing.assert_close(
        found, expected, equal_nan=True, rtol=2e-5 if dtype is torch.float32 else 1e-9, atol=1e-6
    )


@pytest.mark.parametrize("by_frequency", [False, True])
@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
def test_gradients_of_bags_are_rounded_as_on_the_cpu(mode, by_frequency):
    """Row by row, and with the frequencies that the CPU's kernel takes."""
    if by_frequency and mode == "max":
        return
    generator = torch.Generator().manual_seed(1)
    table, dy, each = (torch.randn(n, generator=generator).bfloat16() for n in ((10, 64), (3, 64), (12,)))

    def found(device, jit):
        w = table.clone().to(device).requires_grad_()
        weights = each.clone().to(device) if mode == "weighted" else None
        indices = torch.tensor([1, 2, 4, 5, 4, 3, 2, 9, 1, 1, 1, 1]).to(device)

        def bags(w):
            kind = "sum" if mode == "weighted" else mode
            options = {"per_sample_weights": weights, "scale_grad_by_freq": by_frequency}
            return torch.nn.functional.embedding_bag(indices, w, indices.new_tensor([0, 4, 8]), mode=kind, **options)

        jit(bags)(w).backward(dy.to(device))
        return w.grad.cpu()

    assert torch.equal(found(tg.device("jax"), tg.jit), found("cpu", lambda f: f))
