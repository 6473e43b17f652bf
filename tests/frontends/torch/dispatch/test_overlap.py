"""Writes into memory that is also read: PyTorch refuses some, and allows others."""

import os
import subprocess
import sys
import warnings

import pytest
import torch

import tensorgraft as tg
from tensorgraft.frontends.torch.dispatch.overlapping_elements import overlaps_itself

pytestmark = pytest.mark.sampled

# name -> what is done to a tensor of 12 elements
PROGRAMS = {
    "itself in place": lambda x: x.add_(x),
    "itself as out": lambda x: torch.mul(x, x, out=x),
    "another view of the same elements": lambda x: x[:4].add_(x[0:4]),
    "disjoint halves": lambda x: x[:6].add_(x[6:]),
    "shifted in place": lambda x: x[1:].add_(x[:-1]),
    "shifted as out": lambda x: torch.add(x[1:], x[:-1], out=x[1:]),
    "shifted copy": lambda x: x[1:].copy_(x[:-1]),
    "a copy of itself": lambda x: x.copy_(x),
    "transposed copy": lambda x: x[:9].view(3, 3).copy_(x[:9].view(3, 3).t()),
    "transposed addition": lambda x: x[:9].view(3, 3).add_(x[:9].view(3, 3).t()),
    "another offset in addcmul_": lambda x: x[1:].addcmul_(x[1:], x[:-1]),
    "take": lambda x: torch.take(x, torch.arange(12, device=x.device), out=x),
    "masked_select": lambda x: torch.masked_select(x, x > 3, out=x[:8]),
    "cumsum": lambda x: torch.cumsum(x[1:], 0, out=x[:-1]),
    "kthvalue": lambda x: torch.kthvalue(x, 1, out=(x[0], torch.zeros((), dtype=torch.int64, device=x.device))),
    "index_copy_": lambda x: x[:4].index_copy_(0, torch.arange(3, device=x.device), x[1:4]),
    "scatter_": lambda x: x[:4].scatter_(0, torch.arange(3, device=x.device), x[1:4]),
    "masked_fill_ of an expanded tensor": lambda x: x[:1].expand(3).masked_fill_(x[:3] > 0, 1.0),
    "setitem": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "other bytes of one storage": lambda x: x[:4].view(torch.int32).add_(x[8:].view(torch.int32)),
}


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def outcome(program, x):
    try:
        program(x)
    except Exception as error:
        return type(error), str(error), x.tolist()
    return x.tolist()


@pytest.mark.filterwarnings("ignore:Use of masked_fill_ on expanded tensors")
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", PROGRAMS)
def test_overlap(name, device):
    x = torch.arange(12.0)
    assert outcome(PROGRAMS[name], x.to(device)) == outcome(PROGRAMS[name], x.clone())


# name -> what is done to overlapping windows `v` of a tensor, and to `o`, of the same shape
WINDOWS = {
    "number": lambda v, o: v.add_(100).mul_(2),
    "tensor": lambda v, o: v.add_(o),
    "broadcast tensor": lambda v, o: v.mul_(o[..., :1]),
    "two tensors": lambda v, o: v.addcmul_(o, o),
    "copy": lambda v, o: v.copy_(o),
    "copy of other strides": lambda v, o: v.copy_(o.transpose(0, -1).contiguous().transpose(0, -1)),
    "copy of integers": lambda v, o: v.copy_(o.int()),
    "setitem": lambda v, o: v.__setitem__(Ellipsis, o),
    "out": lambda v, o: torch.mul(o, o, out=v),
    "out that is read": lambda v, o: torch.where(o > 0, v, o, out=v),
    "computed in double": lambda v, o: v.sub_(o.double()),
    "masked_fill_": lambda v, o: v.masked_fill_(o > 5, 2.0),
    "foreach": lambda v, o: torch._foreach_mul_([v, o], 2),
}
VIEWS = {
    "rows": lambda x: x.unfold(0, 3, 1),
    "columns": lambda x: x.unfold(1, 3, 2).permute(2, 0, 1),
    "both": lambda x: x.unfold(0, 2, 1).unfold(1, 3, 1),
    "one axis": lambda x: x[1].unfold(0, 4, 1),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name, view, device):
    """They are written in the order of one thread of the CPU."""
    x = torch.arange(1.0, 31.0).reshape(5, 6)
    o = torch.randint(-9, 9, VIEWS[view](x).shape, generator=torch.Generator().manual_seed(0)).float()

    def after(x, o):
        WINDOWS[name](VIEWS[view](x), o)
        return x.tolist()

    assert after(x.to(device), o.to(device)) == after(x.clone(), o)


def test_gradient_through_windows(device):
    def gradient(leaf):
        y = leaf * 1.0
        windows = y.unfold(0, 3, 1)
        windows.mul_(3)
        y.mul_(leaf)
        (windows * windows).sum().backward()
        return leaf.grad.tolist()

    x = torch.arange(1.0, 9.0)
    assert gradient(x.to(device).requires_grad_()) == gradient(x.clone().requires_grad_())


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((3, 2), (1, 1), True),
        ((3, 2), (2, 1), False),
        ((4, 3), (2, 3), True),
        ((3, 2), (2, 3), False),
        ((2, 0), (1, 1), False),
        ((3,), (0,), True),
    ],
)
def test_overlaps_itself(shape, strides, expected):
    assert overlaps_itself(shape, strides) is expected


def test_an_out_that_grows_into_an_input(device):
    at = torch.tensor([0, 1, 2], device=device)
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.gather(at.clone(), 0, at[1:], out=at[:1])
    assert at.tolist() == [0, 1, 2]


def resized_outs():
    x = torch.arange(9.0).reshape(3, 3)
    yield "add", lambda x, out: torch.add(x, 1, out=out), x, (3, 3)
    yield "addbmm", lambda x, out: torch.addbmm(x, x[None], x[None], out=out), x, (3, 3)
    yield "linalg.inv", lambda x, out: torch.linalg.inv(x + 9 * torch.eye(3, device=x.device), out=out), x, (3, 3)
    yield "arange", lambda x, out: torch.arange(3.0, out=out), x, (3,)
    yield "full", lambda x, out: torch.full((3,), 2.0, out=out), x, (3,)
    yield "mode", lambda x, out: torch.mode(x, 1, out=(out, out.long()))[0], x, (3,)


@pytest.mark.parametrize("case", list(resized_outs()), ids=lambda case: case[0])
def test_resized_outs_warn_as_on_the_cpu(device, case):
    """At every call, not at the first alone; kernels that say nothing say nothing."""
    _, run, x, size = case
    said = []
    for where in ("cpu", device, device):
        out = torch.zeros((*size, 2), device=where)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run(x.to(where), out)
        said.append([str(w.message).partition(" (Triggered")[0] for w in seen])
    assert said[1] == said[0]
    assert said[2] == said[0]


def test_an_out_that_is_read_and_resized() -> None:
    """CPU PyTorch reads memory that it has freed, and its heap is spoilt: what asks its kernels has room for it. The
    device reads what was there."""
    code = (
        "import torch, tensorgraft as tg\n"
        "for n in range(2, 30):\n"
        "    given = torch.rand(2, 2, n, 3).bfloat16()\n"
        "    x = given.to(tg.device('numpy'))\n"
        "    torch._C._nn.replication_pad2d(x, [1, 2, 1, n - 1], out=x)\n"
        "    assert torch.equal(x.cpu(), torch._C._nn.replication_pad2d(given, [1, 2, 1, n - 1]))\n"
    )
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    made = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, env=env)
    assert made.returncode == 0, made.stderr
