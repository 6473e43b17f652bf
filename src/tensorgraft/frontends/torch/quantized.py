"""Quantised tensors on the device: the array of their storage is codes and scales."""

from __future__ import annotations

import math

import torch

from tensorgraft.frontends.torch.devices import slot_at
from tensorgraft.frontends.torch.tensors import attach, cell_of, from_array, to_array
from tensorgraft.quantization import policy
from tensorgraft.quantization.backend import quantizing
from tensorgraft.quantization.encode import encode
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import Storage, contiguous_strides


def quantize(t: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    slot = slot_at(t.device.index)
    xp = slot.backend
    with xp.scope():
        made = encode(xp, to_array(t.detach()), scheme)
    size = tuple(t.size())
    strides = contiguous_strides(size)
    return attach(Storage(made, quantizing(xp)), slot, t.dtype, size, strides, math.prod(size) * t.itemsize)


def dequantize(t: torch.Tensor) -> torch.Tensor:
    slot = slot_at(t.device.index)
    with policy.meant():
        array = to_array(t.detach())
        return from_array(slot.backend.own(array) if slot.backend.mutable else array, slot)


def is_quantized(t: torch.Tensor) -> bool:
    """The numbers of a tensor on the device are codes."""
    return t.device.type == "graft" and isinstance(getattr(cell_of(t), "array", None), Quantized)


def install() -> None:
    """`t.is_graft_quantized`, for programs that must not import tensorgraft."""
    torch.Tensor.is_graft_quantized = property(is_quantized)  # type: ignore[attr-defined]
