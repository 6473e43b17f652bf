"""TorchScript on the device: modules scripted, traced, loaded, moved, trained and saved, as on the CPU."""

import copy
import io
import os
import subprocess
import sys

import pytest
import torch

import tensorgraft as tg

pytestmark = pytest.mark.sampled

DEVICES = [name for name in ("numpy", "jax") if name in tg.backends()]


class Block(torch.nn.Module):
    """Parameters, buffers, submodules, tied weights, and control flow by values."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)
        self.second, self.third = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.third.weight = self.second.weight
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x):
        h = torch.relu(self.norm(self.first(x)))
        if bool(h.sum() > 0):
            h = self.second(h)
        return self.third(h) + self.shift


class Straight(torch.nn.Module):
    """The same without control flow, which a trace would not keep."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU())
        self.head = torch.nn.Linear(2, 3)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


@pytest.fixture(params=DEVICES)
def device(request):
    return tg.device(request.param)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inputs():
    return torch.linspace(-1, 2, 15).reshape(5, 3)


def images():
    return torch.linspace(-1, 1, 50).reshape(2, 1, 5, 5)


def file_of(module):
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return file


def devices_of(module):
    return {t.device for t in (*module.parameters(), *module.buffers())}


def close(ours, native):
    torch.testing.assert_close(ours.cpu(), native, rtol=1e-5, atol=1e-5)


WAYS = {
    "scripted": lambda m, x, d: torch.jit.script(m).to(d),
    "scripted on the device": lambda m, x, d: torch.jit.script(m.to(d)),
    "traced": lambda m, x, d: torch.jit.trace(m, x).to(d),
    "traced on the device": lambda m, x, d: torch.jit.trace(m.to(d), x.to(d)),
    "loaded": lambda m, x, d: torch.jit.load(file_of(torch.jit.script(m)), map_location=d),
    "loaded by name": lambda m, x, d: torch.jit.load(file_of(torch.jit.trace(m, x)), map_location=str(d)),
    "loaded, then moved": lambda m, x, d: torch.jit.load(file_of(torch.jit.trace(m, x))).to(d),
    "frozen": lambda m, x, d: torch.jit.freeze(torch.jit.script(m).to(d)),
    "frozen, then loaded": lambda m, x, d: torch.jit.load(
        file_of(torch.jit.freeze(torch.jit.script(m))), map_location=d
    ),
    "for inference": lambda m, x, d: torch.jit.optimize_for_inference(torch.jit.script(m).to(d)),
    "copied": lambda m, x, d: copy.deepcopy(torch.jit.script(m).to(d)),
    "part of a module": lambda m, x, d: torch.nn.Sequential(torch.jit.script(m)).to(d),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_values_are_the_cpus(device, way):
    model, x = Straight().eval(), images()
    native = copy.deepcopy(model)
    with torch.no_grad():
        ours = WAYS[way](model, x, device)
        assert devices_of(ours) <= {device}
        for n in (2, 2, 2, 1):  # TorchScript optimises what it has seen
            out = ours(x[:n].to(device))
            assert out.device == device
            close(out, native(x[:n]))


def test_control_flow_and_tied_weights(device):
    model = Block()
    native = copy.deepcopy(model)
    ours = torch.jit.script(model).to(device)
    assert devices_of(ours) == {device}
    assert ours.second.weight is ours.third.weight
    assert len(list(ours.parameters())) == len(list(native.parameters()))
    for x in (inputs(), -inputs(), inputs()):
        close(ours(x.to(device)), native(x))
    close(ours.norm.running_mean, native.norm.running_mean)


class Sequence(torch.nn.Module):
    """Layers whose code in TorchScript is long, and a list of weights among them."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = torch.nn.Embedding(10, 8), torch.nn.LSTM(8, 8, 2, batch_first=True)
        self.attention, self.norm = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.nn.LayerNorm(8)

    def forward(self, x):
        h, _ = self.lstm(self.embedding(x))
        a, _ = self.attention(h, h, h, need_weights=False)
        return self.norm(h + a)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("way", ["scripted", "scripted on the device", "traced on the device", "loaded, then moved"])
def test_recurrent_layers_and_attention(way):
    device, model, x = tg.device("numpy"), Sequence(), torch.arange(15).reshape(3, 5) % 10
    native = copy.deepcopy(model)
    ours = (
        torch.jit.load(file_of(torch.jit.script(model))).to(device) if "loaded" in way else WAYS[way](model, x, device)
    )
    for _ in range(3):
        close(ours(x.to(device)).detach(), native(x).detach())
        ours(x.to(device)).square().sum().backward()
        native(x).square().sum().backward()
    for (name, a), b in zip(ours.named_parameters(), native.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4, msg=name)


@pytest.mark.parametrize("early", [True, False], ids=["optimizer before the move", "optimizer after"])
def test_training(device, early):
    model = Block().double()
    native, x = copy.deepcopy(model), inputs().double()
    ours = torch.jit.script(model)
    optimizer = torch.optim.SGD(ours.parameters(), 0.05, momentum=0.9) if early else None
    ours = ours.to(device)
    optimizer = optimizer or torch.optim.SGD(ours.parameters(), 0.05, momentum=0.9)
    of_native = torch.optim.SGD(native.parameters(), 0.05, momentum=0.9)
    for _ in range(4):
        for m, o, v in ((ours, optimizer, x.to(device)), (native, of_native, x)):
            o.zero_grad()
            m(v).square().mean().backward()
            o.step()
    for (name, a), b in zip(ours.named_parameters(), native.parameters(), strict=True):
        assert a.device == device, name
        close(a.detach(), b.detach())
        close(a.grad, b.grad)


def test_moving_back_and_to_other_dtypes(device):
    model, x = Straight().eval(), images()
    native = copy.deepcopy(model)
    ours = torch.jit.script(model).to(device)
    weight = ours.head.weight
    close(ours.double()(x.double().to(device)), native.double()(x.double()))
    close(ours.to("cpu")(x.double()), native(x.double()))
    close(ours.to(device, torch.float32)(x.to(device)), native.float()(x))
    assert ours.half().head.weight.dtype == torch.float16
    assert ours.head.weight is weight and weight.device == device


def test_what_is_assigned_to_data_is_the_modules(device):
    ours, native = torch.jit.script(Straight().eval()), Straight().eval()
    native.load_state_dict(ours.state_dict())
    for p in ours.parameters():
        p.data = p.data.to(device)
    norm = next(part for name, part in ours.named_modules() if name == "body.1")
    for name, b in list(norm.named_buffers()):
        setattr(norm, name, b.to(device))
    close(ours(images().to(device)), native(images()))


def test_weights_shared_with_a_plain_module(device):
    plain = torch.nn.Linear(3, 3)
    both = torch.nn.Sequential(torch.jit.script(plain), plain)
    native = copy.deepcopy(torch.nn.Sequential(plain, plain))
    both.to(device)
    assert both[0].weight is both[1].weight
    close(both(inputs().to(device)), native(inputs()))


def test_state_dict(device):
    ours, other = torch.jit.script(Block()).to(device), torch.jit.script(Block())
    state = ours.state_dict()
    assert list(state) == list(other.state_dict()) and {t.device for t in state.values()} == {device}
    other.load_state_dict(state)
    ours.load_state_dict(Block().state_dict())
    ours.load_state_dict(other.state_dict())
    close(ours.eval()(inputs().to(device)), other.eval()(inputs()))
    before = {name: t.cpu() for name, t in ours.state_dict().items()}
    with pytest.raises(RuntimeError, match="size mismatch"):
        ours.load_state_dict({**Block().state_dict(), "shift": torch.zeros(5)})
    for name, t in ours.state_dict().items():
        close(t, before[name])


def test_copies_are_apart(device):
    ours = torch.jit.script(Straight()).to(device)
    copied = copy.deepcopy(ours)
    assert devices_of(copied) == {device}
    with torch.no_grad():
        copied.head.weight.zero_()
    assert ours.head.weight.abs().sum() > 0


def test_functions(device):
    @torch.jit.script
    def f(x, n: int):
        out = torch.zeros_like(x)
        for i in range(n):
            out = out + x[i] * i
        return out.t() @ x, [x.sum(), x.max()]

    x = inputs()
    for n in (3, 3, 5):
        (a, b), (c, d) = f(x.to(device), n), f(x, n)
        close(a, c)
        for ours, native in zip(b, d, strict=True):
            close(ours, native)
    traced = torch.jit.trace(lambda x: x.softmax(-1) * 2, x.to(device))
    close(traced(x.to(device)), x.softmax(-1) * 2)


def test_errors_are_those_of_the_cpu(device):
    @torch.jit.script
    def f(x, y, n: int):
        return x[n] @ y

    for wrong in ((torch.ones(2, 3), torch.ones(2), 0), (torch.ones(2, 3), torch.ones(3), 5)):
        with pytest.raises(RuntimeError) as native:
            f(*wrong)
        with pytest.raises(RuntimeError) as ours:
            f(*(a.to(device) if isinstance(a, torch.Tensor) else a for a in wrong))
        assert type(ours.value) is type(native.value) and str(ours.value) == str(native.value)
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        f(torch.ones(2, 3, device=device), torch.ones(3), 0)


def test_a_value_that_a_compiled_function_does_not_have():
    @torch.jit.script
    def f(x):
        if bool(x.sum() > 0):
            x = x * 2
        return x

    with pytest.raises(tg.TracedValueError, match="needs the value of a bool tensor"):
        tg.jit(lambda x: f(x))(torch.ones(3, device=tg.device("jax")))


def test_gradients_of_functions(device):
    @torch.jit.script
    def f(x, w):
        return torch.tanh(x @ w).mul(w.sum()).sigmoid().sum()

    for _ in range(3):
        grads = []
        for d in (device, "cpu"):
            w = torch.full((3, 2), 0.3, device=d, requires_grad=True)
            f(inputs().to(d), w).backward()
            grads.append(w.grad)
        close(*grads)


@pytest.mark.parametrize("seen", ["default device", "function mode", "inference mode", "autocast of the CPU"])
def test_modes_of_the_program_are_not_for_kernels(device, seen):
    class Counting(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Counting.calls += 1
            return func(*args, **(kwargs or {}))

    modes = {
        "default device": lambda: device,
        "function mode": Counting,
        "inference mode": torch.inference_mode,
        "autocast of the CPU": lambda: torch.autocast("cpu", torch.bfloat16),
    }

    @torch.jit.script
    def f(a, b):
        return (a * b).cumsum(0).nonzero(), a @ b.t(), a.cpu(), torch.linalg.eigvalsh(a @ a.t())

    n = len(seen)  # shapes that no other test has
    x = torch.linspace(1, 2, 2 * n, dtype=torch.float64).sin().reshape(2, n)
    expected = f(x, x)
    with modes[seen]():
        on = x.to(device)
        counted = Counting.calls
        ours = f(on, on)
        assert Counting.calls == counted
        for a, b in zip(ours, expected, strict=True):
            close(a.float(), b.float())
        assert ours[2].device.type == "cpu"
    again = f(x.to(device).requires_grad_(), x.to(device))
    again[1].sum().backward()


@pytest.mark.parametrize("seen", ["inference mode", "no_grad"])
def test_first_used_without_gradients(device, seen):
    n = 7 + len(seen)
    x = torch.ones(n, device=device)
    with torch.inference_mode() if seen == "inference mode" else torch.no_grad():
        (x * 3).softmax(0)
    w = torch.ones(n, device=device, requires_grad=True)
    (w * 3).softmax(0).sum().backward()
    assert w.grad.shape == (n,)


PLAIN = """
import sys, torch
torch.manual_seed(0)
module = torch.jit.load(sys.argv[1])
x = torch.linspace(-1, 1, 50).reshape(2, 1, 5, 5)
print({t.device.type for t in module.parameters()}, module(x).flatten().tolist())
"""


@pytest.mark.slow_with("numpy")
def test_files_are_read_by_plain_pytorch(device, tmp_path):
    for kind, module in {
        "scripted": torch.jit.script(Straight().eval()).to(device),
        "traced": torch.jit.trace(Straight().eval().to(device), images().to(device)),
        "frozen": torch.jit.freeze(torch.jit.script(Straight().eval()).to(device)),
    }.items():
        path = tmp_path / f"{kind}.pt"
        module.save(str(path))
        file = file_of(module)
        with torch.no_grad():
            native = torch.jit.load(str(path), map_location="cpu")
            assert devices_of(native) <= {torch.device("cpu")}
            assert devices_of(torch.jit.load(path)) <= {device}
            close(module(images().to(device)), native(images()))
            close(torch.jit.load(file, map_location=device)(images().to(device)), native(images()))
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", PLAIN, str(tmp_path / "traced.pt")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{'cpu'}")


class Placed(torch.nn.Module):
    """Places that a trace keeps as constants."""

    def forward(self, x):
        return x + torch.arange(3, device=x.device) + torch.tensor([1.0, 2.0, 3.0], device=x.device)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_constants_of_a_trace_are_where_it_is_loaded(device):
    x = inputs()
    traced = torch.jit.trace(Placed().to(device), x.to(device))
    close(traced(x.to(device)), Placed()(x))
    file = file_of(traced)
    extra = {"note": ""}
    for place in (None, device, "cpu", tg.device("torch")):
        file.seek(0)
        loaded = torch.jit.load(file, map_location=place, _extra_files=extra)
        close(loaded(x.to(place or device)), Placed()(x))
    content = io.BytesIO()
    torch.jit.save(traced, content, _extra_files={"note": "kept"})
    content.seek(0)
    torch.jit.load(content, _extra_files=extra)
    assert extra == {"note": b"kept"}


def test_what_is_no_file_of_torchscript(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        torch.jit.load(tmp_path / "nothing.pt")
    (tmp_path / "text.pt").write_text("text")
    for file in (tmp_path / "text.pt", io.BytesIO(b"text")):
        with pytest.raises(RuntimeError, match=r"reader|Reader"):
            torch.jit.load(file)


def test_a_compiled_function_follows_attributes(device):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.inner = 2, torch.nn.Linear(3, 3)

        def forward(self, x):
            return self.inner(x) * self.scale

    module = torch.jit.script(Scaled()).to(device)
    compiled, x = tg.jit(lambda x: module(x)), inputs()
    with torch.no_grad():
        for scale in (2, 3):
            module.scale = scale
            close(compiled(x.to(device)), module(x.to(device)).cpu())
        module.inner.weight = torch.nn.Parameter(torch.zeros(3, 3, device=device))
        close(compiled(x.to(device)), module(x.to(device)).cpu())


def test_in_a_compiled_function(device):
    module = torch.jit.script(Straight().eval()).to(device)
    compiled = tg.jit(lambda x: module(x) * 2)
    with torch.no_grad():
        for x in (images(), images() + 1):
            close(compiled(x.to(device)), (module(x.to(device)) * 2).cpu())
        module.head.weight.mul_(2)
        close(compiled(images().to(device)), (module(images().to(device)) * 2).cpu())
