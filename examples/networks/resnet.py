"""A residual network (He et al. 2016) as plain PyTorch."""

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + identity)


class ResNet(nn.Module):
    """Images to class logits, by four stages of blocks."""

    def __init__(self, width=16, blocks=(2, 2, 2, 2), classes=10) -> None:
        super().__init__()
        self.inputs = width
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = self.stage(width, blocks[0], 1)
        self.layer2 = self.stage(2 * width, blocks[1], 2)
        self.layer3 = self.stage(4 * width, blocks[2], 2)
        self.layer4 = self.stage(8 * width, blocks[3], 2)
        self.fc = nn.Linear(8 * width, classes)

    def stage(self, outputs: int, blocks: int, stride: int) -> nn.Sequential:
        layers = [BasicBlock(self.inputs, outputs, stride)]
        self.inputs = outputs
        layers += [BasicBlock(outputs, outputs) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x):
        x = self.maxpool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def example_inputs():
    return (torch.randn(2, 3, 64, 64),)
