"""Settings of the whole process between two calls: set, call, set otherwise, call, set back, call, as CPU PyTorch."""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tensorgraft as tg
from tensorgraft.hub import settings

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")


@contextlib.contextmanager
def put(set_, value, before):
    set_(value)
    try:
        yield
    finally:
        set_(before)


@contextlib.contextmanager
def deterministic(warn_only=False, fill=True):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = True


def indices(x):
    return torch.tensor([0, 0], device=x.device)


PROMOTED = {  # of integers, to the default dtype
    "div": lambda x: x / x,
    "number": lambda x: x * 0.1 + 1.5,
    "complex": lambda x: x * 1j,
    "power": lambda x: x**0.5,
    "unary": lambda x: torch.sin(x) + torch.sqrt(x),
    "two": lambda x: torch.atan2(x, x) + torch.xlogy(x, x),
    "bool": lambda x: (x > 1) / (x > 1),
    "foreach": lambda x: torch._foreach_div([x, x], [x, x])[0] + torch._foreach_sqrt([x, x])[0],
    "fft": lambda x: torch.fft.fft(x),
    "out": lambda x: torch.div(x, x, out=torch.empty(0, device=x.device)),
    "where": lambda x: torch.where(x > 1, 1.5, 2.5),
}
MADE = {
    "arange": lambda x: torch.arange(0, 1, 0.25, device=x.device),
    "linspace": lambda x: torch.full((2,), 1.5, device=x.device) + torch.linspace(0, 1, 2, device=x.device),
    "complex": lambda x: torch.full((2,), 1.5j, device=x.device),
    "tensor": lambda x: torch.tensor([1.5], device=x.device) + torch.ones(1, device=x.device) / 3,
    "window": lambda x: torch.hann_window(4, device=x.device),
    "fftfreq": lambda x: torch.fft.fftfreq(4, device=x.device),
    "new": lambda x: torch.eye(2, device=x.device) / 3 + torch.zeros(2, device=x.device),
    "gradient": lambda x: gradient(torch.ones(3, device=x.device, requires_grad=True), x),
}


def gradient(w, x):
    return torch.autograd.grad((w * x / 3).sum(), w)[0]


EMPTY = {
    "float": lambda x: torch.empty(3, device=x.device),
    "int": lambda x: torch.empty(3, dtype=torch.int32, device=x.device),
    "long": lambda x: torch.empty(3, dtype=torch.int64, device=x.device),
    "byte": lambda x: torch.empty(3, dtype=torch.uint8, device=x.device),
    "bool": lambda x: torch.empty(3, dtype=torch.bool, device=x.device),
    "bfloat16": lambda x: torch.empty(3, dtype=torch.bfloat16, device=x.device),
    "like": lambda x: torch.empty_like(x / 3),
    "new": lambda x: x.new_empty(3),
    "strided": lambda x: torch.empty_strided((2, 2), (1, 2), device=x.device),
    "permuted": lambda x: torch.empty_permuted((2, 2), (1, 0), device=x.device),
    "skip_init": lambda x: nn.utils.skip_init(nn.Linear, 2, 2, device=x.device).weight.detach(),
}
RESIZED = {"resize_": lambda x: (x / 3).resize_(5), "resize_as_": lambda x: (x + 0).resize_as_(x.new_ones(5))}
NOT_EMPTY = {
    "zeros": lambda x: torch.zeros(3, device=x.device) + torch.zeros_like(x) + x.new_zeros(3),
    "out": lambda x: torch.add(x, 1, out=x.new_empty(0)),
    "accumulate": lambda x: torch.zeros(3, device=x.device).index_put((indices(x),), x[:2] / 1, accumulate=True),
    "scatter_add": lambda x: torch.zeros(3, device=x.device).scatter_add(0, indices(x), x[:2] / 1),
    "pad": lambda x: F.pad((x / 1)[None, None], (1, 1), mode="replicate"),
}
REFUSED = {"put_": lambda x: (x + 0).put_(indices(x), x[:2])}  # an error while algorithms are to be deterministic
CHECKED = {"validated": lambda x: torch.distributions.Normal(x / 1, -x / 1).mean}

# name -> (a context in which it is set, programs, those that are undefined outside of it)
SETTINGS = {
    "float64": (lambda device: put(torch.set_default_dtype, torch.float64, torch.float32), PROMOTED | MADE, {}),
    "bfloat16": (lambda device: put(torch.set_default_dtype, torch.bfloat16, torch.float32), MADE, {}),
    "deterministic": (lambda device: deterministic(), NOT_EMPTY | REFUSED, EMPTY | RESIZED),
    "warn_only": (lambda device: deterministic(warn_only=True), NOT_EMPTY, EMPTY),
    "not filled": (lambda device: deterministic(fill=False), NOT_EMPTY | REFUSED, {}),
    "validate_args": (
        lambda device: put(torch.distributions.Distribution.set_default_validate_args, False, True),
        CHECKED,
        {},
    ),
    "default device": (
        lambda device: put(torch.set_default_device, device, None),
        {},
        {"kind": lambda x: torch.ones(2) * (torch.ones(2).device.type == x.device.type)},
    ),
}


def outcome(fn, x):
    try:
        return fn(x)
    except (RuntimeError, ValueError) as error:
        return type(error)


def same(ours, native):
    if isinstance(native, type) or isinstance(ours, type):
        return ours is native
    looks = [(t.dtype, t.shape, t.stride()) for t in (ours, native)]
    close = {torch.float64: 1e-14, torch.complex128: 1e-14, torch.bfloat16: 2e-2}.get(native.dtype, 1e-5)
    a, b = (t.cpu().to(torch.complex128) for t in (ours, native))
    return looks[0] == looks[1] and torch.allclose(a, b, rtol=close, atol=close, equal_nan=True)


def all_of(programs):
    """One function of all programs, which is compiled once; those that raise are called by themselves."""
    together = [fn for name, fn in programs.items() if name not in REFUSED | CHECKED]
    return (lambda x: [fn(x) for fn in together]) if together else None


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["eager", "jit"])
@pytest.mark.parametrize("backend", ["jax", "numpy", "torch", "tensorflow"])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.filterwarnings("ignore:.*deterministic:UserWarning")
def test_a_setting_between_two_calls(name, backend, way):
    device, (context, everywhere, inside) = tg.device(backend), SETTINGS[name]
    programs = everywhere | inside
    if way == "jit":
        fn = all_of(programs)
        if fn is None:
            pytest.skip("values of a trace are not known")
        programs, inside = {"all": fn}, {"all": fn} if inside else {}
    for program, fn in programs.items():
        run = tg.jit(fn, compile="first") if way == "jit" else fn
        for turn in range(4):
            x = torch.arange(1, 4)
            with context(device) if turn % 2 else contextlib.nullcontext():
                ours = outcome(run, x.to(device))
            with context(CPU) if turn % 2 else contextlib.nullcontext():
                native = outcome(fn, x)
            if turn % 2 or program not in inside:
                pairs = zip(ours, native, strict=True) if isinstance(native, list) else [(ours, native)]
                assert all(same(*pair) for pair in pairs), (program, turn, ours, native)


def test_empty_memory_is_no_write():
    with deterministic():
        x = torch.empty(2, device=tg.device("numpy"), requires_grad=True)
        assert x._version == 0 and x.is_leaf and bool(x.isnan().all())


def test_a_compiled_function_of_a_grafted_one_goes_by_the_settings_of_both():
    jax = pytest.importorskip("jax")
    draw = tg.graft(lambda x: x + jax.random.uniform(jax.random.key(0), (4,), "float32"), onto="torch")
    for device in (tg.device("jax"),):  # Dynamo, for CPU tensors, keeps those of the first call
        run = tg.jit(lambda x: draw(x) * 1)
        for partitionable in (True, False, True):
            with jax.threefry_partitionable(partitionable):
                native = torch.from_numpy(jax.device_get(jax.random.uniform(jax.random.key(0), (4,), "float32")).copy())
                assert torch.equal(run(torch.zeros(4, device=device)).cpu(), native)


@pytest.mark.compiled
def test_the_precision_of_products_on_jax_is_an_input():
    jax, x = pytest.importorskip("jax"), torch.eye(3, device=tg.device("jax"))
    run = tg.jit(lambda x: x @ x, compile="first")
    for precision, traces in ((None, 1), ("bfloat16", 2), (None, 2)):
        with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
            assert torch.equal(run(x), x)
        assert run.report.traces == traces


@pytest.mark.parametrize("backend", ["jax", "torch", "tensorflow"])
def test_anomalies_are_looked_for_or_refused(backend):
    def gradient_of_a_root(x):
        w = torch.zeros(2, device=x.device, requires_grad=True)
        return torch.autograd.grad((w.sqrt() * x).sum(), w)[0]

    x = torch.zeros(2, device=tg.device(backend))
    run = tg.jit(gradient_of_a_root, compile="first")
    assert bool(run(x).isnan().all())
    with torch.autograd.detect_anomaly(), pytest.raises((RuntimeError, tg.TracedValueError)):
        run(x)


def test_settings_have_names():
    assert {"default dtype", "deterministic algorithms", "default device"} <= settings.by_name().keys()
    before = settings.current()
    with put(torch.set_default_dtype, torch.float64, torch.float32):
        assert settings.current() != before and settings.by_name()["default dtype"] is torch.float64
    assert settings.current() == before
