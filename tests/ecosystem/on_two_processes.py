"""Trainings by other people's loops, each in one or several processes: `test_two_processes` compares their losses.

Arguments: which one, a folder, and "cpu" for PyTorch on the CPU. The first process writes losses.json there.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

generator = torch.Generator().manual_seed(1)
ROWS = TensorDataset(torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator))
PROCESSES = int(os.environ.get("WORLD_SIZE", 1))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def batches():
    return DataLoader(ROWS, batch_size=4)


def accelerate(folder, cpu):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=cpu)
    net = model()
    net, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-2), batches())
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    return losses


def lightning(folder, cpu, strategy="ddp"):
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.losses = model(), []

        def training_step(self, batch, _):
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.losses.append(self.all_gather(loss.detach()).mean().item())
            return loss

        def validation_step(self, batch, _):
            self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    task = Task()
    trainer = lightning.Trainer(
        default_root_dir=folder, accelerator="cpu" if cpu else "gpu", devices=PROCESSES, strategy=strategy,
        max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(task, batches(), batches())
    return task.losses


def lightning_fsdp(folder, cpu):
    return lightning(folder, cpu, "ddp" if cpu else "fsdp")


def trainer(folder, cpu):
    from transformers import Trainer, TrainingArguments

    class Task(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model()

        def forward(self, x, labels):
            logits = self.net(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    settings = TrainingArguments(
        str(folder), per_device_train_batch_size=4, max_steps=4, learning_rate=1e-2, logging_steps=1, save_steps=2,
        report_to=[], disable_tqdm=True, seed=0, use_cpu=cpu,
    )  # fmt: skip
    run = Trainer(Task(), settings, train_dataset=[{"x": x, "labels": y} for x, y in ROWS])
    run.train()
    return [row["loss"] for row in run.state.log_history if "loss" in row]


def main(name, folder, *where):
    losses = globals()[name](folder, "cpu" in where)
    if int(os.environ.get("RANK", 0)) == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
