"""Saving and loading: values, dtypes, strides and sharing survive, from and to every device."""

import io
import pickle

import pytest
import torch
from torch import nn

import tensorgraft as tg
import tensorgraft.frontends.torch

LOCATIONS = {
    "none": lambda device: (None, device),
    "cpu": lambda device: ("cpu", torch.device("cpu")),
    "graft": lambda device: ("graft", torch.device("graft:0")),
    "string": lambda device: (str(device), device),
    "device": lambda device: (torch.device(device), device),
    "other": lambda device: (f"graft:{int(not device.index)}", torch.device("graft", int(not device.index))),
    "table": lambda device: ({str(device): "cpu"}, torch.device("cpu")),
    "function": lambda device: (lambda storage, location: storage, torch.device("cpu")),
}


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def saved(x, **options):
    file = io.BytesIO()
    torch.save(x, file, **options)
    file.seek(0)
    return file


def contents(device):
    base = torch.arange(6.0).to(device)
    return {
        "base": base,
        "view": base[2:5],
        "strided": torch.arange(6).reshape(2, 3).to(device).t(),
        "bool": torch.tensor([True, False], device=device),
        "bfloat16": torch.tensor([1.5, -2.0], device=device, dtype=torch.bfloat16),
        "float8": torch.tensor([1.5, -2.0]).to(torch.float8_e4m3fn).to(device),
        "complex": torch.tensor([1 + 2j]).to(device),
        "empty": torch.empty(0, 3, device=device),
        "scalar": torch.tensor(2.5, dtype=torch.float64, device=device),
        "parameter": nn.Parameter(torch.ones(2, device=device)),
    }


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("location", LOCATIONS)
def test_load(device, location, weights_only):
    map_location, expected = LOCATIONS[location](device)
    original = contents(device)
    loaded = torch.load(saved(original), map_location=map_location, weights_only=weights_only)
    assert loaded.keys() == original.keys()
    for name, x in original.items():
        y = loaded[name]
        assert (y.device, y.dtype, y.shape, y.stride()) == (expected, x.dtype, x.shape, x.stride()), name
        assert y.tolist() == x.tolist() and type(y) is type(x) and y.requires_grad == x.requires_grad, name
    loaded["base"][3] = 77
    assert loaded["view"].tolist() == [2, 77, 4]


def test_a_cpu_file_onto_the_device(device):
    x = torch.arange(6.0).reshape(2, 3)
    y = torch.load(saved(x.t()), map_location=device)
    assert y.device == device and y.stride() == (1, 3) and torch.equal(y.cpu(), x.t())
    assert (y + 1).tolist() == (x.t() + 1).tolist()


def test_a_device_that_is_not_there(device):
    file = saved(torch.ones(2, device=device))
    with pytest.raises(RuntimeError, match="map_location"):
        torch.load(file, map_location="graft:77")


def test_legacy_format_pickle_and_files(device, tmp_path):
    x = contents(device)
    del x["float8"]  # which PyTorch's legacy format does not have
    y = torch.load(saved(x, _use_new_zipfile_serialization=False))
    z = pickle.loads(pickle.dumps(x))
    torch.save(x, tmp_path / "x.pt")
    mapped = torch.load(tmp_path / "x.pt", mmap=True)
    for name in x:
        for copy in (y, z, mapped):
            assert copy[name].device == device and copy[name].tolist() == x[name].tolist()
    torch.save(x["base"], tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    assert torch.load(tmp_path / "legacy.pt").tolist() == x["base"].tolist()


def test_loaded_arrays_have_the_dtype_of_their_tensor():
    loaded = torch.load(saved(torch.ones(3, device=tg.device("jax"))))
    assert tg.to_backend_array(loaded).dtype == "float32"
    assert loaded.untyped_storage().cell.array.dtype == "float32"


def test_modules_and_optimizers(device):
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).to(device)
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3, device=device)).sum().backward()
    optimizer.step()
    whole = torch.load(saved(model), weights_only=False)
    assert whole[2].weight is whole[0].weight and whole[1].running_mean.device == device
    state = torch.load(saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    fresh = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    fresh.load_state_dict(state["model"])  # into a model on the CPU: copied
    assert all(p.device.type == "cpu" for p in fresh.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value.cpu()), name
    fresh.load_state_dict(state["model"], assign=True)
    assert all(p.device == device for p in fresh.parameters())
    fresh[2].weight = fresh[0].weight
    again = torch.optim.Adam(fresh.parameters())
    again.load_state_dict(state["optimizer"])
    assert all(s["exp_avg"].device == device for s in again.state.values())


def test_rng_state_in_a_checkpoint(device):
    state = torch.load(saved(torch.graft.get_rng_state_all()))
    first = torch.rand(3, device=device)
    torch.graft.set_rng_state_all(state)
    assert torch.equal(first, torch.rand(3, device=device))


def test_safetensors(device, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    x = {"a": torch.arange(6.0).to(device), "b": torch.ones(2, device=device, dtype=torch.bfloat16)}
    safetensors.save_file(x, tmp_path / "x.safetensors")
    with pytest.raises(Exception, match="is invalid"):  # its own list of devices, in Rust
        safetensors.load_file(tmp_path / "x.safetensors", device=str(device))
    loaded = safetensors.load_file(tmp_path / "x.safetensors")
    assert all(loaded[name].tolist() == x[name].tolist() for name in x)
