"""How many operators and programs a call takes: batched gradients, operators that PyTorch makes of `out=`, samples."""

from __future__ import annotations

import pytest
import torch

import tensorgraft as tg


def computed(fn) -> dict[str, int]:
    before, _ = tg.torch.tier_counts()
    fn()
    return dict(tg.torch.tier_counts()[0] - before)


@pytest.mark.parametrize("rows", [3, 30])
def test_batched_gradients_of_linear_layers_are_one_product(rows: int) -> None:
    device = tg.device("jax")
    layer = torch.nn.Linear(4, 2).to(device)
    x = torch.ones(5, 4, device=device, requires_grad=True)
    y, seeds = layer(x), torch.randn(rows, 5, 2, device=device)
    expected = torch.stack([torch.autograd.grad(y, x, seed, retain_graph=True)[0] for seed in seeds])

    def batched() -> None:
        (found,) = torch.autograd.grad(y, x, seeds, is_grads_batched=True, retain_graph=True)
        torch.testing.assert_close(found.cpu(), expected.cpu())

    counts = computed(batched)
    assert sum(n for name, n in counts.items() if name in ("mm", "bmm", "linear_backward")) == 1, counts


@pytest.mark.parametrize("name", ["elu", "hardsigmoid", "softplus", "softshrink", "mish", "sinc"])
def test_structured_operators_are_one_call(name: str) -> None:
    x = torch.linspace(-3, 3, 7)
    op = getattr(torch.ops.aten, name).default
    on_device = x.to(tg.device("jax"))
    assert computed(lambda: torch.testing.assert_close(op(on_device).cpu(), op(x), rtol=0, atol=0))[name] == 1


@pytest.mark.parametrize("on", ["jax", "numpy"])
def test_polynomials_on_both_sides_of_the_angle(on: str) -> None:
    x = torch.linspace(-1.5, 1.5, 13)
    for n in (torch.zeros(13), torch.arange(13.0)):
        for kind in ("t", "u", "v", "w"):
            fn = getattr(torch.special, f"chebyshev_polynomial_{kind}")
            found = tg.jit(lambda a, b, fn=fn: fn(a, b))(x.to(tg.device(on)), n.to(tg.device(on)))
            torch.testing.assert_close(found.cpu(), fn(x, n), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("on", ["jax", "numpy"])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_gradients_of_resized_images(mode: str, on: str) -> None:
    """The same size, whole multiples, smaller ones, and sizes at which reads are fewer than rows of a matrix."""
    for size in ((6, 9), (12, 27), (3, 4), (7, 5), (200, 180)):
        images = [torch.ones(1, 2, 6, 9, device=d, requires_grad=True) for d in ("cpu", tg.device(on))]
        for image in images:
            out = torch.nn.functional.interpolate(image, size=size, mode=mode)
            out.backward((torch.arange(out.numel()).reshape(out.shape) % 7 - 3.0).to(image.device))
        torch.testing.assert_close(images[1].grad.cpu(), images[0].grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("on", ["jax", "numpy"])
def test_positions_of_true_elements(on: str) -> None:
    x = torch.arange(12).reshape(3, 4) % 3 == 0
    for size in (0, 2, 4, 20):
        expected = torch.nonzero_static(x, size=size, fill_value=-2)
        found = tg.jit(lambda x, size=size: torch.nonzero_static(x, size=size, fill_value=-2))(x.to(tg.device(on)))
        assert torch.equal(found.cpu(), expected)
