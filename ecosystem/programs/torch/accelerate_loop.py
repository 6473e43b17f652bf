"""Accelerate: gradient accumulation, clipping, a schedule, and a state that is saved and loaded."""

import json
import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

set_seed(0)
accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
x = torch.randn(64, 16)
data = torch.utils.data.TensorDataset(x, x[:, :4].argmax(1))
loader = torch.utils.data.DataLoader(data, batch_size=8)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)


def epoch():
    losses = []
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    return losses


losses = epoch()
with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    ahead = epoch()
    accelerator.load_state(folder)
    again = epoch()
print(json.dumps({"losses": losses, "ahead": ahead, "again": again}))
