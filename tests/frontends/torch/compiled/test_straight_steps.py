"""Warm training steps run in straight line, and compute what the function itself computes, whatever is changed between
two of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.hub.straight_line import MISSED

pytestmark = pytest.mark.compiled
pytest.importorskip("jax")
WARM = 12  # calls after which the program is handed to the runtime


@pytest.fixture(scope="module")
def device():
    return tg.device("jax")


class Step:
    """A model, its optimizer, and a step of its training."""

    def __init__(self, device, kind=torch.optim.AdamW, dropout=0.0, zero=True, compiled=False, **options):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 3)).to(device)
        self.optimizer = kind(self.model.parameters(), **{"lr": 0.01, **options})
        self.x, self.y = torch.randn(5, 4).to(device), torch.arange(5).remainder(3).to(device)
        self.zero = zero
        self.run = tg.jit(self.step, compile="first") if compiled else self.step

    def step(self, x, y):
        if self.zero:
            self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def steps(self, n):
        return [self.run(self.x, self.y).item() for _ in range(n)]

    def is_straight(self):
        return self.run.straight((self.x, self.y), {}) is not MISSED

    def state(self):
        entries = [v for e in self.optimizer.state.values() for v in e.values() if isinstance(v, torch.Tensor)]
        grads = [p.grad for p in self.model.parameters()]
        return [t.detach().cpu().double() for t in (*self.model.parameters(), *entries, *grads) if t is not None]


def agree(ours, own):
    assert len(ours.state()) == len(own.state())
    for a, b in zip(ours.state(), own.state(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


KINDS = {
    "SGD": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "weight_decay": 0.01}),
    "Adam": (torch.optim.Adam, {"amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {}),
    "RMSprop": (torch.optim.RMSprop, {}),
    "added gradients": (torch.optim.SGD, {"zero": False}),
}


def groups(step):
    return step.optimizer.param_groups


def scheduled(step):
    scheduler = torch.optim.lr_scheduler.StepLR(step.optimizer, 1, 0.5)
    scheduler.step()


def reloaded(step):
    step.optimizer.load_state_dict(step.optimizer.state_dict())


def doubled(step):
    for p in step.model.parameters():
        p.data = p.detach() * 2


def with_group(step):
    step.extra = nn.Parameter(torch.ones(2, device=step.x.device))
    step.optimizer.add_param_group({"params": [step.extra]})


def hook(module, grad_input, grad_output):
    return tuple(g if g is None else g * 2 for g in grad_input)


def double_gradient(parameter):
    parameter.grad.mul_(2)


CHANGES = {
    "learning rate": lambda s: groups(s)[0].update(lr=0.3),
    "learning rate, a tensor": lambda s: groups(s)[0].update(lr=torch.tensor(0.3)),
    "schedule": scheduled,
    "weight decay": lambda s: groups(s)[0].update(weight_decay=0.5),
    "betas": lambda s: groups(s)[0].update(betas=(0.5, 0.6)),
    "equal betas": lambda s: groups(s)[0].update(betas=(*groups(s)[0]["betas"],)),
    "fewer parameters": lambda s: groups(s)[0]["params"].pop(),
    "another list": lambda s: groups(s)[0].update(params=[*groups(s)[0]["params"]]),
    "another group": with_group,
    "state loaded": reloaded,
    "state cleared": lambda s: s.optimizer.state.clear(),
    "moment written": lambda s: s.optimizer.state[s.model[0].weight]["exp_avg"].zero_(),
    "moment replaced": lambda s: s.optimizer.state[s.model[0].weight].update(
        exp_avg=torch.zeros_like(s.model[0].weight)
    ),
    "parameters' data": doubled,
    "parameter written": lambda s: s.model[0].weight.data.mul_(2),
    "frozen": lambda s: s.model[0].weight.requires_grad_(False),
    "gradient": lambda s: setattr(s.model[0].weight, "grad", torch.ones_like(s.model[0].weight)),
    "no gradient": lambda s: setattr(s.model[0].weight, "grad", None),
    "hook of a tensor": lambda s: s.model[0].weight.register_hook(lambda g: g * 2),
    "hook after": lambda s: s.model[0].bias.register_post_accumulate_grad_hook(double_gradient),
    "hook of a module": lambda s: s.model[1].register_full_backward_hook(hook),
    "hook before steps": lambda s: s.optimizer.register_step_pre_hook(lambda o, *_: o.param_groups[0].update(lr=0.2)),
    "step replaced": lambda s: setattr(s.optimizer, "step", lambda: None),
    "evaluation": lambda s: s.model.eval(),
    "batch": lambda s: setattr(s, "x", s.x * 2),
    "larger batch": lambda s: vars(s).update(x=torch.cat([s.x, s.x]), y=torch.cat([s.y, s.y])),
    "layer": lambda s: s.model.__setitem__(1, nn.ReLU()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_optimizers(device, kind):
    kind, options = KINDS[kind]
    ours, own = Step(device, kind, compiled=True, **options), Step(device, kind, **options)
    assert ours.steps(WARM) == pytest.approx(own.steps(WARM), rel=1e-4)
    assert ours.is_straight()
    own.steps(1)
    agree(ours, own)
    assert ours.steps(3) == pytest.approx(own.steps(3), rel=1e-4)
    agree(ours, own)


@pytest.mark.filterwarnings("ignore:Detected call of", "ignore::tensorgraft.transforms.UncompiledWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_changes_between_steps(device, change):
    ours, own = Step(device, compiled=True), Step(device)
    ours.steps(WARM)
    assert ours.is_straight()
    own.steps(WARM + 1)
    for step in (ours, own):
        CHANGES[change](step)
    for n in (1, 1, WARM, 2):
        assert ours.steps(n) == pytest.approx(own.steps(n), rel=1e-3)
        agree(ours, own)


def test_random_numbers_go_on(device):
    ours, own = Step(device, dropout=0.5, compiled=True), Step(device, dropout=0.5)
    losses = []
    for step in (own, ours):
        torch.manual_seed(3)
        losses.append(step.steps(WARM))
        assert step is own or step.run.straight.__name__ == "call"
        losses[-1] += step.steps(3)
        torch.manual_seed(4)
        losses[-1] += step.steps(3)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_what_others_hold_keeps_its_values(device):
    step = Step(device, compiled=True)
    step.steps(WARM)
    assert step.is_straight()
    weight = step.model[0].weight
    array = cell_of(weight).array
    shared = torch.from_dlpack(weight.detach().cpu())
    gradient, moment = weight.grad, step.optimizer.state[weight]["exp_avg"].clone()
    before = [t.tolist() for t in (gradient, moment, shared)], array.tolist()
    step.steps(3)
    assert ([t.tolist() for t in (gradient, moment, shared)], array.tolist()) == before
    assert weight.grad is not gradient and not weight.detach().cpu().equal(shared)


def test_memory_is_written_in_place(device):
    step = Step(device, kind=torch.optim.SGD, compiled=True)
    step.steps(WARM)
    assert step.is_straight()
    version = step.model[0].weight._version
    places = {cell_of(step.model[0].weight).array.unsafe_buffer_pointer() for _ in range(4) if step.steps(1)}
    assert len(places) == 1 and step.model[0].weight._version == version + 4


def test_a_result_that_cannot_be_made(device, monkeypatch):
    """Its error is raised, and the writes of the step are done: the program has used up the arrays from before."""
    ours, own = Step(device, compiled=True), Step(device)
    ours.steps(WARM)
    assert ours.is_straight()
    own.steps(WARM + 1)
    names = ours.run.straight.__globals__
    imported = next(name for name, value in names.items() if value is torch._C._from_dlpack)
    monkeypatch.setitem(names, imported, lambda capsule: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ours.run(ours.x, ours.y)
    monkeypatch.undo()
    own.steps(1)
    agree(ours, own)
    assert ours.steps(2) == pytest.approx(own.steps(2), rel=1e-4)


def test_arguments_that_are_written(device):
    def fn(x, y):
        x.mul_(0.5).add_(y)
        return x.sum()

    run = tg.jit(fn, compile="first")
    (x, y), (own_x, own_y) = ((torch.arange(4.0, device=device), torch.ones(4, device=device)) for _ in range(2))
    for _ in range(WARM):
        assert run(x, y).item() == fn(own_x, own_y).item()
    assert run.straight((x, y), {}) is not MISSED
    fn(own_x, own_y)
    array, version = cell_of(x).array, x._version
    copied = array.tolist()
    pairs = [(x, y, own_x, own_y), (y, x, own_y, own_x), (x, x, own_x, own_x), (x[1:], y[1:], own_x[1:], own_y[1:])]
    for a, b, own_a, own_b in (*pairs, pairs[0]):
        assert run(a, b).item() == fn(own_a, own_b).item()
        assert x.equal(own_x) and y.equal(own_y)
    assert array.tolist() == copied and x._version > version
