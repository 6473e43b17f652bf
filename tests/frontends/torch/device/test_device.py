"""The device module, `torch.accelerator`, random state, streams, events, identity and printing of tensors."""

import itertools
import os
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

import tensorgraft as tg
import tensorgraft.frontends.torch

pytestmark = pytest.mark.sampled

graft = torch.get_device_module("graft")
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int64,
    torch.uint16,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


@pytest.fixture
def other(device):
    return tg.device(next(name for name in tg.backends() if tg.device(name) != device))


def test_module_knows_its_devices(device):
    assert torch.graft is graft is torch.get_device_module()
    assert graft.is_available() and not graft._is_in_bad_fork()
    assert graft.device_count() == torch.accelerator.device_count() == 1  # JAX has one CPU here
    assert graft.get_device_name(device).startswith(tg.backends()[device.index])
    assert graft.get_device_properties(device).total_memory > 0
    graft.synchronize(device)
    assert graft.is_initialized()  # used by now; test_distributed has it before


def test_numbers_are_devices_of_the_default_backend_first(monkeypatch):
    """What a library finds that asks for devices by number: of one kind. Other backends have the numbers after them."""
    from tensorgraft.backends.jax import JaxBackend
    from tensorgraft.frontends.torch.core import devices

    monkeypatch.setattr(JaxBackend, "device_count", staticmethod(lambda: 3))
    for first, used, names in (
        ("jax", "jax", ["jax", "jax:1", "jax:2", "numpy"]),  # in use, so that it can be counted
        ("jax", None, ["jax", "numpy"]),
        ("jax:1", "jax:1", ["jax:1", "jax", "numpy"]),
        ("numpy", None, ["numpy", "jax"]),
    ):
        table = [devices.Slot(0, first)]
        if used:
            table[0].backend = tg.frontends.torch.devices.slot_named("jax").backend
        monkeypatch.setattr(devices, "slots", lambda table=table: table)
        assert tg.device(names[-1]).index == len(names) - 1
        assert [s.name for s in table][: len(names)] == names
        assert graft.device_count() == (3 if names[1] == "jax:1" else 1)
        assert all(devices.slot_at(i).name.startswith(first) for i in range(graft.device_count()))
        assert len({s.name for s in devices.numbered()}) == len(devices.numbered())


def test_naming_a_backend_loads_no_other():
    code = (
        "import sys, torch, tensorgraft as tg; d = tg.device('numpy');"
        "print(d.index, torch.ones(2, device=d).sum().item(), 'jax' in sys.modules, torch.graft.device_count())"
    )
    env = {**os.environ, "TENSORGRAFT_BACKEND": ""}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout
    assert out.split() == ["1", "2.0", "False", "1"]


def test_an_index_that_does_not_exist():
    with pytest.raises(RuntimeError, match="invalid device ordinal 99"):
        torch.ones(2, device="graft:99")
    with pytest.raises(ValueError, match="Expected a graft device, but got: cpu"):
        graft.synchronize("cpu")


def test_synchronize_waits_for_results_without_references(monkeypatch):
    jax = pytest.importorskip("jax")
    torch.zeros(1, device=tg.device("jax"))
    program = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, a: a @ a * 1e-3, x))
    x = jax.numpy.ones((500, 500))
    program(x).block_until_ready()
    result = program(x)
    monkeypatch.setattr(jax, "live_arrays", lambda *_: [])  # as where nobody has the result
    graft.synchronize(tg.device("jax"))
    assert result.is_ready()


def test_accelerator():
    a = torch.accelerator
    assert a.is_available() and a.current_accelerator().type == "graft" and a.current_device_index() == 0
    a.synchronize()
    with a.device_index(1):
        assert a.current_device_index() == 1 == graft.current_device()
    a.set_device_index(0)
    a.empty_cache()
    a.reset_peak_memory_stats()
    a.reset_accumulated_memory_stats()
    assert a.memory_allocated() >= 0 and a.max_memory_allocated() >= 0 and a.memory_reserved() >= 0
    assert torch.float32 in a.get_device_capability()["supported_dtypes"]
    assert a.current_stream().device.type == "graft"


def test_memory_figures_have_cudas_names(monkeypatch):
    backend = type(tg.frontends.torch.devices.slot_at(0).backend)
    monkeypatch.setattr(backend, "memory_stats", lambda self: {"allocated": 5, "peak": 9, "limit": 20})
    assert graft.memory_allocated() == 5 and graft.max_memory_allocated() == 9 and graft.mem_get_info() == (15, 20)
    assert torch.accelerator.memory_allocated() == 5 and torch.accelerator.max_memory_allocated() == 9


def test_current_device_is_what_no_index_means(other):
    graft.set_device(other)
    try:
        made = [
            torch.ones(2).to("graft"),
            torch.ones(2, device="graft"),
            torch.tensor([1], device="graft"),
            torch.ones(2).graft(),
            nn.Linear(1, 1).to("graft").weight,
        ]
        assert {t.device for t in made} == {other}
        with graft.device(1 - other.index):
            assert torch.ones(2).to("graft").device.index == 1 - other.index
    finally:
        graft.set_device(0)
    assert torch.ones(2).to("graft").device.index == 0
    assert type(torch.Tensor.to).__name__ == "method_descriptor"  # PyTorch's own again


@pytest.mark.parametrize("place", ["meta", "cpu", "graft"])
def test_default_devices_while_another_device_is_current(other, place):
    """Functions that stand for PyTorch's are in its set of those that take the default device."""
    torch.utils._device._device_constructors.cache_clear()  # as in a process that has had no default device
    graft.set_device(other)
    try:
        with torch.device(place) as context:
            made = [torch.tensor([1.0]), torch.as_tensor([1.0]), torch.asarray([1.0]), torch.zeros(1), torch.ones(1)]
            assert {t.device for t in made} == {other if place == "graft" else torch.device(place)}
            graft.set_device(0)
            made = [torch.tensor([1.0]), torch.zeros(1)]
            assert {t.device for t in made} == {torch.device("graft:0" if place == "graft" else place)}
            del context
    finally:
        graft.set_device(0)
    with torch.device("meta"):
        assert {f([1.0]).device.type for f in (torch.tensor, torch.as_tensor, torch.asarray)} == {"meta"}


def test_torchscript_while_another_device_is_current(other):
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([1.0]) + torch.as_tensor([2.0]) + torch.zeros(1)

    graft.set_device(other)
    try:
        assert torch.jit.script(add)(torch.ones(1)).item() == 4
    finally:
        graft.set_device(0)


def test_default_device(device):
    torch.set_default_device(device)
    try:
        assert torch.get_default_device() == device
        made = [torch.ones(2), torch.tensor([1.0]), torch.randperm(3), torch.arange(3), nn.Linear(1, 1).weight]
    finally:
        torch.set_default_device(None)
    assert {t.device for t in made} == {device}


def test_manual_seed_seeds_the_device(device):
    def draw():
        return torch.rand(5, device=device).cpu()

    torch.manual_seed(3)
    first = draw()
    assert not torch.equal(first, draw())
    torch.manual_seed(3)
    assert torch.equal(first, draw())
    assert graft.initial_seed() == 3
    with graft.device(device):
        graft.manual_seed(-1)
        assert graft.initial_seed() == 0xFFFFFFFFFFFFFFFF == torch.Generator().manual_seed(-1).initial_seed()


def test_rng_state(device):
    state = graft.get_rng_state(device)
    assert state.dtype == torch.uint8 and state.device.type == "cpu"
    first = torch.rand(5, device=device)
    graft.set_rng_state(state, device)
    assert torch.equal(first, torch.rand(5, device=device))
    states = graft.get_rng_state_all()
    first = torch.rand(5, device=device)
    graft.set_rng_state_all(states)
    assert torch.equal(first, torch.rand(5, device=device))
    with pytest.raises(TypeError, match=r"RNG state must be a torch\.ByteTensor"):
        graft.set_rng_state(torch.ones(16), device)
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        graft.set_rng_state(state[:3], device)


def test_fork_rng(device):
    torch.manual_seed(0)
    with torch.random.fork_rng([device], device_type="graft"):
        inside = torch.rand(3, device=device)
    assert torch.equal(inside, torch.rand(3, device=device))


def test_generator(device):
    g = torch.Generator(device=device).manual_seed(7)
    assert (
        g.device == device and isinstance(g, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
    )
    first = torch.randn(4, device=device, generator=g)
    assert not torch.equal(first, torch.randn(4, device=device, generator=g))
    assert torch.equal(first, torch.randn(4, device=device, generator=g.manual_seed(7)))
    assert torch.equal(first, torch.randn(4, device=device, generator=torch.Generator().manual_seed(7)))
    copy = g.clone_state()
    assert torch.equal(torch.randn(4, device=device, generator=g), torch.randn(4, device=device, generator=copy))
    assert torch.Generator().device.type == "cpu"


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_preserves_random_state(device, reentrant):
    seen = []

    def dropped(x):
        y = nn.functional.dropout(x, 0.5)
        seen.append(y.detach().cpu())
        return y * y

    x = torch.ones(16, device=device, requires_grad=True)
    with set_checkpoint_early_stop(False):
        checkpoint(dropped, x, use_reentrant=reentrant).sum().backward()
    assert len(seen) == 2 and torch.equal(*seen)


def test_streams_and_events(device):
    start, end = torch.Event("graft", enable_timing=True), torch.Event(enable_timing=True)
    stream = torch.Stream("graft")
    start.record()
    x = torch.ones(4, device=device) * 2
    stream.record_event(end)
    end.synchronize()
    assert start.elapsed_time(end) >= 0 and end.query() and isinstance(start, torch.Event)
    with stream:
        stream.wait_stream(torch.accelerator.current_stream())
    x.record_stream(stream)
    with graft.stream(graft.Stream()):
        graft.current_stream().synchronize()
    with pytest.raises(ValueError, match="Both events must be recorded"):
        start.elapsed_time(torch.Event(enable_timing=True))


def test_identity(device):
    x = torch.arange(6.0).to(device)
    ref = weakref.ref(x)
    assert ref() is x and hash(x) == id(x) and x.is_graft and not x.is_cpu and x.get_device() == device.index
    assert x.device == torch.device("graft", device.index) and x.to(device) is x
    assert x.type() == "torch.graft.FloatTensor"
    assert x.data_ptr() and x[1:].data_ptr() == x.data_ptr() + 4 and x.clone().data_ptr() != x.data_ptr()
    assert x.detach().data_ptr() == x.data_ptr() == nn.Parameter(x).data_ptr()
    assert torch.empty(0, device=device).data_ptr() == 0


def test_addresses_do_not_overlap(device):
    tensors = [torch.zeros(n, device=device) for n in (1, 100, 1000, 3)]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.untyped_storage().nbytes()) for t in tensors)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_printing(device, dtype):
    for values in ([[0, 1], [1, 2]], [[]], 1):
        cpu = torch.tensor(values).to(dtype)
        shown = repr(cpu.to(device)).replace(f", device='{device}'", "")
        assert shown.split() == repr(cpu).split()
    assert f"device='{device}'" in repr(cpu.to(device))


def test_printing_gradients(device):
    x = torch.ones(2, requires_grad=True, device=device)
    assert repr(x).endswith(f"device='{device}', requires_grad=True)")
    assert "grad_fn=<MulBackward0>" in repr(x * 2)


def test_making_tensors(device):
    made = {
        "tensor": torch.tensor([1.0, 2.0], device=device),
        "as_tensor": torch.as_tensor([1.0, 2.0], device=device),
        "asarray": torch.asarray([1.0, 2.0], device=device),
        "from_numpy": torch.from_numpy(torch.tensor([1.0, 2.0]).numpy()).to(device),
        "new": torch.ones(3, device=device).new([1.0, 2.0]),
        "new_tensor": torch.ones(3, device=device).new_tensor([1.0, 2.0]),
    }
    for name, t in made.items():
        assert t.device == device and t.tolist() == [1.0, 2.0] and t.dtype == torch.float32, name
    assert made["new"].new(2, 3).shape == (2, 3) and made["new"].new().shape == (0,)


def test_more_axes_than_arrays_have(device):
    x = torch.arange(6.0).reshape([2] + [1] * 70 + [3]).transpose(0, -1)
    y = x.to(device)
    assert (y.shape, y.stride()) == (x.shape, x.stride())
    assert torch.equal(y.cpu(), x) and y.cpu().stride() == x.stride()
    assert torch.equal(y[1].cpu(), x[1]) and torch.equal(y.squeeze().cpu(), x.squeeze())


def test_inference_mode_ends(device):
    for dtype in (torch.float64, torch.float16):  # the first tensors of a dtype
        with torch.inference_mode():
            assert torch.ones(2, device=device, dtype=dtype).is_inference()
            assert (torch.ones(2, device=device, dtype=dtype) * 2).is_inference()
        x = torch.ones(2, device=device, dtype=dtype, requires_grad=True)
        (x * x).sum().backward()
        assert x.grad.tolist() == [2, 2] and not x.is_inference()


def test_to_numpy_says_what_to_do(device):
    x = torch.ones(2, device=device)
    with pytest.raises(TypeError, match=rf"can't convert {device} device type tensor to numpy. Use Tensor.cpu\(\)"):
        x.numpy()
    assert x.numpy(force=True).tolist() == [1, 1] == x.tolist()


def test_between_backends(device, other):
    x = torch.arange(6.0).to(device)
    y = x.to(other)
    y += 1
    assert x.tolist() == [0, 1, 2, 3, 4, 5] and y.tolist() == [1, 2, 3, 4, 5, 6] and y.device == other
    view = torch.zeros(2, 6, device=other)
    view[:, ::2] = x[:3].to(other)
    assert view.tolist() == [[0, 0, 1, 0, 2, 0]] * 2
    back = torch.zeros(3, dtype=torch.int64, device=device)
    back.copy_(y[::2])
    assert back.tolist() == [1, 3, 5]
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        x + y


def test_backend_arrays(device):
    x = torch.arange(6.0).to(device).reshape(2, 3)
    array = tg.to_backend_array(x.t())
    assert array.shape == (3, 2)
    back = tg.from_backend_array(tg.to_backend_array(x))
    assert back.device == device and back.tolist() == x.tolist()
    with pytest.raises(TypeError, match="has no array of a backend"):
        tg.to_backend_array(torch.ones(2))
    with pytest.raises(TypeError, match="is not an array of an installed backend"):
        tg.from_backend_array([1, 2])


def test_numpy_arrays_are_shared():
    import numpy as np

    a = np.zeros((2, 3), np.float32)
    t = tg.from_backend_array(a)
    t[1] = 5
    assert a[1].tolist() == [5, 5, 5]
    tg.to_backend_array(t)[0, 0] = 9
    assert t[0, 0].item() == 9


def test_numpy_arrays_that_cannot_be_shared():
    import numpy as np

    with pytest.raises(ValueError, match="must be row-major"):
        tg.from_backend_array(np.zeros((2, 3)).T)
    with pytest.raises(TypeError, match="no tensors of"):
        tg.from_backend_array(np.array(["a"]))
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    for a in (fixed, np.float32(0)):
        t = tg.from_backend_array(a)
        t += 1
        assert t.dtype == torch.from_numpy(np.array(a)).dtype and np.all(a == 0)


@pytest.mark.parametrize(
    "start",
    [
        "import torch, tensorgraft.frontends.torch_entry as a; a.autoload()",
        "import tensorgraft; tensorgraft.torch.fallbacks(); import torch",
    ],
)
def test_tensor_devices_come_from_the_entry_point_too(start):
    code = f"{start}; print(torch.ones(2, device='graft'))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    out = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env)
    assert not out.returncode, out.stderr
    assert out.stdout.strip() == "tensor([1., 1.], device='graft:0')"


def test_checkpoint_inside_a_compiled_step():
    device = tg.device("jax")
    x = torch.ones(16, device=device)

    def step(w):
        w.grad = None
        y = checkpoint(lambda w: nn.functional.dropout(w * x, 0.5).square(), w, use_reentrant=False)
        y.sum().backward()
        return y.detach(), w.grad, torch.rand(3, device=device)

    def run(function):
        torch.manual_seed(0)
        w = torch.ones(16, device=device, requires_grad=True)
        return [t.tolist() for _ in range(3) for t in function(w)]

    assert run(tg.jit(step)) == run(step)


def test_seeding_inside_a_compiled_function():
    device = tg.device("jax")
    state = torch.graft.get_rng_state(device)
    torch.rand(1, device=device)

    def seeded(x):
        torch.manual_seed(0)
        return x + 1

    def reset(x):
        torch.graft.set_rng_state(state, device)
        return x + 1

    for function in (seeded, reset):
        with pytest.warns(tg.transforms.UncompiledWarning, match="seeds the device|sets a random state"):
            assert tg.jit(function)(torch.ones(2, device=device)).tolist() == [2, 2]


def test_zeros_made_in_a_trace_are_not_handed_out_again(device):
    compiled = tg.jit(lambda x: x + torch.zeros(3, device=device))
    assert compiled(torch.ones(3, device=device)).tolist() == [1, 1, 1]
    torch.zeros(3, device=device).add_(1)
    assert torch.zeros(3, device=device).tolist() == [0, 0, 0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*is deprecated")
def test_scripted_functions_under_a_default_device():
    """TorchScript calls operators with PyTorch's modes on."""
    device = tg.device("numpy")
    with torch.device(device):

        @torch.jit.script
        def f(x: torch.Tensor, out: torch.Tensor):
            torch.mul(x, x, out=out)
            return torch.sum(out, dim=[0], keepdim=True, out=x)

        x, out = torch.ones(3, 2), torch.empty(3, 2)
        with pytest.warns(UserWarning, match="An output with one or more elements was resized"):
            assert f(x, out).tolist() == [[3.0, 3.0]]
