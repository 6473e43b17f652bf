"""`torch.autocast("graft")`: with the CPU's policy what CPU PyTorch does, with the others what their tables say."""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from tests.precision import oracle
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tensorgraft as tg
from tensorgraft.frontends.torch.core.operator import all_plans

pytestmark = pytest.mark.sampled

BACKENDS = ["numpy", "jax"]
F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16


@pytest.fixture(params=BACKENDS)
def device(request):
    if request.param == "jax":
        pytest.importorskip("jax")
    return tg.device(request.param)


@pytest.fixture(scope="module")
def jax_device():
    pytest.importorskip("jax")
    return tg.device("jax")


def on(where, dtype=BF16, **options):
    return torch.autocast(torch.device(where).type, dtype=dtype, **options)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def leaf(t, device):
    return t.to(device).detach().requires_grad_()


# ---- values and gradients, against CPU PyTorch with its own autocast -------------------------------------------------

X, Y, W = drawn(4, 6), drawn(4, 6, seed=1), drawn(6, 6, seed=2)
IMAGE, TAPS = drawn(2, 3, 6, 6), drawn(4, 3, 3, 3, seed=1)
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


# ---- the cast of a weight --------------------------------------------------------------------------------------------


class Casts(TorchDispatchMode):
    """Counts conversions of (6, 5) tensors."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and args[0].shape == (6, 5):
            self.n += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def weight(device):
    return leaf(drawn(6, 5), device)


def count(body, weight, **options):
    with Casts() as casts, on(weight.device, **options):
        for _ in range(3):
            body(weight)
    return casts.n


def test_a_weight_is_cast_once(weight):
    a = W.to(weight.device)
    assert count(lambda w: a @ w, weight) == 1
    assert count(lambda w: a @ w, weight, cache_enabled=False) == 3
    assert count(lambda w: a @ w[:], weight) == 3  # a view
    assert count(lambda w: a @ w.detach(), weight) == 3  # asks for no gradient
    assert count(lambda w: a @ (w * 1), weight) == 3  # no leaf
    assert count(lambda w: a.double() @ w, weight.detach().double().requires_grad_()) == 0
    assert count(lambda w: a @ w, weight.detach().half().requires_grad_()) == 3
    half = weight.detach().half().requires_grad_()
    with tg.autocast_policy("cuda"):  # casts to float32 are not kept
        assert count(lambda w: w.exp(), half) == 3


def test_casts_end_with_the_outermost_region(weight):
    a = W.to(weight.device)
    with Casts() as casts:
        with on("cpu"):
            with on(weight.device):
                first = a @ weight
                with on(weight.device):
                    a @ weight
            with on(weight.device), on(weight.device, F16):
                assert (a @ weight).dtype == F16  # another dtype, another cast
                assert casts.n == 2
        with torch.no_grad():
            weight.add_(1)
        with on(weight.device):
            second = a @ weight
    assert casts.n == 3 and not torch.equal(first.cpu(), second.cpu())


def test_casts_do_not_outlive_their_weights(device):
    a = W.to(device)
    with on(device):
        for seed in range(20):  # each may be where the last one was
            w = drawn(6, 5, seed=seed)
            found = a @ leaf(w, device)
            torch.testing.assert_close(found.cpu(), W.bfloat16() @ w.bfloat16(), rtol=1e-2, atol=2e-2)


def test_a_cast_under_no_grad_keeps_the_gradient(weight):
    a = W.to(weight.device)
    with Casts() as casts, on(weight.device):
        with torch.no_grad():
            assert not (a @ weight).requires_grad
        out = a @ weight + a @ weight
    out.float().sum().backward()
    assert casts.n == 1 and weight.grad.dtype == F32
    want = 2 * W.bfloat16().float().sum(0)[:, None].expand(6, 5)
    torch.testing.assert_close(weight.grad.cpu(), want, rtol=1e-2, atol=1e-2)


def test_nothing_is_kept_of_inference_mode(weight):
    a = W.to(weight.device)
    with on(weight.device):
        with torch.inference_mode():
            a @ weight
        out = a @ weight
    out.float().sum().backward()
    assert weight.grad is not None


# ---- backward passes -------------------------------------------------------------------------------------------------


def test_gradients_have_the_dtypes_of_what_they_belong_to(weight):
    a = leaf(W, weight.device)
    inner = a.bfloat16()
    inner.retain_grad()
    with on(weight.device):
        out = inner @ weight
    out.sum().backward()
    assert (inner.grad.dtype, a.grad.dtype, weight.grad.dtype) == (BF16, F32, F32)


class Product(torch.autograd.Function):
    seen: list = []  # noqa: RUF012

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        out = torch.mm(x, w)
        Product.seen.append((out.dtype, torch.is_autocast_enabled("graft")))
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        back = torch.mm(grad, w.t())
        Product.seen.append((back.dtype, torch.is_autocast_enabled("graft")))
        return back.to(x.dtype), torch.mm(x.t(), grad).to(w.dtype)


@pytest.mark.parametrize(("cast_inputs", "dtype"), [(None, BF16), (F32, F32)])
def test_custom_fwd_and_bwd(weight, cast_inputs, dtype):
    class Cast(Product):
        forward = staticmethod(torch.amp.custom_fwd(Product.forward, device_type="graft", cast_inputs=cast_inputs))
        backward = staticmethod(torch.amp.custom_bwd(Product.backward, device_type="graft"))

    Product.seen.clear()
    x = leaf(W, weight.device)
    with on(weight.device):
        out = Cast.apply(x.bfloat16() if cast_inputs else x, weight)
    out.sum().backward()
    assert Product.seen == [(dtype, cast_inputs is None)] * 2
    assert x.grad.dtype == weight.grad.dtype == F32


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(weight, use_reentrant):
    seen = []

    def block(x):
        seen.append((x @ weight).dtype)
        return torch.relu(x @ weight)

    def run(f, *args):
        x = leaf(W, weight.device)
        weight.grad = None
        with on(weight.device):
            out = f(*args, x)
        out.float().square().sum().backward()
        return x.grad.cpu(), weight.grad.cpu()

    plain = run(block)
    seen.clear()
    kept = run(lambda x: checkpoint(block, x, use_reentrant=use_reentrant))
    assert seen == [BF16, BF16]
    for a, b in zip(kept, plain, strict=True):
        assert torch.equal(a, b)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
}


def scaled(where, make, clip=True, compile_it=lambda f: f, steps=5):
    """Scale and parameters after each step of a training whose third step overflows, and is left out."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(where)
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler(torch.device(where).type, init_scale=2.0**10, growth_interval=2)

    def step(x, y):
        optimizer.zero_grad()
        with on(where, F16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    run, history = compile_it(step), []
    for i in range(steps):
        run(drawn(8, 6, seed=i).to(where) * (1e5 if i == 2 else 1), (torch.arange(8) % 3).to(where))
        history.append((scaler.get_scale(), [p.detach().cpu().clone() for p in model.parameters()]))
    return history, run


def compare_scaled(found, wanted, **tolerance):
    assert [s for s, _ in found] == [s for s, _ in wanted] == [1024, 2048, 1024, 1024, 2048]
    for (_, a), (_, b) in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    assert all(map(torch.equal, found[1][1], found[2][1]))  # the step that overflowed


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_grad_scaler(device, name):
    with tg.autocast_policy("cpu"):
        found, _ = scaled(device, OPTIMIZERS[name], clip=name == "sgd")
    compare_scaled(found, scaled("cpu", OPTIMIZERS[name], clip=name == "sgd")[0], rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_grad_scaler_compiled(jax_device, name):
    found, run = scaled(jax_device, OPTIMIZERS[name], name == "sgd", tg.jit)
    compare_scaled(found, scaled(jax_device, OPTIMIZERS[name], name == "sgd")[0], rtol=1e-2, atol=2e-3)
    assert run.report.traces == 1


# ---- compiled --------------------------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        h = self.norm(F.gelu(self.embed(x)))
        return self.out(h + F.dropout(h, 0.0)), self.out(h).softmax(-1)


def trained(device, compile_it, where, steps=4):
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def inner(x, y):
        logits, probabilities = model(x)
        assert (logits.dtype, probabilities.dtype) == (BF16, F32)
        return F.cross_entropy(logits, y)

    def step(x, y):
        optimizer.zero_grad()
        if where == "inside":
            with on(device):
                loss = inner(x, y)
        else:
            loss = inner(x, y)
        loss.backward()
        optimizer.step()
        return loss

    run, losses = compile_it(step), []
    for i in range(steps):
        x, y = drawn(8, 6, seed=i).to(device), (torch.arange(8) % 3).to(device)
        if where == "inside":
            losses.append(run(x, y).item())
        else:
            with on(device):
                losses.append(run(x, y).item())
    return losses, model, run


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_training_step(jax_device, where):
    eager, model, _ = trained(jax_device, lambda f: f, where)
    compiled, there, run = trained(jax_device, tg.jit, where)
    assert run.report.traces == 1 and compiled == pytest.approx(eager, rel=1e-2)
    for a, b in zip(model.parameters(), there.parameters(), strict=True):
        assert b.dtype == b.grad.dtype == F32
        torch.testing.assert_close(b.cpu(), a.cpu(), rtol=5e-2, atol=5e-3)


def test_a_program_casts_a_weight_once_and_keeps_it_to_itself(jax_device):
    a, w = W.to(jax_device), leaf(drawn(6, 5), jax_device)
    sizes = []
    for cache in (True, False):
        run = tg.jit(lambda: a @ w + a @ w + a @ w)
        with on(jax_device, cache_enabled=cache):
            eager = a @ w  # a cast from before the trace is none of the program's
            for shift in range(3):
                with torch.no_grad():
                    w.add_(shift)
                now = (W.bfloat16() @ w.detach().cpu().bfloat16()) * 3
                torch.testing.assert_close(run().cpu(), now, rtol=2e-2, atol=5e-2)
            again = a @ w  # nor the program's one of ours
            assert torch.equal(again.cpu(), eager.cpu()) == cache  # (PyTorch does not see writes within a region)
            again.float().sum().backward()
            assert w.grad is not None
        assert run.report.traces == 1
        sizes.append(run.report.operations[0])
    assert sizes[0] == sizes[1] - 2


@pytest.mark.compiled
def test_other_surroundings_trace_again(jax_device):
    x = W.to(jax_device)
    run = tg.jit(lambda x: torch.einsum("ij,ij->ij", x, x))
    found = [run(x).dtype]
    for options in ({"dtype": BF16}, {"dtype": F16}, {"dtype": BF16, "cache_enabled": False}, {"dtype": BF16}):
        with torch.autocast("graft", **options):
            found.append(run(x).dtype)
    with tg.autocast_policy("cpu"), on(jax_device):
        found.append(run(x).dtype)
    with tg.autocast("bfloat16", policy="cpu"):
        found.append(run(x).dtype)
    assert found == [F32, BF16, F16, BF16, BF16, F32, F32] and run.report.traces == 5


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
