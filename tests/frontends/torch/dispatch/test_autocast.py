"""`torch.autocast("graft")`: with the CPU's policy what CPU PyTorch does, with the others what their tables say."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from tests.frontends.torch.dispatch.in_autocast import (
    BF16,
    F16,
    F32,
    F64,
    IMAGE,
    TAPS,
    W,
    X,
    Y,
    drawn,
    leaf,
    on,
)
from tests.precision import oracle
from torch import nn

import tensorgraft as tg
from tensorgraft.frontends.torch.core.operator import all_plans

pytestmark = pytest.mark.sampled

PROGRAMS = {
    "mm": (lambda x, w: x @ w, X, W),
    "mm then relu": (lambda x, w: torch.relu(x @ w) @ w, X, W),
    "mixed": (lambda x, w: x.bfloat16() @ w, X, W),
    "linear": (lambda x, w, b: F.linear(x, w, b), X, W, drawn(6)),
    "bmm": (lambda x, w: torch.bmm(x[None], w[None]), X, W),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), IMAGE, TAPS),
    "prelu": (lambda x, w: F.prelu(x, w), X, drawn(6)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), X[None, None], Y[None, None], X[None, None]),
    "einsum, a product": (lambda x, w: torch.einsum("ij,jk->ik", x, w), X, W),
    "einsum, elementwise": (lambda x, y: torch.einsum("ij,ij->ij", x, y), X, Y),
    "cat": (lambda x, y: torch.cat([x, y.bfloat16()]), X, Y),
    "stack": (lambda x, y: torch.stack([x.bfloat16(), y.bfloat16()]), X, Y),
    "softmax": (lambda x, w: (x @ w).softmax(-1), X, W),
    "layer_norm": (lambda x, w: F.layer_norm(x, (6,), w), X, drawn(6)),
    "mse_loss": (lambda x, w: F.mse_loss(x @ w, x), X, W),
    "cross_entropy": (lambda x, w: F.cross_entropy(x @ w, torch.tensor([0, 1, 2, 3], device=x.device)), X, W),
    "prod": (lambda x: x.bfloat16().prod(), X),
    "pow": (lambda x: x.bfloat16().square().sum(), X),
    "inverse": (lambda x: torch.linalg.inv(x @ x.mT + 3 * torch.eye(6, device=x.device)), W),
    "norm": (lambda x, w: (x @ w).norm(), X, W),
    "bce": (lambda x: F.binary_cross_entropy(x.sigmoid(), torch.full_like(x, 0.5)), X),
}


def ran(fn, where, tensors, backward="outside"):
    """Result, gradients; the backward pass inside of the region or outside."""
    args = [leaf(t, where) for t in tensors]
    with on(where):
        out = fn(*args)
        if backward == "inside":
            out.float().square().sum().backward()
    if backward == "outside":
        out.float().square().sum().backward()
    return [out.detach().cpu(), *(a.grad.cpu() for a in args)]


def compare(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert a.dtype == b.dtype and a.squeeze().stride() == b.squeeze().stride()
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


BFLOAT16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # else oneDNN has no LSTM, and convolutions round twice


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 2}])
def test_an_lstm_as_on_the_cpu(device, options):
    """oneDNN's, whole in the region's dtype, unless there are projections."""
    if not BFLOAT16 and "proj_size" not in options:
        pytest.skip("the CPU has no such kernel")
    torch.manual_seed(0)
    module = torch.nn.LSTM(4, 3, **options)

    def run(where):
        with on(where):
            out, (h, c) = module.to(where)(drawn(2, 3, 4).to(where))
        out.float().square().sum().backward()
        return [out.detach().cpu(), h.detach().cpu(), c.detach().cpu(), *(p.grad.cpu() for p in module.parameters())]

    with tg.autocast_policy("cpu"):
        wanted = run("cpu")
        module.zero_grad()
        compare(run(device), wanted)


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_the_cpu(device, name):
    fn, *tensors = PROGRAMS[name]
    with tg.autocast_policy("cpu"):
        for backward in ("outside", "inside"):
            compare(ran(fn, device, tensors, backward), ran(fn, "cpu", tensors, backward))


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_on_the_cpu_compiled(jax_device, name):
    if not BFLOAT16 and name.startswith("conv"):
        pytest.skip("the CPU's kernel rounds twice")
    fn, *tensors = PROGRAMS[name]

    def step(*args):
        with on(args[0].device):
            out = fn(*args)
        out.float().square().sum().backward()
        return out

    args = [leaf(t, jax_device) for t in tensors]
    with tg.autocast_policy("cpu"):
        out = tg.jit(step)(*args)
    compare([out.cpu(), *(a.grad.cpu() for a in args)], ran(fn, "cpu", tensors))


# ---- CUDA's table: result dtypes from float32 and from float16 arguments ---------------------------------------------

IDS = torch.tensor([0, 1, 2, 3])
CUDA = {
    "mm": (lambda x, w: x @ w, F16, F16),
    "mv": (lambda x, w: w.mv(x[0]), F16, F16),
    "einsum": (lambda x, w: torch.einsum("ij,jk->ik", x, w), F16, F16),
    "einsum that is elementwise": (lambda x, w: torch.einsum("ij,ij->ij", w, w), F16, F16),
    "einsum that is a permutation": (lambda x, w: torch.einsum("ij->ji", w), F16, F16),
    "multi_dot": (lambda x, w: torch.linalg.multi_dot([x, w, w]), F16, F16),
    "prelu": (lambda x, w: F.prelu(x, w[0]), F16, F16),
    "attention": (lambda x, w: F.scaled_dot_product_attention(x[None], x[None], x[None]), F16, F16),
    "exp": (lambda x, w: x.exp(), F32, F32),
    "pow": (lambda x, w: x**2, F32, F32),
    "pow of a number": (lambda x, w: 2**x, F32, F32),
    "layer_norm": (lambda x, w: F.layer_norm(x, (6,)), F32, F32),
    "group_norm": (lambda x, w: F.group_norm(x, 2), F32, F32),
    "mse_loss": (lambda x, w: F.mse_loss(x, x * 2), F32, F32),
    "upsample": (lambda x, w: F.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"), F32, F32),
    "softmax": (lambda x, w: x.softmax(-1), F32, F32),
    "softmax with a dtype": (lambda x, w: x.softmax(-1, dtype=F16), F16, F16),
    "sum": (lambda x, w: x.sum(), F32, F32),
    "sum with a dtype": (lambda x, w: x.sum(0, dtype=F16), F16, F16),
    "cumsum": (lambda x, w: x.cumsum(0), F32, F32),
    "norm": (lambda x, w: x.norm(), F32, F32),
    "norm along": (lambda x, w: x.norm(2, dim=1, keepdim=True), F32, F32),
    "vector_norm": (lambda x, w: torch.linalg.vector_norm(x), F32, F32),
    "addcmul": (lambda x, w: torch.addcmul(x, x, x.half()), F32, F16),
    "dot": (lambda x, w: torch.dot(x[0], x[1].half()), F32, F16),
    "index_put": (lambda x, w: x.index_put((IDS.to(x.device),), x.half()), F32, F16),
    "cat": (lambda x, w: torch.cat([x, x.half()]), F32, F16),  # no row: PyTorch's own promotion
    "add": (lambda x, w: x + w[0].half(), F32, F16),
    "relu": (lambda x, w: x.relu(), F32, F16),
    "mean": (lambda x, w: x.mean(), F32, F16),
}


@pytest.mark.parametrize("name", CUDA)
def test_dtypes_of_cuda(device, name):
    fn, full, half = CUDA[name]
    x, w = X.to(device), W.to(device)
    with on(device, F16):
        assert [fn(x, w).dtype, fn(x.half(), w.half()).dtype] == [full, half]
        exact = [fn(x.double(), w.double()).dtype] if name not in ("addcmul", "dot", "index_put") else [F64]
    assert exact == [F16 if "with a dtype" in name else F64]


@pytest.mark.parametrize(
    ("policy", "einsum", "softmax", "relu"),
    [("cuda", BF16, F32, F32), ("cpu", F32, BF16, F32), ("xla", BF16, F32, BF16)],
)
def test_policies(device, policy, einsum, softmax, relu):
    x, y = X.to(device), Y.to(device)

    def dtypes():
        return (torch.einsum("ij,ij->ij", x, y).dtype, x.bfloat16().softmax(0).dtype, x.relu().dtype)

    with tg.autocast_policy(policy), on(device):
        assert dtypes() == (einsum, softmax, relu)
    with tg.autocast("bfloat16", policy=policy):
        assert dtypes() == (einsum, softmax, relu)
    assert dtypes() == (F32, BF16, F32)


# ---- regions ---------------------------------------------------------------------------------------------------------


def test_regions(device):
    a = W.to(device)

    def mm():
        return torch.mm(a, a).dtype

    with on(device):
        assert mm() == BF16
        with on(device, F16):
            assert mm() == F16
        with on(device, enabled=False):
            assert mm() == F32
            with on(device):
                assert mm() == BF16
            with pytest.raises(RuntimeError, match="same dtype"):
                torch.mm(a.bfloat16(), a)
        with torch.autocast("cpu", dtype=F16):
            assert mm() == BF16
        assert mm() == BF16
    with torch.autocast("cpu", dtype=BF16):
        assert mm() == F32
    with pytest.raises(ZeroDivisionError), on(device):
        raise ZeroDivisionError
    assert mm() == F32 and on(device)(mm)() == BF16 and mm() == F32
    with torch.autocast("graft"):
        assert mm() == F16


def test_state_and_default_dtype_are_the_thread_s(device):
    a, seen = W.to(device), []

    def run():
        seen.append((torch.mm(a, a).dtype, torch.get_autocast_dtype("graft")))
        with torch.autocast("graft"):
            seen.append(torch.mm(a, a).dtype)

    before = torch.get_autocast_dtype("graft")
    torch.set_autocast_dtype("graft", BF16)
    try:
        with torch.autocast("graft"):
            assert torch.mm(a, a).dtype == BF16
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
    finally:
        torch.set_autocast_dtype("graft", before)
    assert seen == [(F32, F16), F16]


def test_one_region_for_everything(device):
    a = W.to(device)
    with tg.autocast("bfloat16", cache_enabled=False):
        assert torch.mm(a, a).dtype == BF16 and not torch.is_autocast_cache_enabled()
        with tg.autocast(enabled=False):
            assert torch.mm(a, a).dtype == F32
        with tg.autocast("float16"), tg.autocast():
            assert torch.mm(a, a).dtype == F16
    assert torch.is_autocast_cache_enabled()
    with tg.autocast(policy="cpu"):
        assert torch.mm(a, a).dtype == BF16

    @tg.autocast(torch.bfloat16)
    def product():
        return torch.mm(a, a)

    assert product().dtype == BF16 and torch.mm(a, a).dtype == F32


def test_ineligible_dtypes(device):
    a = W.to(device)
    with pytest.warns(UserWarning, match="In graft autocast, but the target dtype is not supported") as seen:
        region = on(device, F64)
    with pytest.warns(UserWarning) as cpu:
        on("cpu", F64)
    ours, theirs = (str(w[0].message).replace("graft", "CPU") for w in (seen, cpu))
    assert ours.splitlines()[0] == theirs.splitlines()[0]
    with region:
        assert torch.mm(a, a).dtype == F32


def test_arguments_that_are_not_eligible(device):
    a = W.to(device)
    with on(device):
        for dtype in (F64, torch.int64, torch.complex64):
            assert torch.mm(a.to(dtype), a.to(dtype)).dtype == dtype
        with pytest.raises(RuntimeError, match="same dtype"):
            torch.mm(a.double(), a)
        assert torch.addmm(a[0], W[:, :1].expand(6, 6).to(device), a).dtype == BF16
        out = torch.zeros_like(a)
        assert torch.mm(a, a, out=out) is out and out.dtype == F32
        torch.testing.assert_close(out.cpu(), W @ W)
        torch.testing.assert_close(torch.zeros_like(a).addmm_(a, a).cpu(), W @ W)
        assert torch.ones(6, device=device, dtype=BF16).exp_().dtype == BF16


def message(fn, *args, kind=RuntimeError):
    with pytest.raises(kind) as error:
        fn(*args)
    return str(error.value)


def test_banned(device):
    torch.set_autocast_enabled("cuda", True)
    try:
        claiming = [oracle.Claiming(F32, "cuda"), oracle.Claiming(F32, "cuda")]
        theirs = message(torch.ops.aten.binary_cross_entropy, *claiming)
    finally:
        torch.set_autocast_enabled("cuda", False)
    x = X.to(device).sigmoid()
    with on(device, F16):
        assert message(F.binary_cross_entropy, x, x) == theirs
        assert message(nn.BCELoss(), x, x) == theirs
        with on(device, enabled=False):
            F.binary_cross_entropy(x, x)


def test_a_third_dtype_is_not_promoted(device):
    half, brain = X.half(), X.bfloat16()
    with torch.autocast("cpu", dtype=F16):
        theirs = message(torch.cat, [half, brain])
    with tg.autocast_policy("cpu"), on(device, F16):
        ours = message(torch.cat, [half.to(device), brain.to(device)])
    assert ours.splitlines()[0] == theirs.splitlines()[0]


# ---- other tools -----------------------------------------------------------------------------------------------------


def test_what_is_below_autocast_is_computed_alike_in_a_region(device):
    """An operator without a row that PyTorch's decomposition, or the CPU, computes: its parts are not cast."""
    x = drawn(3, 5, 8).to(device)
    weights = [t.to(device) for t in (drawn(24, 8), drawn(24), drawn(8, 8), drawn(8))]
    for program in (
        lambda: torch._native_multi_head_attention(x, x, x, 8, 4, *weights)[0],
        lambda: F.mish(x.bfloat16()),
        lambda: torch.special.log_ndtr(x),
    ):
        with on(device), on("cpu"):
            inside = program()
        for operator in all_plans:  # what was made inside is not to be used outside
            operator.clear()
        plain = program()
        assert inside.dtype == plain.dtype and torch.equal(inside.cpu(), plain.cpu())


def test_attention_in_evaluation():
    """Its fused operators are for the policy that has a row of them."""
    device = tg.device("numpy")
    x = drawn(2, 3, 8)
    for module in (nn.MultiheadAttention(8, 2, batch_first=True), nn.TransformerEncoderLayer(8, 2, 16)):
        module = module.to(device).eval()
        run = (lambda x, m=module: m(x, x, x)[0]) if isinstance(module, nn.MultiheadAttention) else module
        with torch.no_grad():
            plain = run(x.to(device))
            with on(device):
                found = run(x.to(device))
        assert found.dtype == (BF16 if run is not module else F32)  # the layer ends with a norm
        assert not torch.equal(found.float().cpu(), plain.cpu())
        torch.testing.assert_close(found.float().cpu(), plain.cpu(), rtol=5e-2, atol=5e-2)


def test_transforms_and_tracing(device):
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w = X.to(device), W.to(device)
    with on(device):
        grad = torch.func.grad(lambda w: (x @ w).float().sum())(w)
        each = torch.func.vmap(lambda row: row @ w)(x)
        graph = make_fx(lambda x, w: x @ w)(x, w)
    assert grad.dtype == F32 and each.dtype == BF16 and "_to_copy" in graph.code
    torch.testing.assert_close(grad.cpu(), X.sum(0)[:, None].expand(6, 6), rtol=2e-2, atol=2e-2)


def test_recurrent_layers():
    device = tg.device("numpy")
    for layer in (nn.LSTM(6, 5), nn.GRU(6, 5), nn.RNN(6, 5)):
        host = copy.deepcopy(layer)
        there = layer.to(device)
        with on(device):
            out, _ = there(X[:, None].to(device))
        out.float().sum().backward()
        assert out.dtype == BF16 and all(p.grad.dtype == F32 for p in there.parameters())
        torch.testing.assert_close(out.float().cpu(), host(X[:, None])[0].detach(), rtol=5e-2, atol=2e-2)


def test_direct_convolution_and_attention_have_kernels(device):
    """Operators of the tables that programs reach by their inner names."""
    arguments = (1, 1), (1, 1), (1, 1), False, (0, 0), 1, False, False, True, True
    found, wanted = ([leaf(t, d) for t in (IMAGE, TAPS, drawn(4))] for d in (device, "cpu"))
    for tensors in (found, wanted):
        torch._convolution(*tensors, *arguments).square().sum().backward()
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad, rtol=1e-4, atol=1e-4)
    x = drawn(3, 5, 8).bfloat16()
    weights = [t.bfloat16() for t in (drawn(24, 8), drawn(24), drawn(8, 8), drawn(8))]
    host = torch._native_multi_head_attention(x, x, x, 8, 4, *weights)
    there = [t.to(device) for t in (x, *weights)]
    for a, b in zip(torch._native_multi_head_attention(*there[:1] * 3, 8, 4, *there[1:]), host, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-2, atol=1e-2)
