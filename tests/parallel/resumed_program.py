"""What `test_resumed` runs in each of two processes: a training that saves as it goes, and goes on from what is saved.

Arguments: how the model is spread, a folder, and "dies" where the second process is killed in the middle of its second
save. A run that finds a checkpoint ends what was begun, and compares that with a run that nothing interrupted.
"""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import tensorgraft as tg

STEPS, SAVED = 5, (1, 3)
DATA = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))


class Run:
    def __init__(self, kind, asynchronous=False):
        self.kind, self.saving, self.asynchronous, self.done = kind, None, asynchronous, 0
        self.rank = dist.get_rank()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 8))
        if kind == "mesh":
            self.mesh = tg.parallel.mesh(8, "data")
            tg.parallel.shard_(self.model, self.mesh, tg.parallel.fully_sharded())
        elif kind == "ddp":
            self.model = DistributedDataParallel(self.model.cuda())
        else:
            self.model.cuda()
            for layer in (self.model[0], self.model[3]):
                fully_shard(layer)
            fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.order = torch.Generator().manual_seed(7)
        torch.cuda.manual_seed(self.rank if kind != "mesh" else 0)

    def train(self, folder=None):
        losses = []
        for step in range(self.done, STEPS):
            chosen = torch.randint(64, (16,), generator=self.order)[self.rank :: 2]
            x = DATA[chosen]
            x = tg.parallel.shard_batch(x, self.mesh) if self.kind == "mesh" else x.cuda()
            self.optimizer.zero_grad()
            loss = (self.model(x) - x).square().mean()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
            self.done = step + 1
            if folder and step in SAVED:
                if self.saving:
                    self.saving.result()
                if self.asynchronous:
                    self.saving = dcp.async_save(self.state(), checkpoint_id=folder)
                else:
                    dcp.save(self.state(), checkpoint_id=folder)
        return losses

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        own = {"random": torch.cuda.get_rng_state(), "order": self.order.get_state()}
        return {"model": model, "optimizer": optimizer, f"own {self.rank}": own, "done": self.done}

    def load(self, folder):
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        torch.cuda.set_rng_state(state[f"own {self.rank}"]["random"])
        self.order.set_state(state[f"own {self.rank}"]["order"])
        self.done = state["done"]

    def values(self):
        own = (getattr(p, "_local_tensor", p).detach() for p in self.model.parameters())
        return [p.cpu() for p in own]


def die_in_the_second_save(folder):
    save = torch.save

    def killed(*args, **kwargs):
        save(*args, **kwargs)
        if (folder / ".metadata").exists():
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save = killed


def main(kind, folder, *how):
    dist.init_process_group("nccl")
    if "dies" in how and dist.get_rank() == 1:
        die_in_the_second_save(folder)
    run = Run(kind, asynchronous=kind == "fsdp")
    if not (folder / ".metadata").exists():
        run.train(folder)
        raise AssertionError("nobody was killed")
    run.load(folder)
    assert run.done == SAVED[0] + 1
    losses = run.train()
    whole = Run(kind)
    assert whole.train()[SAVED[0] + 1 :] == losses and len(losses) == 3
    for a, b in zip(whole.values(), run.values(), strict=True):
        assert torch.equal(a, b)
    dist.barrier()
    print("resumed")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
