"""New tensors, which are imported from headers without memory, are what PyTorch's own factories make."""

import gc
import weakref

import pytest
import torch

import tensorgraft as tg
from tensorgraft.frontends.torch.core import new_tensors
from tensorgraft.frontends.torch.core.tensors import cell_of


@pytest.fixture(params=["jax", "numpy"])
def device(request):
    pytest.importorskip(request.param)
    return tg.device(request.param)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.uint16])
def test_look(device, dtype):
    for size in ((), (0, 3), (2, 3), (1, 1, 4)):
        here, there = (torch.zeros(size, dtype=dtype, device=d) for d in ("cpu", device))
        assert there.device == device and there.dtype == dtype and there.size() == here.size()
        assert there.stride() == here.stride() and there.storage_offset() == 0 and there.is_leaf
        assert there.untyped_storage().nbytes() == here.untyped_storage().nbytes()
    assert (torch.ones(2, 3, device=device).t() + 1).stride() == (1, 3)


def test_inference_tensors(device):
    with torch.inference_mode():
        made = torch.ones(3, device=device) + 1
    assert made.is_inference() and not (torch.ones(3, device=device) + 1).is_inference()


def test_arrays_live_as_long_as_their_tensors(device):
    x = torch.ones(4, device=device) * 2
    view, cell = x[1:], weakref.ref(cell_of(x))
    del x
    gc.collect()
    assert cell() is not None and view.tolist() == [2.0] * 3
    del view
    assert cell() is None


def test_more_headers_than_are_kept(device, monkeypatch):
    monkeypatch.setattr(new_tensors, "_MOST", 0)
    x = torch.ones(2, 7, 1, 3, device=device) + torch.arange(3.0, device=device)
    assert x.shape == (2, 7, 1, 3) and x[1, 2, 0].tolist() == [1.0, 2.0, 3.0]


def test_zeros(device):
    p = torch.nn.Parameter(torch.ones(2, 3, device=device))
    torch.zeros_like(p).add_(1)  # one array may serve many tensors
    for z in (torch.zeros_like(p), p.new_zeros(2, 3), torch.zeros(2, 3, device=device)):
        assert z.device == device and not z.requires_grad and z.sum().item() == 0
    assert torch.zeros_like(p.t()).stride() == torch.zeros_like(torch.ones(2, 3).t()).stride()
    assert torch.zeros_like(p, device="cpu").tolist() == p.new_zeros((2, 3), device="cpu").tolist()
    assert torch.func.vmap(torch.zeros_like)(p.detach()).shape == p.shape
    with pytest.raises(RuntimeError, match="zeros: Dimension size must be non-negative"):
        torch.zeros(-1, 2, device=device)
