"""Threefry-2x32 on int32, whose sums and bits are those of uint32: no conversion between the rounds."""

from __future__ import annotations

import torch

from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.operations.random import _PARITY, _ROTATIONS


class TorchRandom:
    def threefry2x32(self, key: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
        k0, k1 = key.view(torch.int32).unbind(0)
        keys = (k0, k1, k0 ^ k1 ^ _PARITY)
        x0, x1 = x0.view(torch.int32) + k0, x1.view(torch.int32) + k1
        for group in range(5):
            for r in _ROTATIONS[group % 2]:
                x0 = x0 + x1
                x1 = ((x1 << r) | ((x1 >> (32 - r)) & ((1 << r) - 1))) ^ x0
            x0 = x0 + keys[(group + 1) % 3]
            x1 = x1 + (keys[(group + 2) % 3] + (group + 1))
        return x0.view(torch.uint32), x1.view(torch.uint32)
