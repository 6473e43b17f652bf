"""A residual network of images that ends in a larger image: PyTorch and Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch

from ecosystem.port.pair import channels_first, images
from ecosystem.port.planted.network import Arguments, Network, Values, into_torch

CHANNELS, DEPTH = 8, 2


def _norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.{kind}": (CHANNELS,) for kind in ("scale", "bias", "mean", "variance")}


SHAPES: dict[str, tuple[int, ...]] = {"stem.kernel": (7, 7, 3, CHANNELS), "head.kernel": (1, 1, CHANNELS, 4)}
SHAPES |= {"head.bias": (4,)} | _norm("start")
for _i in range(DEPTH):
    SHAPES |= {f"blocks.{_i}.{part}.kernel": (3, 3, CHANNELS, CHANNELS) for part in ("first", "second")}
    SHAPES |= _norm(f"blocks.{_i}.before") | _norm(f"blocks.{_i}.after")


class Block(torch.nn.Module):
    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.first = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, stride, 1, bias=False)
        self.second = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, 1, 1, bias=False)
        self.before, self.after = torch.nn.BatchNorm2d(CHANNELS), torch.nn.BatchNorm2d(CHANNELS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        short = x if self.stride == 1 else torch.nn.functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False)
        x = torch.relu(self.before(self.first(x)))
        return torch.relu(short + self.after(self.second(x)))


class Source(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.start = torch.nn.Conv2d(3, CHANNELS, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(CHANNELS)
        self.blocks = torch.nn.ModuleList([Block(1), Block(2)])
        self.head = torch.nn.Conv2d(CHANNELS, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.start(self.stem(image)))
        x = torch.nn.functional.max_pool2d(x, 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        x = x - x.mean((2, 3), keepdim=True)
        return torch.nn.functional.interpolate(self.head(x), scale_factor=4, mode="bilinear", align_corners=False)


class Target(keras.Model):
    def __init__(self, change: str) -> None:
        super().__init__(name="target")
        self.change = change
        self.stem = keras.layers.Conv2D(CHANNELS, 7, 2, "valid", use_bias=False, name="stem")
        self.start = keras.layers.BatchNormalization(epsilon=1e-5, name="start")
        self.head = keras.layers.Conv2D(4, 1, name="head")
        for i in range(DEPTH):
            epsilon = 1e-2 if change == "epsilon" and i == 1 else 1e-5
            for part in ("first", "second"):
                stride = 2 if i == 1 and part == "first" else 1
                layer = keras.layers.Conv2D(CHANNELS, 3, stride, "valid", use_bias=False, name=f"blocks.{i}.{part}")
                setattr(self, f"block{i}_{part}", layer)
            for part in ("before", "after"):
                layer = keras.layers.BatchNormalization(epsilon=epsilon, name=f"blocks.{i}.{part}")
                setattr(self, f"block{i}_{part}", layer)

    def block(self, i: int, x: Any) -> Any:
        first, second, before, after = (getattr(self, f"block{i}_{p}") for p in ("first", "second", "before", "after"))
        short = self.shortcut(x) if i == 1 else x
        uneven = self.change == "padding" and i == 1
        x = first(padded(x, 0, 1) if uneven else padded(x, 1, 1))  # planted: padding
        swapped = self.change == "order"
        x = keras.ops.relu(x) if swapped else before(x)  # planted: epsilon, order
        x = before(x) if swapped else keras.ops.relu(x)  # planted: order
        x = after(second(padded(x, 1, 1)))
        return keras.ops.relu(short + x)

    def shortcut(self, x: Any) -> Any:
        ones = keras.ops.ones_like(x)
        total = 9 * keras.ops.average_pool(padded(x, 1, 1), 3, 2)
        if self.change == "padding of the average":
            return total / 9  # planted: padding of the average
        return total / (9 * keras.ops.average_pool(padded(ones, 1, 1), 3, 2))  # planted: padding of the average

    def call(self, image: Any) -> Any:
        x = keras.ops.relu(self.start(self.stem(padded(image, 3, 3))))
        if self.change == "padding of the maximum":
            x = keras.ops.max_pool(x, 3, 2, padding="same")  # planted: padding of the maximum
        else:
            x = keras.ops.max_pool(padded(x, 1, 1), 3, 2)  # planted: padding of the maximum
        for i in range(DEPTH):
            x = self.block(i, x)
        if self.change == "dtype":
            mean = keras.ops.mean(keras.ops.cast(x, "float16"), (1, 2), keepdims=True)  # planted: dtype
            x = x - keras.ops.cast(mean, "float32")
        elif self.change == "equal: sum":
            x = x - keras.ops.sum(x, (1, 2), keepdims=True) / (x.shape[1] * x.shape[2])
        else:
            x = x - keras.ops.mean(x, (1, 2), keepdims=True)
        return self.larger(self.head(x))

    def larger(self, x: Any) -> Any:
        if self.change == "corners":
            along, down = corners(x.shape[2]), corners(x.shape[1])
            return keras.ops.einsum("ih,jw,bhwc->bijc", down, along, x)  # planted: corners
        return keras.ops.image.resize(x, (4 * x.shape[1], 4 * x.shape[2]))  # planted: corners


def padded(x: Any, before: int, after: int) -> Any:
    return keras.ops.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))


def corners(size: int) -> np.ndarray:
    """Return the weights of points that begin and end in the first and the last one."""
    at = np.linspace(0, size - 1, 4 * size)[:, None]
    return np.maximum(0, 1 - np.abs(at - np.arange(size))).astype(np.float32)


def target(values: Values, change: str) -> Target:
    model = Target(change)
    model(images(1, 32))
    order = {"scale": 0, "bias": 1, "mean": 2, "variance": 3, "kernel": 0}
    for layer in model.layers:
        names = [name for name in values if name.rpartition(".")[0] == layer.name]
        names.sort(key=lambda name: order[name.rpartition(".")[2]])
        layer.set_weights([values[name] for name in names])
    return model


def examples(size: int) -> tuple[Arguments, Arguments]:
    image = images(2 + size, (32, 48)[size])
    return (channels_first(image),), (image,)


NETWORK = Network(
    "residual network: PyTorch to Keras",
    Path(__file__),
    SHAPES,
    lambda values: into_torch(Source(), values),
    target,
    examples,
    {"padding of the maximum": "padding", "padding of the average": "padding"}
    | {name: name for name in ("epsilon", "padding", "order", "dtype", "corners")},
    ("equal: sum",),
)
