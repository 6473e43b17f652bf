"""A small diffusion model: a UNet with time embeddings and attention learns to remove noise, then makes images."""

import argparse
import math

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


def time_embedding(t, width):
    frequencies = torch.exp(-math.log(10000) * torch.arange(width // 2, device=t.device) / (width // 2))
    angles = t[:, None].float() * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class ResidualBlock(nn.Module):
    def __init__(self, channels, out, time):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, out)
        self.conv1 = nn.Conv2d(channels, out, 3, padding=1)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        h = h + self.time(F.silu(t))[:, :, None, None]
        h = self.conv2(F.silu(self.norm2(h)))
        return h + self.skip(x)


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, 3, c, h * w).transpose(2, 3).unbind(1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, c, h, w))


class UNet(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.channels, time = channels, 4 * channels
        self.time = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.down1 = ResidualBlock(channels, channels, time)
        self.pool1 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.down2 = ResidualBlock(channels, 2 * channels, time)
        self.attention = Attention(2 * channels)
        self.middle = ResidualBlock(2 * channels, 2 * channels, time)
        self.up2 = ResidualBlock(4 * channels, channels, time)
        self.up1 = ResidualBlock(2 * channels, channels, time)
        self.norm = nn.GroupNorm(8, channels)
        self.last = nn.Conv2d(channels, 1, 3, padding=1)

    def forward(self, x, t):
        t = self.time(time_embedding(t, self.channels))
        d1 = self.down1(self.first(x), t)
        d2 = self.attention(self.down2(self.pool1(d1), t))
        h = self.middle(d2, t)
        h = self.up2(torch.cat([h, d2], dim=1), t)
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        h = self.up1(torch.cat([h, d1], dim=1), t)
        return self.last(F.silu(self.norm(h)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--timesteps", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    images = torch.tensor(load_digits().images[:, None] / 8 - 1, dtype=torch.float32)
    images = F.interpolate(images, size=16, mode="bilinear", align_corners=False)
    betas = torch.linspace(1e-4, 0.3, args.timesteps, device=device)
    alphas = 1 - betas
    products = torch.cumprod(alphas, dim=0)
    model = UNet(args.channels).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    average = {name: value.clone() for name, value in model.state_dict().items()}

    model.train()
    for step in range(args.steps):
        x = images[torch.randint(len(images), (args.batch_size,))].to(device)
        t = torch.randint(args.timesteps, (args.batch_size,)).to(device)
        noise = torch.randn(x.shape).to(device)
        a = products[t][:, None, None, None]
        loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 0.1)
        print(f"step {step}: loss {loss.item():.6f}")

    model.load_state_dict(average)
    model.eval()
    with torch.no_grad():
        x = torch.randn(4, 1, 16, 16).to(device)
        for i in reversed(range(args.timesteps)):
            t = torch.full((4,), i, device=device, dtype=torch.long)
            predicted = model(x, t)
            x = (x - betas[i] / (1 - products[i]).sqrt() * predicted) / alphas[i].sqrt()
            if i > 0:
                x = x + betas[i].sqrt() * torch.randn(x.shape).to(device)
            x = x.clamp(-3, 3)
    print(f"made {tuple(x.shape)}: mean {x.mean().item():.4f} std {x.std().item():.4f} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
