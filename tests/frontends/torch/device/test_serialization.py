"""Saving and loading: values, dtypes, strides and sharing survive, from and to every device."""

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn

import tensorgraft as tg
import tensorgraft.frontends.torch

pytestmark = pytest.mark.sampled

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
        for read in (y, z, mapped):
            assert read[name].device == device and read[name].tolist() == x[name].tolist()
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


def test_a_file_of_any_device_loads_everywhere(device, tmp_path):
    """A PyTorch without tensorgraft, and without `map_location`; also what `tensorgraft run` saved, which says cuda."""
    from tensorgraft.frontends.torch.device.accelerator import as_accelerator

    x = {"x": torch.arange(3.0, device=device), "half": torch.ones(2, device=device).half()}
    torch.save(x, tmp_path / "x.pt")
    torch.save(x, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    with as_accelerator(tg.backends()[device.index], tg.jit):
        y = {"x": torch.arange(3.0, device="cuda"), "device": torch.ones(1, device="cuda").device}
        torch.save(y, tmp_path / "cuda.pt")
        torch.save(y, tmp_path / "cuda_legacy.pt", _use_new_zipfile_serialization=False)
        (tmp_path / "cuda.pkl").write_bytes(pickle.dumps(y["x"]))
    if device.index == 0:  # they differ by a number
        code = """
import pickle, torch
for name in "x", "legacy", "cuda", "cuda_legacy":
    for location in None, "cpu", {"cuda:0": "cpu"}, lambda storage, location: storage:
        x = torch.load(name + ".pt", map_location=location)["x"]
        assert x.device.type == "cpu" and x.tolist() == [0, 1, 2]
assert torch.load("cuda.pt", mmap=True)["device"] == torch.device("cuda:0")
assert pickle.load(open("cuda.pkl", "rb")).tolist() == [0, 1, 2] and not hasattr(torch, "graft")
"""
        env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)
    here = torch.device("cuda:0") if torch.cuda.is_available() else torch.device("cpu")
    for name in ("cuda.pt", "cuda_legacy.pt"):  # as a file of a CUDA machine, but on the CPU where there is no CUDA
        for location, there in {
            "none": (None, here),
            "table": ({"cuda:0": device}, device),
            "other table": ({"graft:0": "cpu"}, here),
            "device": (device, device),
            "function": (lambda s, place: s.to(device=device) if place == "cuda:0" else s, device),
        }.values():
            assert torch.load(tmp_path / name, map_location=location)["x"].device == there


def test_several_objects_in_one_file(device):
    file = io.BytesIO()
    for n in (2, 3):
        torch.save(torch.arange(n, device=device), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert [(t.tolist(), t.device) for t in (torch.load(file), torch.load(file))] == [
        ([0, 1], device),
        ([0, 1, 2], device),
    ]


def test_files_of_other_kinds_are_refused_as_ever(tmp_path):
    (tmp_path / "x.pt").write_bytes(b"no file of PyTorch")
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(tmp_path / "x.pt")
    file = io.BytesIO()
    pickle.dump({"magic": 1}, file, protocol=2)
    file.seek(0)
    with pytest.raises(RuntimeError, match="Invalid magic number"):
        torch.load(file)


def test_safetensors(device, tmp_path):
    import safetensors.torch

    original = contents(device)
    x = {name: original[name].detach().clone() for name in original if name not in ("view", "strided", "empty")}
    safetensors.torch.save_file(x, tmp_path / "x.safetensors")
    index = device.index
    for place, there in ((device, device), (str(device), device), (index, device), ("cpu", torch.device("cpu"))):
        for backend in ("mmap", "pread"):
            loaded = safetensors.torch.load_file(tmp_path / "x.safetensors", device=place, backend=backend)
            for name, t in x.items():
                y = loaded[name]
                assert (y.device, y.dtype, y.shape, y.tolist()) == (there, t.dtype, t.shape, t.tolist()), name
        with safetensors.safe_open(tmp_path / "x.safetensors", framework="pt", device=place) as file:
            part = file.get_slice("base")[1:3]
            assert part.device == there and part.tolist() == [1, 2] and file.metadata() is None
    default = safetensors.torch.load_file(tmp_path / "x.safetensors", device="graft")
    assert default["base"].device.index == torch.graft.current_device()
    with pytest.raises(safetensors.SafetensorError, match="device meta is invalid"):
        safetensors.torch.load_file(tmp_path / "x.safetensors", device="meta")


def test_safetensors_of_tied_weights(device, tmp_path):
    import safetensors.torch

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(device)
    model[1].weight = model[0].weight
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.torch.save_file(model.state_dict(), tmp_path / "x.safetensors")
    safetensors.torch.save_model(model, tmp_path / "x.safetensors")
    fresh = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).to(device)
    fresh[1].weight = fresh[0].weight
    assert safetensors.torch.load_model(fresh, tmp_path / "x.safetensors", device=str(device)) == (set(), [])
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), model.parameters(), strict=True))
    rows = torch.arange(6.0, device=device).reshape(2, 3)
    with pytest.raises(ValueError, match="non contiguous"):
        safetensors.torch.save_file({"t": rows.t()}, tmp_path / "t.safetensors")


@pytest.mark.parametrize("home", ["quantized_files", "generator"])
def test_functions_that_earlier_files_name_are_there(home):
    assert pickle.loads(f"ctensorgraft.frontends.torch.{home}\nrebuild\n.".encode()).__name__ == "rebuild"


def through_a_file(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("copied", [copy.copy, lambda x: pickle.loads(pickle.dumps(x)), through_a_file])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_quantised_tensors_keep_their_attributes(device, copied, on_cpu):
    """As plain tensors and parameters do."""
    layer = tg.quantize_(nn.Linear(4, 4).to("cpu" if on_cpu else device), "int8_per_channel")
    for x in (layer.weight, layer.weight.detach()):
        x.note = [1]
        y = copied(x)
        assert y.note == [1] and isinstance(y, nn.Parameter) == isinstance(x, nn.Parameter)
        assert (y + 0).tolist() == (x + 0).tolist()
