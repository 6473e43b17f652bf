"""Training in regions of autocast: the casts of weights, backward passes, `GradScaler`, compiled steps."""

import pytest
import torch
import torch.nn.functional as F
from tests.frontends.torch.dispatch.in_autocast import BF16, F16, F32, W, drawn, leaf, on
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import tensorgraft as tg

pytestmark = pytest.mark.sampled

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
