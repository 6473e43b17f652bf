"""The cold tier: what CPU PyTorch computes on the same memory, and what a compiled program makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg
from tensorgraft.frontends.torch.core.devices import slot_of
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.dispatch import cold
from tensorgraft.hub import tiers
from tensorgraft.hub.deferred import start

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def tiered() -> Iterator[None]:
    with tg.eager("tiered"):
        yield


@pytest.fixture(params=["jax", "tensorflow", "jax, memory apart", "tensorflow, memory apart"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> torch.device:
    name, *apart = request.param.split(", ")
    pytest.importorskip(name)
    device = tg.device(name)
    if apart:  # as on a GPU
        monkeypatch.setattr(start(slot_of(device).backend), "host_visible", False)
    return device


of_host_memory = pytest.mark.parametrize("device", ["jax", "tensorflow"], indirect=True)


def plans() -> int:
    return tg.torch.tier_counts()[1].total()


def is_cold(t: Tensor) -> bool:
    return cell_of(t).cold is not None


# ---- programs, as the CPU has them -----------------------------------------------------------------------------------


def views(d: Any) -> list[Tensor]:
    x = torch.arange(24.0).to(d).reshape(4, 6)
    v = x.t()[1:5, ::2]
    v.mul_(3)
    v[0] += 100
    x[2].copy_(torch.ones(6).to(d, torch.float64))
    x.view(torch.int32)[0, 0] = 7
    w = x.unfold(1, 3, 2)
    return [x, v, w, w.sum(-1), x[x > 50], x.nonzero(), x.narrow(0, 1, 2), x.flip(0)]


def outs(d: Any) -> list[Tensor]:
    a, b = torch.arange(6.0).to(d), torch.empty(0).to(d)
    torch.mul(a, 2, out=b)
    c = torch.zeros(3, 2).to(d)
    torch.add(a[:3, None], a[3:5], out=c)
    torch.sub(c.t(), 1, out=c.t())
    values, places = torch.empty(0).to(d), torch.empty(0, dtype=torch.int64).to(d)
    torch.sort(a, descending=True, out=(values, places))
    counted = torch.empty(0).to(d)
    alias = counted.view(0)
    torch.arange(3.0, 8.0, out=counted)
    counted[1:3] = 7.0
    z = torch.zeros(3, dtype=torch.complex64).to(d)
    z.copy_((torch.arange(3) * 1j).to(d).conj())
    z[1] = torch.tensor(2j).to(d)
    return [a, b, c, values, places, counted, alias, z]


def dtypes(d: Any) -> list[Tensor]:
    x = torch.arange(-3, 4).to(d)
    made = [x / 2, x.bfloat16() * 3, x.half().sum(), x.bool() | True, x.to(torch.complex64) * 1j, x**2, x.byte() + 1]
    return [*made, torch.ones(3, dtype=torch.bool).to(d).sum(), x.to(torch.float8_e4m3fn).float(), x.double().exp()]


def training(d: Any) -> list[Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 5)
    )
    net.to(d)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    x, y = torch.randn(3, 2, 6, 6).to(d), torch.tensor([0, 3, 1]).to(d)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in net.parameters()), *net.buffers()]


def recurrent(d: Any) -> list[Tensor]:
    torch.manual_seed(0)
    net = nn.LSTM(3, 4, 2, batch_first=True).to(d)
    out, (h, c) = net(torch.randn(2, 5, 3).to(d))
    out.square().sum().backward()
    return [out, h, c, *(p.grad for p in net.parameters())]


def gated(d: Any) -> list[Tensor]:
    """Whole on the CPU, derivatives of higher order in parts."""
    torch.manual_seed(0)
    net = nn.GRU(3, 4, bidirectional=True).to(d)
    x = torch.randn(4, 2, 3).to(d).requires_grad_()
    out, h = net(x)
    out.relu_()  # is no part of what it keeps
    (dx,) = torch.autograd.grad(out.sum() + h.sum(), x, create_graph=True)
    dx.square().sum().backward()
    with torch.no_grad():
        again, _ = net(x)
    return [out, h, dx, again, *(p.grad for p in net.parameters())]


def derivatives(d: Any) -> list[Tensor]:
    x, w = (torch.linspace(-1, 1, 9).reshape(3, 3) * k for k in (1, 2))
    x, w = x.to(d), w.to(d)

    def f(x: Tensor) -> Tensor:
        return torch.tanh(F.linear(x, w)).square().sum()

    return [*torch.func.jvp(f, (x,), (w,)), torch.func.hessian(f)(x), torch.func.vmap(f)(torch.stack([x, w]))]


def indices(d: Any) -> list[Tensor]:
    """Also those of the host."""
    x = torch.zeros(4, 5).to(d)
    x[torch.tensor([0, 2])] = torch.ones(5).to(d)
    x[:, torch.tensor([True, False, False, False, True]).to(d)] += 2
    x[1:3] = 7.0
    x[3, :2] = torch.tensor([1.0, 2.0]).to(d)
    x.mul_(torch.tensor(2.0))
    x[0, 0] = x[3, 1]
    return [x, x[torch.tensor([2, 0])], x[torch.tensor([3, 3, 1]).to(d), 1:3], x.roll(2, 1), x.diagonal(1)]


def lists(d: Any) -> list[Tensor]:
    x = [torch.arange(3.0).to(d), torch.ones(2, 2).to(d)[:, 0], torch.ones(()).to(d)]
    torch._foreach_add_(x, 1)
    torch._foreach_mul_(x, [t.clone() for t in x])
    torch._foreach_addcdiv_(x, x, x, [1.0, 2.0, 3.0])
    torch._foreach_copy_(x[:1], x[2:])
    return [*x, *torch._foreach_norm(x)]


def empty(d: Any) -> list[Tensor]:
    x = torch.ones(0, 3).to(d)
    return [x + 1, x.sum(0), x.t() @ x, torch.cat([x, torch.ones(1, 3).to(d)]), x.max(1).values, x.reshape(3, 0)]


PROGRAMS = [views, outs, dtypes, training, recurrent, gated, derivatives, indices, lists, empty]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_as_on_the_cpu(program: Callable[[Any], list[Tensor]], device: torch.device) -> None:
    before = plans()
    got, want = program(device), program("cpu")
    for a, b in zip(got, want, strict=True):
        assert a.device == device
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        torch.testing.assert_close(a.detach().cpu(), b.detach(), equal_nan=True)
    assert plans() == before  # nothing was compiled


def elements(d: Any) -> list[Any]:
    """Loops over single elements, as PyTorch's own tests have."""
    torch.manual_seed(0)
    x, y = torch.zeros(2, 3, 4).to(d), torch.arange(24.0).reshape(2, 3, 4).to(d)
    at = torch.tensor([1, 0, 2]).to(d)
    for i in range(2):
        for j in range(3):
            x[i, j, at[j]] = y[i, j, 0]
            x[i, j, 3] = 5
            x[i, j, at[j]] += y[i, j, 1]
            x[i][j].t()[0] = float(y[i, j, 2]) + int(at[j]) + y[i, j, 3].item()
    x[1] = 7
    x[0, 1] = torch.arange(4)
    z = torch.zeros(2, 2, dtype=torch.float64, device=d)
    z[0] = x[0, 0, :2]
    parts = [row.sum() for row in z]
    copies = (
        [y.to("cpu").to(d), y[0].t().to("cpu").to(d), y[:, ::2].to("cpu").to(d)]
        if d != "cpu"
        else [y, y[0].t(), y[:, ::2]]
    )
    copies = [c.contiguous() for c in copies]
    return [x, z, *parts, *copies, torch.tensor(x.tolist()).to(d)]


def test_single_elements(device: torch.device) -> None:
    for a, b in zip(elements(device), elements("cpu"), strict=True):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        assert torch.equal(a.cpu(), b)


def test_moves_are_copies(device: torch.device) -> None:
    x = torch.ones(2, 3)
    y = x.to(device)
    z = y.to("cpu")
    x.zero_()
    y[0, 0] = 5
    assert y[1].tolist() == [1, 1, 1] and z.tolist() == [[1, 1, 1], [1, 1, 1]]
    w = nn.Parameter(torch.ones(2)).to(device)
    w.sum().backward()  # recorded
    assert w.requires_grad and not w.is_leaf


def example(kind: str) -> Any:
    options = {"Tensor": torch.rand(3, 4) + 0.1, "number": 0.5, "int": 1, "float": 0.5, "bool": False, "List[int]": [1]}
    return options.get(kind)


@pytest.mark.parametrize("name", sorted(o.name for o in cold.operators if o._function is not o._run))
def test_functions_of_python_have_the_defaults_of_schemas(name: str) -> None:
    operator = next(o for o in cold.operators if o.name == name)
    signature = operator.of.signature
    named = {"rounding_mode": None} if "rounding_mode" in signature.names else {}

    def call(function: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        args = [example(signature.types[n]) for n in signature.positional if n not in signature.defaults]
        try:
            out = function(*args, **named)
        except (RuntimeError, IndexError) as error:  # of the example's dtype or shape
            return [str(error)]
        return [a for a in (out, *args) if isinstance(a, Tensor)]

    if "List[Tensor]" not in signature.types.values():
        found, wanted = call(operator._function), call(operator._run)
        if isinstance(wanted[0], str):
            assert found == wanted
        else:
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def test_random_numbers_are_those_of_the_device(device: torch.device) -> None:
    def draws() -> list[Tensor]:
        torch.manual_seed(7)
        x = torch.zeros(4, 5, device=device)
        x[1:3].uniform_()
        made = [torch.rand(3, device=device), F.dropout(torch.ones(4, 6, device=device), 0.4), x]
        made += [
            torch.randint(0, 9, (6,), device=device),
            torch.randperm(12, device=device),
            torch.randn(7, device=device),
        ]
        return [t.cpu() for t in made]

    uncompiled = draws()
    tiers.set_mode("compiled")
    *exact, normal = zip(uncompiled, draws(), strict=True)
    assert all(torch.equal(a, b) for a, b in exact)
    torch.testing.assert_close(*normal)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: torch.ones(2, 3).to(d) @ torch.ones(2, 3).to(d),
        lambda d: torch.ones(3).to(d)[torch.tensor([5]).to(d)],
        lambda d: F.embedding(torch.tensor([9]).to(d), torch.ones(3, 2).to(d)),
        lambda d: torch.ones(3).to(d).add_(torch.ones(2, 3).to(d)),
        lambda d: torch.add(torch.ones(3).to(d), 1, out=torch.ones(3, dtype=torch.int64).to(d)),
        lambda d: torch.ones(2, 2).to(d).expand(3, 2, 2).mul_(2),
    ],
)
def test_errors_are_the_cpus(wrong: Callable[[Any], Any], device: torch.device) -> None:
    with pytest.raises(Exception) as of_cpu:
        wrong("cpu")
    with pytest.raises(of_cpu.type) as ours:
        wrong(device)
    assert str(ours.value).splitlines()[0] == str(of_cpu.value).splitlines()[0]


def test_a_parameter_that_was_changed_before_the_backward_pass(device: torch.device) -> None:
    for d in ("cpu", device):
        net = nn.LSTM(3, 4).to(d)
        out = net(torch.ones(2, 1, 3).to(d))[0]
        with torch.no_grad():
            net.weight_hh_l0.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_two_devices(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=device) + torch.ones(3)
    assert (torch.ones(3, device=device) + torch.tensor(2)).tolist() == [3, 3, 3]


# ---- memory ----------------------------------------------------------------------------------------------------------


@of_host_memory
def test_memory_is_handed_over_without_a_copy(device: torch.device) -> None:
    x = torch.ones(64, 64, device=device) * 2
    assert is_cold(x)
    address = cell_of(x).cold.data_ptr()
    assert torch.from_dlpack(tg.to_backend_array(x)).data_ptr() == address and not is_cold(x)


def test_arrays_of_the_backend_are_never_written(device: torch.device) -> None:
    array = tg.to_backend_array(torch.ones(5, device=device))
    x = tg.from_backend_array(array)
    view = x[1:]
    view += 1
    assert x.tolist() == [1, 2, 2, 2, 2] and np.asarray(array).tolist() == [1] * 5
    kept = tg.to_backend_array(x)
    x.zero_()
    assert np.asarray(kept).tolist() == [1, 2, 2, 2, 2] and view.tolist() == [0] * 4


def test_layouts_of_xla() -> None:
    jax = pytest.importorskip("jax")
    x = tg.from_backend_array(jax.dlpack.from_dlpack(torch.arange(6.0).reshape(3, 2).t()))
    assert (x + 0).tolist() == [[0, 2, 4], [1, 3, 5]] and x[1].tolist() == [1, 3, 5]


def test_compiled_functions_read_and_write_it(device: torch.device) -> None:
    """The two take turns on the same storages, and views see every write."""
    weight = torch.ones(4, device=device)
    view = weight[1:3]

    @tg.jit
    def step(x: Tensor) -> Tensor:
        weight.add_(x)
        return weight.sum()

    assert step(torch.ones(4, device=device)).item() == 8
    view.mul_(10)
    assert weight.tolist() == [2, 20, 20, 2] and is_cold(weight)
    assert step(torch.ones(4, device=device)).item() == 48
    assert view.tolist() == [21, 21]
    tiers.set_mode("compiled")
    view += 1
    tiers.set_mode("tiered")
    weight[0] = 0
    assert weight.tolist() == [0, 22, 22, 3]


def test_checkpoints_go_back(device: torch.device) -> None:
    """A state that does not fit changes nothing, whichever tier has written it."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)).to(device)
    before = [p.tolist() for p in net.parameters()]
    wrong = {**net.state_dict(), "1.bias": torch.zeros(7)}
    wrong["0.weight"] = torch.zeros(2, 2)
    with pytest.raises(RuntimeError, match="size mismatch"):
        net.load_state_dict(wrong)
    assert [p.tolist() for p in net.parameters()] == before


def test_what_the_cpu_forgets_to_write(device: torch.device) -> None:
    """Into elements that do not follow each other: oneDNN's GELU writes a copy."""
    x, room = torch.randn(3, 4, device=device), torch.zeros(4, 6, device=device)
    torch._C._nn.gelu(x, out=room.mT[::2])
    torch.testing.assert_close(room.mT[::2].cpu(), F.gelu(x.cpu()))
    assert not room.mT[1::2].any()


# ---- modes -----------------------------------------------------------------------------------------------------------


@of_host_memory
def test_modes(device: torch.device) -> None:
    x = torch.ones(3, 1, 5, 1, 7, device=device)  # a shape that no other test has a plan of
    before = plans()
    x * 5
    assert plans() == before
    with tg.eager("compiled"):
        x * 6.5
        assert plans() == before + 1
    assert tiers.mode() == "tiered"
    with pytest.raises(ValueError, match="tiered"):
        tg.eager("hot")


@of_host_memory
def test_programs_become_hot_by_work_alone(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers have no kernel of the CPU's: their program is compiled after so many calls, and goes on."""
    monkeypatch.setattr(tiers, "CALLS", 3)
    torch.manual_seed(1)
    before = plans()
    got = [torch.rand(13, device=device).cpu() for _ in range(6)]
    assert plans() == before + 1
    torch.manual_seed(1)
    with tg.eager("compiled"):
        assert all(torch.equal(a, torch.rand(13, device=device).cpu()) for a in got)


# ---- TensorFlow's own transformations --------------------------------------------------------------------------------


def test_what_a_tape_of_tensorflow_watches_is_computed_where_it_sees_it() -> None:
    tf = pytest.importorskip("tensorflow")
    x, w = tf.constant([[1.0, -2.0, 3.0]]), tf.Variable([[0.5], [1.0], [2.0]])
    with tf.GradientTape() as tape:
        weight, plain = tg.from_backend_array(w + 0), tg.from_backend_array(x)
        aside = plain.exp() + 1  # watched by nobody
        loss = tg.to_backend_array((plain @ weight).square().sum() + (weight * 2).tanh().sum())
    assert is_cold(aside) and not is_cold(weight)
    weight = torch.tensor([[0.5], [1.0], [2.0]], requires_grad=True)
    plain = torch.tensor([[1.0, -2.0, 3.0]])
    expected = (plain @ weight).square().sum() + (weight * 2).tanh().sum()
    expected.backward()
    torch.testing.assert_close(torch.from_dlpack(loss), expected.detach())
    torch.testing.assert_close(torch.from_dlpack(tape.gradient(loss, w)), weight.grad)


def test_writes_below_a_tape_of_tensorflow() -> None:
    tf = pytest.importorskip("tensorflow")
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = torch.zeros(3, device=tg.device("tensorflow"))  # memory of the cold tier, before a watched value comes
        y[1:] = tg.from_backend_array(x)[:2] ** 2
        y.mul_(3)
        total = tg.to_backend_array(y.sum())
    assert total.numpy() == 15 and tape.gradient(total, x).numpy().tolist() == [6, 12, 0]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_what_a_function_of_tensorflow_traces_stays_in_it(jit_compile: bool) -> None:
    """Constants that the cold tier computes in a trace have values after it."""
    tf = pytest.importorskip("tensorflow")
    d = tg.device("tensorflow")
    table = torch.arange(4.0, device=d)
    kept: list[Tensor] = []

    @tf.function(jit_compile=jit_compile)
    def step(x: Any) -> Any:
        constant = table * 2
        kept.append(constant)
        return tg.to_backend_array(tg.from_backend_array(x) + constant)

    assert step(tf.ones(4)).numpy().tolist() == [1, 3, 5, 7]
    assert kept[0].tolist() == [0, 2, 4, 6] and (kept[0] + 1).tolist() == [1, 3, 5, 7]
    assert step(tf.ones(4)).numpy().tolist() == [1, 3, 5, 7] and table.tolist() == [0, 1, 2, 3]


def _written_around_inference(device: Any) -> list[Any]:
    results = []
    doubled = tg.jit(lambda x: [x[0] * 2, x[1] * 2])(torch.ones(2, device=device))
    for mode in (torch.inference_mode, torch.enable_grad):
        with mode():
            torch._foreach_add_(doubled, 1)
        results += [float(t) for t in doubled]
    x = torch.ones(3, device=device)
    with torch.inference_mode():
        y = torch.full((3,), 2.0, device=device) * 1
    x.data = y
    torch._foreach_add_([x.add_(1)], 1)
    results.append(x.tolist())
    for write in (lambda: y.add_(1), lambda: torch._foreach_add_([y], 1), lambda: torch.add(x, 1, out=y)):
        with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
            write()
        results.append(y.tolist())
    return results


def test_memory_that_was_written_in_inference_mode(device: torch.device) -> None:
    """In-place operators on the memory of the cold tier apply once, whatever mode it was made in."""
    assert _written_around_inference(device) == _written_around_inference("cpu")
