"""Diffusers: train a small UNet to predict noise, save it, load it, and sample with DDIM."""

import json
import tempfile

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DModel

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    layers_per_block=1,
    block_out_channels=(16, 32),
    norm_num_groups=8,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8,
).to(device)
schedule = DDPMScheduler(num_train_timesteps=50)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
draw = torch.Generator().manual_seed(0)
losses = []
for _ in range(4):
    clean, noise = (torch.randn(4, 1, 8, 8, generator=draw).to(device) for _ in range(2))
    steps = torch.randint(0, 50, (4,), generator=draw).to(device)
    loss = torch.nn.functional.mse_loss(model(schedule.add_noise(clean, noise, steps), steps).sample, noise)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())

with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    model = UNet2DModel.from_pretrained(folder).to(device)
sampler = DDIMScheduler(num_train_timesteps=50)
sampler.set_timesteps(4)
image = torch.randn(1, 1, 8, 8, generator=draw).to(device)
with torch.no_grad():
    for t in sampler.timesteps:
        image = sampler.step(model(image, t).sample, t, image).prev_sample
print(json.dumps({"losses": losses, "image": image.flatten().tolist()}))
