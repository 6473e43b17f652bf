"""A DCGAN: two convolutional networks that play against each other, on images of random blobs."""

import argparse

import torch
from torch import nn


class Generator(nn.Sequential):
    def __init__(self, latent, features):
        super().__init__(
            nn.ConvTranspose2d(latent, features * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(features * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(features * 4, features * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(features * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(features * 2, features, 4, 2, 1, bias=False),
            nn.BatchNorm2d(features),
            nn.ReLU(True),
            nn.ConvTranspose2d(features, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )


class Discriminator(nn.Sequential):
    def __init__(self, features):
        super().__init__(
            nn.Conv2d(1, features, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(features, features * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(features * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(features * 2, features * 4, 4, 2, 1, bias=False),
            nn.BatchNorm2d(features * 4),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(features * 4, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )


def weights_init(module):
    name = module.__class__.__name__
    if "Conv" in name:
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif "BatchNorm" in name:
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def blobs(n):
    """(n, 1, 32, 32) in [-1, 1]"""
    x = torch.linspace(-1, 1, 32)
    centre = torch.rand(n, 2, 1, 1) - 0.5
    return 2 * torch.exp(-8 * ((x[:, None] - centre[:, :1]) ** 2 + (x - centre[:, 1:]) ** 2)) - 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--latent", type=int, default=64)
    parser.add_argument("--features", type=int, default=24)
    args = parser.parse_args()
    torch.manual_seed(999)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    generator = Generator(args.latent, args.features)
    discriminator = Discriminator(args.features)
    generator.apply(weights_init)
    discriminator.apply(weights_init)
    generator.to(device)
    discriminator.to(device)
    criterion = nn.BCELoss()
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    real_label, fake_label = 1.0, 0.0

    for step in range(args.steps):
        # the discriminator: real images, then generated ones
        discriminator.zero_grad()
        real = blobs(args.batch_size).to(device)
        label = torch.full((args.batch_size,), real_label, dtype=torch.float, device=device)
        loss_real = criterion(discriminator(real).view(-1), label)
        loss_real.backward()
        noise = torch.randn(args.batch_size, args.latent, 1, 1).to(device)
        fake = generator(noise)
        label.fill_(fake_label)
        loss_fake = criterion(discriminator(fake.detach()).view(-1), label)
        loss_fake.backward()
        optimizer_d.step()
        # the generator
        generator.zero_grad()
        label.fill_(real_label)
        output = discriminator(fake).view(-1)
        loss_g = criterion(output, label)
        loss_g.backward()
        optimizer_g.step()
        loss_d = loss_real + loss_fake
        print(f"step {step}: D(G(z)) {output.mean().item():.4f} g {loss_g.item():.4f} loss {loss_d.item():.6f}")


if __name__ == "__main__":
    main()
