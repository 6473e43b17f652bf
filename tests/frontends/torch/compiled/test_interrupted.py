"""An exception while a function is traced leaves everything as it was, wherever it is raised."""

import functools
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import tensorgraft as tg


class Stop(Exception):
    pass


class Until(TorchDispatchMode):
    """Raises at operator number `most`."""

    def __init__(self, most):
        super().__init__()
        self.most, self.seen = most, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        self.seen += 1
        if self.seen > self.most:
            raise Stop(str(op))
        return op(*args, **(kwargs or {}))


def plain(x):
    """Tensors as numbers, in containers of any kind."""
    if isinstance(x, torch.Tensor):
        return x.dtype, x.tolist(), x.requires_grad, x.grad is None or x.grad.tolist()
    if isinstance(x, dict):
        return {k: plain(v) for k, v in x.items()}
    return [plain(v) for v in x] if isinstance(x, list | tuple) else x


class Training:
    def __init__(self):
        torch.manual_seed(0)
        self.device = tg.device("jax")
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.total = torch.zeros(2, device=self.device)
        self.x = torch.randn(5, 3).to(self.device).requires_grad_()
        self.most = None

    def step(self, x):
        with Until(self.most) if self.most is not None else torch.enable_grad():
            self.total += 1
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x), x[:, :1].detach())
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.total[1:].mul_(2)
        return loss.detach()

    def state(self):
        held = [self.total, self.x, dict(self.model.state_dict(keep_vars=True)), self.optimizer.state_dict()]
        return plain([*held, self.schedule.state_dict(), torch.graft.get_rng_state(self.device).tolist()])


# the first call, and one after which there are gradients and the optimizer's state
@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.slow_with("0")
def test_wherever_it_is_raised(before):
    training = Training()
    compiled = functools.partial(tg.jit, compile="first")  # bits are compared
    run = compiled(training.step)
    for _ in range(before):
        run(training.x)
    for most in itertools.count(0, 5):
        state, training.most = training.state(), most
        try:
            compiled(training.step)(training.x)
        except Stop:
            assert training.state() == state, most
        else:
            break
    assert most > 30
    undisturbed = Training()
    for _ in range(before + 1):
        compiled(undisturbed.step)(undisturbed.x)
    assert training.state() == undisturbed.state()


def test_attributes_of_modules():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("largest", torch.zeros(()))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.largest = x.max()
            self.last = x
            return x if x.sum() > 0 else -x

    module = Counting().to(tg.device("jax"))
    x = torch.ones(2, device=tg.device("jax"))
    before = module.largest
    with pytest.raises(tg.TracedValueError):
        tg.jit(module)(x)
    assert module.largest is before and module.calls == 0 and not hasattr(module, "last")
    assert tg.jit(module, guard_values=True)(x * 3).tolist() == [3, 3]
    assert module.largest.item() == 3 and module.calls == 1
