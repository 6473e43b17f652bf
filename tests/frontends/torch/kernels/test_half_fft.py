"""`torch.fft` of float16 tensors, which CPU PyTorch refuses: computed in float32 and rounded once."""

import pytest
import torch

import tensorgraft as tg

TRANSFORMS = [f"{kind}{form}" for kind in ("", "i", "r", "ir", "h", "ih") for form in ("fft", "fft2", "fftn")]
NARROW = {torch.float32: torch.float16, torch.complex64: torch.complex32}

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf")


def narrow(x):
    return x.to(NARROW[x.dtype])


def equal(x, y):
    assert x.dtype is y.dtype
    x, y = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (x, y))
    assert torch.equal(x.cpu(), y.cpu())


@pytest.fixture(params=["jax", "numpy"])
def device(request):
    return tg.device(request.param)


def halves(device, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).half().to(device)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_round_once(name):
    device = tg.device("jax" if name in ("fft", "rfft2", "hfft") else "numpy")
    transform, x = getattr(torch.fft, name), halves(device, 3, 6)
    result = transform(x, norm="ortho")
    equal(result, wide := narrow(transform(x.float(), norm="ortho")))
    assert result.stride() == wide.stride()
    out = torch.empty(0, dtype=result.dtype, device=device)
    assert transform(x, norm="ortho", out=out) is out
    equal(out, result)


@pytest.mark.parametrize("name", ["fft", "ihfft", "irfftn"])
def test_gradients_are_float16(device, name):
    transform = getattr(torch.fft, name)
    x = halves(device, 3, 6).requires_grad_()
    wide = x.detach().float().requires_grad_()
    transform(x).abs().float().sum().backward()
    narrow(transform(wide)).abs().float().sum().backward()
    equal(x.grad, wide.grad.half())


def test_compiled_and_batched_transforms():
    x = halves(tg.device("jax"), 3, 6)
    expected = torch.fft.rfft(x)
    equal(tg.jit(torch.fft.rfft, compile="first")(x), expected)
    equal(torch.func.vmap(torch.fft.rfft)(x), expected)


def test_short_time_transforms(device):
    x, window = halves(device, 16), torch.ones(4, dtype=torch.float16, device=device)
    wide = torch.stft(x.float(), 4, window=window.float(), return_complex=True)
    equal(torch.stft(x, 4, window=window, return_complex=True), narrow(wide))


def test_refusals(device):
    x = halves(device, 4)
    with pytest.raises(RuntimeError, match="Unsupported dtype BFloat16"):
        torch.fft.fft(x.bfloat16())
    with pytest.raises(RuntimeError, match="rfft expects a complex output tensor, but got Half"):
        torch.fft.rfft(x, out=torch.empty(0, dtype=torch.float16, device=device))
    with pytest.raises(RuntimeError, match="Unsupported dtype Half"):
        torch.fft.fft(x.cpu())
