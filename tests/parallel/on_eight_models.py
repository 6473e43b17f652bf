"""Models and training programs on eight simulated devices, against one. Run by `test_on_eight_devices`, in a process of
its own."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tensorgraft as tg
from tensorgraft import parallel

DEVICE = tg.device("jax")
LINE = parallel.mesh(8, "data")
EXPERTS = parallel.mesh((2, 4), ("data", "expert"))


def spec(x):
    return parallel.placement(x).spec


class Stacked(nn.Module):
    """Experts whose weights are one tensor, all computed, weighed by a router's choice."""

    def __init__(self):
        super().__init__()
        self.route = nn.Linear(8, 4)
        self.experts = nn.Module()
        self.experts.up, self.experts.down = (nn.Parameter(torch.randn(4, i, o) / 4) for i, o in ((8, 16), (16, 8)))
        self.experts.bias = nn.Parameter(torch.zeros(4, 16))

    def forward(self, x):
        chosen = self.route(x).topk(2)
        weights = torch.zeros(len(x), 4, device=x.device).scatter(1, chosen.indices, chosen.values.softmax(-1))
        hidden = F.gelu(torch.einsum("ni,eio->neo", x, self.experts.up) + self.experts.bias)
        return torch.einsum("neo,eoi,ne->ni", hidden, self.experts.down, weights)


class Listed(nn.Module):
    """Experts that are modules."""

    def __init__(self):
        super().__init__()
        self.route = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))

    def forward(self, x):
        weights = self.route(x).softmax(-1)
        return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_local_experts=4, max_position_embeddings=16,
    )  # fmt: skip
    return MixtralForCausalLM(config)


def curve(make, batch, loss_of, plan=None, steps=2):
    torch.manual_seed(0)
    model = make().to(DEVICE)
    if plan is None:
        batch = batch.to(DEVICE)
    else:
        parallel.shard_(model, EXPERTS, plan(model))
        batch = parallel.shard_batch(batch, EXPERTS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(batch):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = tg.jit(step, compile="first")
    return [compiled(batch).item() for _ in range(steps)], model, optimizer


@pytest.mark.parametrize("make", [mixtral, Stacked, Listed])
def test_experts(make):
    if make is mixtral:
        batch = torch.randint(0, 32, (4, 8), generator=torch.Generator().manual_seed(1))
        loss_of = lambda model, ids: model(input_ids=ids, labels=ids).loss  # noqa: E731
    else:
        batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
        loss_of = lambda model, x: (model(x) - x).square().mean()  # noqa: E731
    one, _, _ = curve(make, batch, loss_of)
    both, model, optimizer = curve(make, batch, loss_of, parallel.expert_parallel)
    assert np.allclose(both, one, rtol=0, atol=1e-5) and both[-1] < both[0]
    stacks = {n: p for n, p in model.named_parameters() if "experts" in n and (make is not Listed or "weight" in n)}
    assert len(stacks) == {mixtral: 2, Stacked: 3, Listed: 8}[make]
    for name, p in stacks.items():
        held = [p, p.grad, *(v for v in optimizer.state[p].values() if v.shape == p.shape)]
        each = parallel.bytes_by_device(held)
        assert set(each.values()) == {len(held) * p.numel() * p.element_size() // 4}, name
        assert make is Listed or spec(p)[0] == ("expert",)
    with pytest.raises(ValueError, match=r"no weights of experts.*'\*.moe.w\*'"):
        parallel.expert_parallel(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no parameter that fits experts='x'"):
        parallel.expert_parallel(model, experts="x")
