"""What PyTorch promises of a backward pass, of one that goes through a compiled function: hooks, gradients that are
absent, retained, batched, of other strides, and results that are tensors from outside."""

import pytest
import torch
from torch import nn

import tensorgraft as tg

pytestmark = pytest.mark.sampled


@pytest.fixture(params=tg.backends())
def device(request):
    return tg.device(request.param)


def agree(program, device):
    """A program `(where, wrap) -> list` gives on the device, compiled, what it gives on the CPU."""
    for ours, theirs in zip(program(device, tg.jit), program("cpu", lambda fn: fn), strict=True):
        if not isinstance(theirs, torch.Tensor):
            assert ours == theirs
            continue
        torch.testing.assert_close(ours.detach().cpu(), theirs.detach())


def leaf(where, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(where).requires_grad_()


def hooks_of_leaves(where, wrap):
    w, x, ran = leaf(where, 2), leaf(where, 2), []
    w.register_hook(lambda g: g * 3)
    x.register_hook(lambda g: g * 5)
    w.register_post_accumulate_grad_hook(lambda p: (ran.append(1), p.grad.mul_(2))[0])
    run, seen = wrap(lambda x: (w * x).sum()), []
    for _ in range(3):
        w.grad = x.grad = None
        run(x).backward()
        seen += [w.grad, x.grad]
    return [*seen, len(ran)]


def hooks_inside(where, wrap):
    w = leaf(where, 2)

    def fn(x):
        h = w * x
        h.register_hook(lambda g: g * 3)
        return h, (h * h).sum()

    run = wrap(fn)
    for _ in range(3):
        h, loss = run(leaf(where, 2).detach())
        (loss + h.sum()).backward()
    return [w.grad]


def results_with_graphs_of_their_own(where, wrap):
    actor, critic = leaf(where, 2, 2), leaf(where, 2, 2)

    def fn(x):
        h = critic @ x
        return (actor @ x).tanh().sum(), h.exp().sum(), h.sin().sum(), (actor + 1).sum()

    run, seen = wrap(fn), []
    for _ in range(3):
        policy, value, other, plain = run(leaf(where, 2, 2).detach())
        policy.backward()
        value.backward()
        plain.backward()
        plain.backward()
        for used_up in (policy, value, other):
            try:
                used_up.backward()
            except RuntimeError as error:
                seen.append("second time" in str(error))
    return [*seen, actor.grad, critic.grad]


def requires_grad_set_and_unset(where, wrap):
    w = leaf(where, 2).requires_grad_(False)

    def fn(x):
        w.requires_grad_()
        y = (w * x).sum()
        w.requires_grad_(False)
        return y

    run, seen = wrap(fn), []
    for _ in range(3):
        y = run(leaf(where, 2))
        y.backward()
        seen += [y.requires_grad, w.requires_grad, w.grad is None]
    return seen


def hooks_of_arguments(where, wrap):
    x = leaf(where, 2)
    y = x * 1

    def fn(y):
        y.register_hook(lambda g: g * 3)
        return (y * y).sum()

    wrap(fn)(y).backward()
    return [x.grad]


def other_strides(where, wrap):
    w, other = leaf(where, 2, 3), leaf(where, 2, 3).detach()
    run = wrap(lambda: (w * 2).exp())
    for weight in (torch.ones((), device=where).expand(2, 3), other, other.reshape(3, 2).t()):
        (run() * weight).sum().backward()
    run().sum().backward()
    run()[:, 0].sum().backward()
    (run().t() @ other).sum().backward()
    return [w.grad]


def gradients_that_are_absent(where, wrap):
    a, b, x = leaf(where, 2), leaf(where, 3), leaf(where, 1).detach()
    run, seen = wrap(lambda: (a * x, b * x, a.sum() + b)), []
    for which in ((0,), (1,), (0, 2), (1,)):
        a.grad = b.grad = None
        results = run()
        sum(results[i].sum() for i in which).backward()
        seen += [a.grad is None, b.grad is None, *(t.grad for t in (a, b) if t.grad is not None)]
    return seen


def weight_decay(where, wrap):
    torch.manual_seed(0)
    parts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]).to(where)
    optimizer = torch.optim.AdamW(parts.parameters(), lr=0.1, weight_decay=0.5)
    run = wrap(lambda x: [part(x) for part in parts])
    for _ in range(2):
        optimizer.zero_grad()
        run(torch.ones(3, 2, device=where))[0].sum().backward()
        optimizer.step()
    return list(parts.parameters())


def tensors_from_outside(where, wrap):
    w, b, x = leaf(where, 2, 2), torch.ones(2, device=where), leaf(where, 2, 2)
    run = wrap(lambda x: (w, w[0], w.t(), b, b[:1], x, x[0], w * x, w.detach()))
    seen = []
    for _ in range(2):
        out = run(x)
        bases = [out[1]._base is w, out[2]._base is w, out[4]._base is b, out[6]._base is x]
        seen += [out[0] is w, out[3] is b, out[5] is x, *bases, *(t.requires_grad for t in out)]
        (out[0].sum() + 2 * out[1].sum() + out[6].sum() + out[2].exp().sum() + out[7].sum()).backward()
    with torch.no_grad():
        out[4].fill_(7.0)
        out[1].fill_(5.0)
    return [*seen, w.grad, x.grad, w, b]


def views_of_arguments_with_a_history(where, wrap):
    x = leaf(where, 3)
    y = x * 1
    view, other = wrap(lambda y: (y[:2], y * 3))(y)
    view.mul_(4)
    (y.sum() + other.sum()).backward()
    return [x.grad, y]


def retained(where, wrap):
    def fn(x):
        y = x * 2
        y.retain_grad()
        return y, (y * y).sum()

    run, seen = wrap(fn), []
    for _ in range(2):
        x = leaf(where, 2)
        y, loss = run(x)
        loss.backward(retain_graph=True)
        seen.append(y.grad.clone())
        (y.sum() * 3 + loss).backward()
        seen += [y.grad, x.grad]
    return seen


def kept_and_retained(where, wrap):
    class Model(nn.Module):
        def forward(self, x):
            self.h = x * 2
            self.h.retain_grad()
            return (self.h * self.h).sum()

    model = Model()
    wrap(model)(leaf(where, 2)).backward()
    return [model.h.grad]


def some_inputs(where, wrap):
    a, b, x = leaf(where, 2), leaf(where, 2), leaf(where, 2).detach()
    run = wrap(lambda: (a * b * x).exp().sum())
    run().backward(inputs=[a])
    seen = [a.grad, b.grad is None, *torch.autograd.grad(run(), [b]), *torch.autograd.grad(run(), [b, a])]
    loss = run()
    loss.backward(retain_graph=True)
    loss.backward()
    return [*seen, a.grad, b.grad]


def one_argument_twice(where, wrap):
    x = leaf(where, 3)
    run = wrap(lambda x, y: (x * y * y).sum())
    run(x, x).backward()
    y = x * 2
    run(y, y).backward()
    run(x, x.detach()).backward()
    return [x.grad]


def batched(where, wrap):
    w, x, eye = leaf(where, 3), leaf(where, 3), torch.eye(3, device=where)
    y, z = wrap(lambda: ((w * x).tanh(), x * 2))()
    many = {"is_grads_batched": True, "retain_graph": True}
    return [
        *torch.autograd.grad(y, [w, x], eye, **many),
        *torch.autograd.grad([y, z], [w, x], [eye, eye * 3], **many),
        torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(eye),
        torch.vmap(lambda v: torch.autograd.grad([y, z], x, [v, x.detach()], retain_graph=True)[0])(eye),
    ]


def jacobians(where, wrap):
    run, x = wrap(lambda x: (x * x.roll(1)).sin()), leaf(where, 3).detach()
    of = torch.autograd.functional
    return [
        of.jacobian(run, x),
        of.jacobian(run, x, vectorize=True),
        of.hessian(lambda x: run(x).sum(), x),
        of.hessian(lambda x: run(x).sum(), x, vectorize=True),
    ]


def second_derivatives_of_some_results(where, wrap):
    w, x = leaf(where, 3), leaf(where, 3)
    run = wrap(lambda: ((w * x).tanh(), (w + x).exp()))
    for k, t in ((0, x), (1, w), (0, w)):
        (g,) = torch.autograd.grad(run()[k].sum(), t, create_graph=True)
        g.square().sum().backward()
    return [w.grad, x.grad]


def written_views(where, wrap):
    """What the node of such a write has saved is of the call, arguments too."""
    w = leaf(where, 2, 2)

    def fn(x):
        b = w * 2
        b[0].mul_(x)
        return b.sum()

    run = wrap(fn)
    losses = [run(torch.full((2,), k, device=where)) for k in (2.0, 5.0)]
    seen = []
    for loss in losses:
        w.grad = None
        loss.backward()
        seen.append(w.grad)
    return seen


def hooks_before_what_is_retained(where, wrap):
    def fn(x):
        h = x * 2
        h.register_hook(lambda g: g * 3)
        h.retain_grad()
        return h, h.exp()

    x, seen = leaf(where, 2), []
    for part in (0, 1):
        results = wrap(fn)(x)
        seen.append(results[0].retains_grad)
        for _ in range(2):
            results[part].sum().backward(retain_graph=True)
            seen += [results[0].grad.clone(), x.grad.clone()]
    return seen


def _raises(fn):
    try:
        fn()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return None


def what_is_saved_is_written(where, wrap):
    """A result, a detached one, one that is put somewhere."""
    kept = {}

    def fn(x):
        h = x.tanh()
        kept["h"] = h.detach()
        return h, h.detach(), h * h

    run, x, seen = wrap(fn), leaf(where, 2), []
    for write in (
        lambda results: results[0].mul_(2),
        lambda results: results[1].mul_(2),
        lambda results: kept["h"].mul_(2),
        lambda results: x.data.mul_(2),
    ):
        results = run(x)
        with torch.no_grad():
            write(results)
        seen += [_raises(lambda results=results: results[2].sum().backward()), x.grad]
    return seen


def what_is_saved_is_written_unnoticed(where, wrap):
    """By `.data`, for which autograd does not count versions: it goes on with what is there."""
    w, x = leaf(where, 2, 2), leaf(where, 2)
    run, seen = wrap(lambda x, y: ((x * y).exp(), x @ w, x.tanh())), []
    for write in (
        lambda results, y: w.data.mul_(2),
        lambda results, y: x.data.mul_(2),
        lambda results, y: results[0].data.mul_(2),
        lambda results, y: setattr(w, "data", w.data * 3),
        lambda results, y: setattr(x, "data", x.data * 3),
        lambda results, y: y.data.mul_(2),
    ):
        y = torch.full((2,), 0.5).to(where).requires_grad_() * 2
        w.grad = x.grad = None
        results = run(x, y)
        write(results, y)
        sum(r.sum() for r in results).backward()
        seen += [x.grad, w.grad]
    return seen


def what_is_saved_has_another_dtype(where, wrap):
    net, w, x = nn.Linear(2, 2).to(where), leaf(where, 2, 2), leaf(where, 2, 2)
    with torch.no_grad():
        net.weight.fill_(0.5)
    run = wrap(lambda x: (net(x), x @ w))
    first, second = run(x)
    net.double()
    first.sum().backward()
    w.data = w.data.double()
    try:
        second.sum().backward()
    except RuntimeError:
        return [x.grad]
    return []


PROGRAMS = [
    hooks_of_leaves, hooks_inside, hooks_of_arguments, other_strides, gradients_that_are_absent, weight_decay,
    results_with_graphs_of_their_own, requires_grad_set_and_unset,
    tensors_from_outside, views_of_arguments_with_a_history, retained, kept_and_retained, some_inputs,
    one_argument_twice, batched, jacobians, second_derivatives_of_some_results, written_views,
    hooks_before_what_is_retained, what_is_saved_is_written, what_is_saved_is_written_unnoticed,
    what_is_saved_has_another_dtype,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*registers a hook on a tensor from outside")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_it_is_as_in_pytorch(program, device):
    agree(program, device)


def test_a_graph_that_is_freed_is_not_walked_again(device):
    w = leaf(device, 2)
    loss = tg.jit(lambda x: (w * x).exp().sum())(torch.ones(2, device=device))
    loss.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        loss.backward()
