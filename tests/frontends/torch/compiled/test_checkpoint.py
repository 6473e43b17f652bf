"""`torch.utils.checkpoint` in compiled functions: PyTorch's numbers, and the memory that it is there to save."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

import tensorgraft as tg

pytestmark = pytest.mark.sampled


class Block(nn.Module):
    def __init__(self, width, p):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.p = p

    def forward(self, x):
        return x + self.down(F.dropout(F.gelu(self.up(self.norm(x))), self.p))


def save_products(ctx, op, *args, **kwargs):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.linear.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.PREFER_RECOMPUTE


WAYS = {
    "none": lambda block, x: block(x),
    "plain": functools.partial(checkpoint, use_reentrant=False),
    "reentrant": functools.partial(checkpoint, use_reentrant=True),
    "closure": lambda block, x: checkpoint(lambda: block(x), use_reentrant=False),
    "nested": lambda block, x: checkpoint(
        lambda x: checkpoint(block, x, use_reentrant=False) * 1.0, x, use_reentrant=False
    ),
    "selective": functools.partial(
        checkpoint,
        use_reentrant=False,
        context_fn=functools.partial(create_selective_checkpoint_contexts, save_products),
    ),
}


class Net(nn.Module):
    def __init__(self, way, layers=3, width=8, p=0.0):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, p) for _ in range(layers))
        self.way = WAYS[way]

    def forward(self, x):
        for block in self.blocks:
            x = self.way(block, x)
        return x


def losses_and_gradients(net, x, place):
    """Of two calls, which see other data. `place` of the backward pass: eager, inside, outside."""
    found = []
    run = tg.jit(net) if place == "outside" else net

    def step(x):
        loss = run(x).square().mean()
        loss.backward()
        return loss

    if place == "inside":
        step = tg.jit(step)
    for scale in (1.0, 0.5):
        net.zero_grad()
        data = (x * scale).requires_grad_()
        found += [step(data).detach(), data.grad, *(p.grad for p in net.parameters())]
    return [t.cpu() for t in found]


@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_pytorchs(way, place):
    torch.manual_seed(0)
    here, x = Net(way), torch.randn(5, 8)
    there = copy.deepcopy(here).to(tg.device("jax"))
    expected = losses_and_gradients(here, x, "eager")
    for want, got in zip(expected, losses_and_gradients(there, x.to(tg.device("jax")), place), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("place", ["eager", "inside", "outside"])
def test_dropout_drops_the_same_again(place):
    """The gradient of a dropout's input is its mask: with the same numbers in the forward pass, or it is wrong."""
    device = tg.device("jax")
    x = torch.ones(400, device=device)

    def drop(x):
        return F.dropout(F.dropout(x, 0.3), 0.5)

    def loss(x):
        y = F.dropout(checkpoint(drop, F.dropout(x, 0.2), use_reentrant=False), 0.1)
        return y, y.sum()

    def step(x):
        y, total = (tg.jit(loss) if place == "outside" else loss)(x)
        total.backward()
        return y

    run = tg.jit(step) if place == "inside" else step
    masks = []
    for _ in range(2):
        data = x.clone().requires_grad_()
        y = run(data)
        torch.testing.assert_close(data.grad, y.detach())
        masks.append(y.ne(0))
    assert not torch.equal(*masks)  # other numbers at every call
    assert 0.1 < masks[0].float().mean().item() < 0.4


@pytest.mark.parametrize("way", ["plain", "reentrant"])
def test_memory_falls(way):
    device = tg.device("jax")
    temporary, kept = {}, {}
    for name in ("none", way):
        net, x = Net(name, layers=8, width=16).to(device), torch.randn(256, 16, device=device)

        def step(x, net=net):
            loss = net(x).square().mean()
            loss.backward()
            return loss

        temporary[name] = tg.explain(step, x.clone().requires_grad_()).program.memory.temporary
        out = tg.jit(net)(x.requires_grad_())
        kept[name] = sum(t.numel() for t in out.grad_fn.saved_tensors)
    assert temporary[way] < 0.35 * temporary["none"]
    assert kept[way] < 0.35 * kept["none"]


def test_sequential():
    torch.manual_seed(0)
    here = nn.Sequential(*[nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)])
    there = copy.deepcopy(here).to(tg.device("jax"))
    x = torch.randn(3, 4)

    def step(net, x):
        loss = checkpoint_sequential(net, 2, x, use_reentrant=False).sum()
        loss.backward()
        return loss

    torch.testing.assert_close(tg.jit(step)(there, x.to(tg.device("jax"))).cpu(), step(here, x).detach())
    for p, q in zip(there.parameters(), here.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-5, atol=1e-6)


def test_what_a_checkpointed_function_writes_is_written_again():
    """As in PyTorch, where statistics are taken twice."""
    here = nn.BatchNorm1d(4)
    there = copy.deepcopy(here).to(tg.device("jax"))
    run = tg.jit(lambda x: checkpoint(there, x, use_reentrant=False).square().sum())
    for _ in range(2):
        x = torch.randn(6, 4)
        checkpoint(here, x.clone().requires_grad_(), use_reentrant=False).square().sum().backward()
        run(x.to(tg.device("jax")).requires_grad_()).backward()
        torch.testing.assert_close(there.running_var.cpu(), here.running_var)
        assert there.num_batches_tracked.item() == here.num_batches_tracked.item()


@pytest.mark.parametrize("backend", ["jax", "numpy"])
@pytest.mark.parametrize("place", ["eager", "inside", "outside"])
def test_exceptions_of_the_second_run_reach_the_program(backend, place):
    calls = []

    def fails(x):
        calls.append(x)
        if len(calls) > 1:
            raise ValueError("the second run")
        return x.exp().sin()

    def loss(x):
        return checkpoint(fails, x, use_reentrant=False).sum()

    def step(x):
        (tg.jit(loss) if place == "outside" else loss)(x).backward()

    x = torch.ones(3, device=tg.device(backend), requires_grad=True)
    with pytest.raises(ValueError, match="the second run"):
        (tg.jit(step) if place == "inside" else step)(x)
    assert x.grad is None


def test_a_cpu_argument_that_would_be_needed_again_is_refused():
    run = tg.jit(lambda x, s: checkpoint(lambda x: (x * s).exp(), x, use_reentrant=False).sum())
    loss = run(torch.ones(3, device=tg.device("jax"), requires_grad=True), torch.tensor(2.0))
    with pytest.raises(tg.TracedValueError, match="uses a CPU tensor that is an argument"):
        loss.backward()


@pytest.mark.filterwarnings("ignore::tensorgraft.transforms.UncompiledWarning")
def test_other_hooks_of_saved_tensors():
    def loss(x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            return x.exp().sum()

    def step(x):
        total = loss(x)
        total.backward()
        return total

    x = torch.ones(3, device=tg.device("jax"), requires_grad=True)
    tg.jit(step)(x)
    torch.testing.assert_close(x.grad, x.detach().exp())
    run = tg.jit(loss)
    for _ in range(2):
        run(x).backward()
    torch.testing.assert_close(x.grad, 3 * x.detach().exp())


def test_in_a_pure_function_of_jax():
    """The second run finds the parameters that the function was given, and drops the same."""
    jax = pytest.importorskip("jax")

    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.full((60,), 3.0))

        def forward(self, x):
            return checkpoint(lambda x: F.dropout(x * self.weight, 0.4), F.dropout(x, 0.2), use_reentrant=False)

    apply, _, buffers = tg.graft(Dropping(), onto="jax")

    def loss(params, x):
        y, _ = apply(params, buffers, x, key=jax.random.key(0))
        return y.sum(), y

    gradients, y = jax.jit(jax.grad(loss, has_aux=True))({"weight": jax.numpy.full(60, 2.0)}, jax.numpy.full(60, 1.0))
    assert jax.numpy.allclose(gradients["weight"] * 2, y)
    assert 0.2 < (y != 0).mean() < 0.8
