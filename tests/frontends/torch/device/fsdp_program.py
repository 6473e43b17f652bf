"""What `test_distributed` runs in each of two processes: FSDP, the first and the second, beside the whole batch on the
CPU."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import (
    CPUOffload,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def step(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.full((4, 8), dist.get_rank() + 1.0, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def expected(steps):
    """The losses of this process."""
    model, losses = net(), []
    optimizer = adam(model)
    for _ in range(steps):
        optimizer.zero_grad()
        each = [model(torch.full((4, 8), r + 1.0)).square().mean() for r in range(2)]
        (sum(each) / 2).backward()
        optimizer.step()
        losses.append(each[dist.get_rank()].item())
    return torch.tensor(losses)


def assert_follows(model, optimizer=None, first=0):
    optimizer = optimizer or adam(model)
    losses = torch.tensor([step(model, optimizer) for _ in range(3 - first)])
    torch.testing.assert_close(losses, expected(3)[first:], rtol=1e-5, atol=0)


def first_fsdp(whole):
    wrapped = {"auto_wrap_policy": ModuleWrapPolicy({nn.Linear}), "use_orig_params": whole}
    assert_follows(FSDP(net(), device_id=torch.device("cuda", dist.get_rank()), **wrapped))
    if not whole:
        assert_follows(FSDP(net().cuda(), cpu_offload=CPUOffload(offload_params=True), **wrapped))
    model = FSDP(net().cuda(), **wrapped)
    optimizer = adam(model)
    step(model, optimizer)
    other = FSDP(net().cuda(), **wrapped)
    other_optimizer = adam(other)
    step(other, other_optimizer)
    for offload in (False, True):
        settings = (
            StateDictType.FULL_STATE_DICT,
            FullStateDictConfig(offload_to_cpu=offload),
            FullOptimStateDictConfig(offload_to_cpu=offload),
        )
        with FSDP.state_dict_type(model, *settings):
            state, moments = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
        with FSDP.state_dict_type(other, *settings):
            other.load_state_dict(state)
            other_optimizer.load_state_dict(FSDP.optim_state_dict_to_load(other, other_optimizer, moments))
        if offload:
            assert_follows(model, optimizer, first=1)
        else:
            step(other, other_optimizer)
    assert_follows(other, other_optimizer, first=1)


def second_fsdp(folder):
    def make(device):
        with torch.device("meta" if device == "meta" else "cpu"):
            model = net().to(device)
        for layer in (model[0], model[2]):
            fully_shard(layer)
        return fully_shard(model)

    model = make("cuda")
    optimizer = adam(model)
    step(model, optimizer)
    parts = get_state_dict(model, optimizer)
    saving = dcp.async_save({"model": parts[0], "optimizer": parts[1]}, checkpoint_id=folder / "saved")
    whole = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    other = make("meta")
    other.to_empty(device="cuda")
    set_model_state_dict(other, full, options=whole)
    torch.testing.assert_close(step(other, adam(other)), expected(2)[1].item(), rtol=1e-5, atol=0)
    step(model, optimizer)
    saving.result()
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=folder / "saved")  # as it was at the call
    torch.testing.assert_close(step(model, adam(model)), expected(2)[1].item(), rtol=1e-5, atol=0)


if __name__ == "__main__":
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    first_fsdp(True)
    first_fsdp(False)
    second_fsdp(Path(sys.argv[1]))
    dist.barrier()
    print("all follow")
    dist.destroy_process_group()
