"""What a script written for CUDA does, on a backend: as_accelerator translates the device and is undone."""

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

from tensorgraft.errors import BackendNotAvailableError
from tensorgraft.frontends.torch import script_files
from tensorgraft.frontends.torch.accelerator import FACTORIES, as_accelerator

BACKENDS = ["numpy", "jax"]
CUDA = {
    "string": lambda: "cuda",
    "indexed": lambda: "cuda:0",
    "device": lambda: torch.device("cuda"),
    "indexed device": lambda: torch.device("cuda", 0),
    "number": lambda: 0,
}


@pytest.fixture(params=BACKENDS, autouse=True)
def on(request):
    with as_accelerator(request.param):
        yield request.param


def on_device(x):
    return x.device.type == "graft" and x.is_cuda and x.get_device() == torch.zeros(1, device="cuda").get_device()


@pytest.mark.parametrize("device", CUDA.values(), ids=CUDA)
def test_factories_and_moves(device):
    device = device()
    made = [
        torch.ones(2, device=device),
        torch.tensor([1.0, 1.0], device=device),
        torch.as_tensor([1.0, 1.0], device=device),
        torch.full((2,), 1.0, device=device),
        torch.ones_like(torch.zeros(2), device=device),
        torch.zeros(2).new_ones(2, device=device),
        torch.ones(2).to(device),
        torch.ones(2).to(device=device, dtype=torch.float32),
        torch.ones(2).to(device, non_blocking=True),
        torch.ones(2).cuda(),
        torch.ones(2).cuda(device),
        torch.ones(2).to(torch.ones((), device=device)),
    ]
    for x in made:
        assert on_device(x)
        assert x.cpu().tolist() == [1.0, 1.0]
    assert torch.arange(3, device=device).tolist() == [0, 1, 2]
    assert torch.randn(2, 3, device=device, generator=torch.Generator(device="cuda").manual_seed(0)).shape == (2, 3)


class Placing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(x) + torch.arange(2, device=x.device)


def test_torchscript(tmp_path):
    x, model = torch.ones(1, 3), Placing()
    expected = model(x)
    scripted, path = torch.jit.script(model).cuda(), tmp_path / "model.pt"
    assert all(map(on_device, scripted.parameters()))
    assert torch.allclose(scripted(x.cuda()).cpu(), expected)
    torch.jit.trace(copy.deepcopy(model), x.cuda()).save(path)
    for place in (None, "cuda", "cuda:0", torch.device("cuda")):
        loaded = torch.jit.load(path, map_location=place)
        assert all(map(on_device, loaded.parameters()))
        assert torch.allclose(loaded(x.cuda()).cpu(), expected)
    assert torch.allclose(torch.jit.load(path, map_location="cpu")(x), expected)


def test_a_model_traced_on_cuda(tmp_path, monkeypatch):
    """Its storages and its code say `cuda:0`."""
    traced = torch.jit.trace(Placing().cuda(), torch.ones(1, 3).cuda())
    with monkeypatch.context() as patched:
        patched.setattr(script_files, "_HERE", "cuda:0")
        patched.setattr(script_files, "_MARK", "extra/other")
        traced.save(tmp_path / "model.pt")
    assert b"cuda:0" in (tmp_path / "model.pt").read_bytes()
    for place in (None, "cuda"):
        loaded = torch.jit.load(tmp_path / "model.pt", map_location=place)
        assert torch.equal(loaded(torch.ones(1, 3).cuda()), traced(torch.ones(1, 3).cuda()))


def test_every_factory_that_takes_a_device_is_translated():
    listed = {getattr(torch, name) for name in FACTORIES[torch].split()}
    listed |= {getattr(owner, name) for owner in (torch.fft, torch.nested) for name in FACTORIES[owner].split()}
    originals = {inspect.unwrap(f) for f in listed}
    assert torch.utils._device._device_constructors() <= originals
    schemas = torch._C._jit_get_all_schemas()
    takes = {s.name[6:] for s in schemas for a in s.arguments if a.name == "device" and s.name.startswith("aten::")}
    public = {name for name in takes if not name.startswith("_") and hasattr(torch, name)}
    assert public - {"Generator"} <= {*FACTORIES[torch].split()}


@pytest.mark.parametrize("device", CUDA.values(), ids=CUDA)
def test_modules(device):
    device = device()
    for model in (
        nn.Linear(2, 3).to(device),
        nn.Linear(2, 3).cuda(),
        nn.Linear(2, 3, device=device),
        nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).to(device),
        nn.Linear(2, 3, device="meta").to_empty(device=device),
        copy.deepcopy(nn.Linear(2, 3).cuda()),
    ):
        assert all(on_device(x) for x in (*model.parameters(), *model.buffers()))
    assert next(nn.Linear(2, 3).parameters()).device.type == "cpu"


def test_default_device():
    with torch.device("cuda"):
        assert on_device(torch.ones(2)) and on_device(nn.Linear(2, 2).weight)
    assert torch.ones(2).device.type == "cpu"
    torch.set_default_device("cuda")
    try:
        assert on_device(torch.ones(2))
    finally:
        torch.set_default_device(None)


def test_queries():
    assert torch.cuda.is_available() and torch.accelerator.is_available()
    assert torch.cuda.device_count() == torch.accelerator.device_count() == 1
    assert torch.cuda.current_device() == 0
    assert isinstance(torch.cuda.get_device_name(0), str)
    assert torch.cuda.get_device_properties("cuda").name == torch.cuda.get_device_name()
    assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_capability() >= (8, 0)
    assert torch.cuda.memory_allocated() >= 0 and torch.cuda.max_memory_allocated("cuda:0") >= 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.set_device(0)
    torch.cuda.reset_peak_memory_stats()
    with torch.cuda.device(0), torch.cuda.stream(torch.cuda.Stream()):
        assert on_device(torch.ones(1, device="cuda"))
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.ones(1, device="cuda:9")


def test_flags_are_harmless():
    before = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32 = before
    torch.cuda.nvtx.range_push("step")
    torch.cuda.nvtx.range_pop()


def test_seeds():
    def draw():
        return torch.randn(4, device="cuda").tolist()

    torch.manual_seed(3)
    first = draw()
    torch.cuda.manual_seed_all(3)
    assert draw() == first
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    assert draw() == first and draw() != first
    torch.cuda.set_rng_state(state)
    assert draw() == first
    with torch.random.fork_rng():
        draw()


def test_events_measure_time():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    torch.ones(4, device="cuda").sum()
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(torch.cuda.Event(enable_timing=True))


def test_checkpoints():
    model = nn.Linear(2, 3).cuda()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for location, there in (("cuda", True), (torch.device("cuda:0"), True), ("cpu", False), (None, True)):
        file.seek(0)
        loaded = torch.load(file, map_location=location)
        assert (loaded["weight"].device.type == "graft") == there
        assert loaded["weight"].tolist() == model.weight.tolist()
    assert pickle.loads(pickle.dumps(torch.device("cuda"))) == torch.device("cuda")


def test_checkpoint_written_on_cuda():
    """A file whose tensors are tagged `cuda:0` needs no map_location."""
    file = io.BytesIO()
    tag = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "cuda:0"
    try:
        torch.save({"x": torch.arange(3.0)}, file)
    finally:
        torch.serialization.location_tag = tag
    file.seek(0)
    x = torch.load(file)["x"]
    assert on_device(x) and x.tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", [torch.autocast, torch.amp.autocast], ids=["torch", "torch.amp"])
def test_autocast(make):
    a = torch.ones(4, 4, device="cuda")
    with make("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled() and torch.is_autocast_enabled("cuda")
        assert (a @ a).dtype == torch.bfloat16 and (a @ a).sum().item() == 64
        assert torch.get_autocast_gpu_dtype() == torch.bfloat16
    with make("cuda"):
        assert torch.get_autocast_dtype("cuda") == (a @ a).dtype == torch.float16
    assert not torch.is_autocast_enabled()
    torch.set_autocast_enabled(True)
    assert torch.is_autocast_enabled("cuda") and (a @ a).dtype == torch.float16
    torch.set_autocast_enabled("cuda", False)
    assert not torch.is_autocast_enabled()


def test_autocast_of_a_function_of_its_own():
    seen = []

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            seen.append(((x @ x).dtype, torch.is_autocast_enabled("cuda")))
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            seen.append(((x @ x).dtype, torch.is_autocast_enabled()))
            return 2 * x * grad

    x = torch.ones(2, 2, device="cuda", dtype=torch.float16, requires_grad=True)
    with torch.autocast("cuda"):
        Square.apply(x).sum().backward()
    assert seen == [(torch.float32, False)] * 2 and x.grad.tolist() == [[2, 2], [2, 2]]


def test_grad_scaler():
    model = nn.Linear(3, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    before = model.weight.detach().clone()
    scaler.scale(model(torch.ones(2, 3, device="cuda")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.allclose(model.weight, before - 0.2)


def test_old_ways():
    Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
    x = Tensor([1.0, 2.0])
    assert on_device(x) and isinstance(x, Tensor) and not isinstance(x.cpu(), Tensor)
    assert on_device(torch.ones(2).type(Tensor)) and torch.ones(2).type(Tensor).dtype == torch.float32
    assert on_device(torch.ones(2).type("torch.cuda.LongTensor"))
    assert x.type() == "torch.cuda.FloatTensor"
    assert torch.ones(2).type(torch.float64).dtype == torch.float64 and torch.ones(2).type() == "torch.FloatTensor"


def test_training_as_on_cuda():
    """The idioms of a training script together, against the same on the CPU."""

    def train(device):
        torch.manual_seed(0)
        data = torch.utils.data.TensorDataset(torch.randn(32, 5), torch.randint(3, (32,)))
        loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=device == "cuda")
        model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
        if device == "cuda":
            model = model.cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        criterion = nn.CrossEntropyLoss().to(device)
        losses = []
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert train("cuda") == pytest.approx(train("cpu"), rel=1e-4)


def test_data_parallel_on_one_device():
    model = nn.DataParallel(nn.Linear(2, 3)).cuda()
    assert on_device(model(torch.ones(4, 2, device="cuda")))


def test_undone():
    with as_accelerator("numpy"):
        pass
    assert torch.cuda.is_available()  # the fixture's


def test_undone_completely():
    before = {**vars(torch)}, {**vars(torch.cuda)}, {**vars(torch.Tensor)}, {**vars(nn.Module)}
    with as_accelerator("numpy"):
        pass
    assert before == ({**vars(torch)}, {**vars(torch.cuda)}, {**vars(torch.Tensor)}, {**vars(nn.Module)})


def test_unknown_backend():
    with pytest.raises(BackendNotAvailableError, match="there is no backend 'x'"), as_accelerator("x"):
        pass


def test_compile(on):
    calls = []

    @torch.compile
    def f(x):
        calls.append(1)
        return x * 2 + 1

    x = torch.arange(3.0, device="cuda")
    for _ in range(3):
        assert f(x).tolist() == [1, 3, 5]
    assert len(calls) == (1 if on == "jax" else 3)
    model = nn.Linear(2, 2)
    assert torch.compile(model, mode="max-autotune") is model
