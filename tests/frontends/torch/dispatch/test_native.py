"""The native kernels: what they compute, and what they leave to the kernels in Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tensorgraft as tg
from tensorgraft.frontends.torch.dispatch import cold
from tensorgraft.frontends.torch_entry import native_build

# every line is printed with native kernels and without, and is the same
PROGRAM = """
import torch, warnings
import tensorgraft as tg

device = tg.device("jax")
def show(*values):
    for v in values:
        is_tensor = isinstance(v, torch.Tensor)
        print(*((type(v).__name__, v.dtype, v.device, v.stride(), v.is_inference(), v.tolist()) if is_tensor else (v,)))
def error(fn):
    try:
        show(fn())
    except Exception as e:
        print(type(e).__name__, str(e).splitlines()[0])

x = torch.arange(6.0, device=device).reshape(2, 3)
show(x.to(torch.float64), x.cpu(), x.to("cpu", torch.int32), torch.ones(2).to(device), x.t() @ x, x.sum(),
     x.max(1)[1])
x[1] = 5
x[0, 1] = -1
y = x.t()
y.add_(torch.ones(3, 2)[0, 0]).mul_(x.t())
show(x, y, x[:, 1:].exp_(), x, x.view(-1)[2:4].zero_(), x, torch.cat([x, y.t()]), x[torch.tensor([1, 0],
     device=device)])
x.copy_(torch.zeros(2, 3, dtype=torch.int64))
show(x, x.equal(torch.zeros(2, 3, device=device)), x[0, 0].item(), bool(x.any()),
     x.clone(memory_format=torch.contiguous_format))
for fn in (lambda: x.copy_(torch.zeros(4, 3)), lambda: x + torch.ones(4, device=device), lambda: x + torch.ones(3),
           lambda: x @ x, lambda: x.view(5), lambda: x.bool().add_(1.5), lambda: torch.zeros(2,
     dtype=torch.int8, device=device).fill_(1000),
           lambda: x[torch.tensor([5], device=device)], lambda: torch.empty(-1, device=device),
     lambda: x.to("meta").device):
    error(fn)
show(torch.empty(3, device=device), torch.full((2,), 7, device=device), torch.arange(3, device=device),
     torch.zeros(2, 2, dtype=torch.int8, device=device), torch.empty(0, device=device) + 1,
     torch.empty_strided((2, 2), (1, 2), device=device))
torch.use_deterministic_algorithms(True)
show(torch.empty(2, device=device))
torch.use_deterministic_algorithms(False)
c = torch.complex(torch.ones(2, device=device), torch.ones(2, device=device))
show(c.conj() @ c, c * 2, c.conj() + 1, c.conj().to(torch.complex128), torch._neg_view(x) + 1)
p = torch.nn.Parameter(torch.ones(2, 2, device=device))
(p * 2).exp().sum().backward()
show(p.grad, p.detach().requires_grad_().cpu().requires_grad)
with torch.inference_mode():
    a = torch.ones(2, device=device)
    show(a + 1, a.add_(1))
show(a.clone() + 1, a + 1)
error(lambda: a.add_(1))
with torch.autocast(device.type, dtype=torch.bfloat16):
    show(x @ x.t(), x + 1)
f = tg.jit(lambda t: (t * 2).sum())
show(f(x), f(x))
x.copy_(f(x) + 1)
show(x, x + 1)
with tg.eager("compiled"):
    show(x + 1, x.add_(1))
show(x + 1, x.add_(1))
show(torch.func.vmap(lambda t: t * 2 + t.sum())(x), torch.func.grad(lambda t: (t**3).sum())(x[0]),
     torch.func.jvp(torch.exp, (x,), (x,))[1])
show(torch.jit.trace(lambda t: t * 2 + 1, (x,))(x + 1))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    show(torch.std(torch.ones(1, device=device)))
show([str(w.message).splitlines()[0] for w in seen])
other = torch.ones(3, device=tg.device("numpy"))
error(lambda: other + torch.ones(3, device=device))
show(other + 1, other.to(device), torch.ones(3, device=device).to(other.device))
z = torch.arange(24.0, device=device).reshape(2, 3, 4)
for v in (z.permute(2, 0, 1), z[:, :, ::2], z.transpose(0, 2)[:, 1:], z[:, 0].expand(3, 2, 4)):
    copies = [v.cpu(), v.double(), v.to("cpu", torch.float64), v.cpu().to(device), v.clone(), v + 1,
              torch.zeros_like(v)]
    show(*(y.stride() for y in copies))
class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, fn, types, args=(), kwargs=None):
        print(getattr(fn, "__name__", fn))
        return fn(*args, **(kwargs or {}))
with Functions():
    f(x) + x[0].cpu().to(device)
leaf = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
kept, later = leaf.exp(), leaf.sin()
with torch.no_grad():
    error(lambda: torch._foreach_mul_([kept, torch.tensor([1, 2], device=device), later], 1.5))
show(kept._version, later._version, kept.detach())
error(lambda: kept.sum().backward())
same = torch.zeros(2, device=device)
torch._foreach_add_([same, same, same[:1]], 1)
show(same, same._version)
error(lambda: torch.equal(torch.tensor(1.0, device=device), torch.tensor(1.0)))
error(lambda: torch.empty_strided((2,), (-1,), device=device))
error(lambda: torch.empty_strided((2, 2), (1,), device=device))
small = torch.ones(1, device=device)
show(small.addbmm_(torch.ones(2, 5, 3, device=device), torch.ones(2, 3, 4, device=device)), small)
base = torch.zeros(4, device=device)
view = base[1:3]
view += 1
base.mul_(3)
show(base, view, view.untyped_storage().data_ptr() == base.untyped_storage().data_ptr(), view._version,
     view._is_view())
"""


def _prints(native: str) -> str:
    environment = {**os.environ, "TENSORGRAFT_NATIVE": native, "TENSORGRAFT_EAGER": "tiered"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


built = pytest.mark.skipif(
    (place := native_build.place()) is None or not place.exists(),
    reason="needs the library: tensorgraft doctor --build",
)


@built
def test_what_they_compute_is_what_python_computes():
    assert _prints("1") == _prints("0")


def _without_plans(name: str) -> cold.ColdOperator:
    """Return an operator, as if no test had compiled a call of it: those with plans are left to Python."""
    operator = next(operator for operator in cold.operators if operator.name == name)
    operator.of.calls.clear()
    return operator


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_what_python_computes_is_what_the_cpu_computes():
    """After errors of lists, and where the CPU resizes what it writes."""
    kept, device = {}, tg.device("jax")
    for d in ("cpu", device):
        leaf = torch.tensor([1.0, 2.0], device=d, requires_grad=True)
        out = leaf.exp()
        with torch.no_grad(), pytest.raises(RuntimeError, match="can't be cast"):
            torch._foreach_mul_([out, torch.tensor([1, 2], device=d)], 1.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()
        x = torch.ones(1, device=d)
        x.addbmm_(torch.ones(2, 5, 3, device=d), torch.ones(2, 3, 4, device=d))
        kept[str(d)] = x.tolist(), out._version
    assert kept["cpu"] == kept[str(device)]


@built
def test_calls_are_counted():
    native = _without_plans("cos")
    with tg.eager("tiered"):
        x = torch.ones(3, device=tg.device("jax"))
        before, counted = native.native_calls[0](), tg.torch.tier_counts()[0]["cos"]
        x.cos()
        assert native.native_calls[0]() == before + 1
        with _Seen() as seen:
            x.cos()
        assert seen.names == ["aten::cos"]
        assert native.native_calls[0]() == before + 2
        assert tg.torch.tier_counts()[0]["cos"] == counted + 2


@built
def test_compiled_mode_is_left_to_python():
    native = _without_plans("sinh")
    x = torch.ones(3, device=tg.device("jax"))
    before = native.native_calls[0]()
    with tg.eager("compiled"):
        assert torch.allclose(x.sinh().cpu(), torch.ones(3).sinh())
    assert native.native_calls[0]() == before


def test_a_library_that_cannot_be_loaded(tmp_path):
    """It is said, and the kernels in Python serve."""
    environment = {**os.environ, "TENSORGRAFT_CACHE_DIR": str(tmp_path), "TENSORGRAFT_EAGER": "tiered"}
    program = (
        "from tensorgraft.frontends.torch_entry import native_build as n\n"
        "place = n.place()\nplace.parent.mkdir()\nplace.write_text('no library')\n"
        "import torch, tensorgraft as tg\nprint((torch.ones(2, device=tg.device('jax')) + 1).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "[2.0, 2.0]\n", done.stderr
    assert "the native kernels in" in done.stderr


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(native_build.cpp, "compiler", lambda: None)
    assert "not built" in native_build.state()
    with pytest.raises(OSError, match=r"C\+\+ compiler"):
        native_build.build()
