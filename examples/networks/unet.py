"""A U-Net (Ronneberger et al. 2015, with padding and group norms) as plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class DoubleConv(nn.Module):
    """Two convolutions of 3 x 3, each with a norm and a SiLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm1 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, outputs)

    def forward(self, x):
        x = F.silu(self.norm1(self.conv1(x)))
        return F.silu(self.norm2(self.conv2(x)))


class Down(nn.Module):
    """Half the resolution, then two convolutions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = DoubleConv(inputs, outputs)

    def forward(self, x):
        return self.conv(F.max_pool2d(x, 2))


class Up(nn.Module):
    """Twice the resolution, beside what the way down had there."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(inputs, outputs, 2, stride=2)
        self.conv = DoubleConv(2 * outputs, outputs)

    def forward(self, x, skip):
        return self.conv(torch.cat([skip, self.up(x)], dim=1))


class UNet(nn.Module):
    """Images to a map of logits of the same size."""

    def __init__(self, channels=3, classes=4, width=16) -> None:
        super().__init__()
        self.inc = DoubleConv(channels, width)
        self.down1 = Down(width, 2 * width)
        self.down2 = Down(2 * width, 4 * width)
        self.down3 = Down(4 * width, 8 * width)
        self.up1 = Up(8 * width, 4 * width)
        self.up2 = Up(4 * width, 2 * width)
        self.up3 = Up(2 * width, width)
        self.outc = nn.Conv2d(width, classes, 1)

    def forward(self, image):
        x1 = self.inc(image)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x = self.down3(x3)
        x = self.up1(x, x3)
        x = self.up2(x, x2)
        x = self.up3(x, x1)
        return self.outc(x)


def example_inputs():
    return (torch.randn(2, 3, 32, 32),)
