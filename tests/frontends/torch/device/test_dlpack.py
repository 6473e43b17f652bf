"""DLPack both ways: NumPy, JAX and CPU PyTorch take tensors of the device and give arrays to it."""

import jax
import numpy as np
import pytest
import torch

import tensorgraft as tg
import tensorgraft.frontends.torch


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64, torch.uint8], ids=str)
def test_out(device, dtype):
    x = torch.arange(6).to(dtype).reshape(2, 3).to(device)
    for y in (x, x.t(), x[:, 1:]):
        assert np.from_dlpack(y).tolist() == y.tolist()
        assert torch.from_dlpack(y).tolist() == y.tolist()
        assert torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y)).tolist() == y.tolist()
    assert x.__dlpack_device__() == torch.ones(2).__dlpack_device__()


def test_out_to_jax(device):
    x = torch.arange(6.0).to(device)
    assert jax.dlpack.from_dlpack(x).tolist() == x.tolist()


def test_bfloat16(device):
    x = torch.tensor([1.5, -2.0], dtype=torch.bfloat16).to(device)
    assert torch.equal(torch.from_dlpack(x), x.cpu())


def test_numpy_memory_is_shared():
    x = torch.zeros(4, device=tg.device("numpy"))
    y = torch.from_dlpack(x)
    y[1] = 5
    x[2] = 7
    assert x.tolist() == y.tolist() == [0, 5, 7, 0]
    assert x.untyped_storage().cell.shared
    a = np.zeros(3, np.float32)
    t = torch.from_dlpack(a, device=tg.device("numpy"))
    t += 1
    assert a.tolist() == [1, 1, 1]


def test_jax_memory_is_not_copied():
    x = torch.arange(4.0).to(tg.device("jax")) + 1
    assert torch.from_dlpack(x).data_ptr() == tg.to_backend_array(x).unsafe_buffer_pointer()


def test_in(device):
    for source in (np.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3).T):
        t = torch.from_dlpack(source, device=device)
        assert t.device == device and t.tolist() == source.tolist()
        copied = torch.from_dlpack(source, device=device, copy=True)
        copied.zero_()
        assert t.tolist() == source.tolist()
    assert torch.from_dlpack(torch.utils.dlpack.to_dlpack(torch.ones(2)), device=device).tolist() == [1, 1]
    assert torch.from_dlpack(np.ones(2)).device.type == "cpu"


def test_what_dlpack_cannot_say(device):
    with pytest.raises(BufferError, match="require gradient"):
        torch.ones(2, device=device, requires_grad=True).__dlpack__()
    with pytest.raises(BufferError, match="conjugate bit"):
        torch.ones(2, dtype=torch.complex64, device=device).conj().__dlpack__()
