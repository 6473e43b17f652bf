"""Quantised tensors on the device and on the CPU: the array of their storage is codes and scales."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_at, slot_of
from tensorgraft.frontends.torch.core.modes import below_transforms
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, attach, cell_of, cpu_to_numpy, from_array, to_array
from tensorgraft.frontends.torch.dispatch import transfer
from tensorgraft.frontends.torch.quantized import cpu as quantized_cpu
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization import policy
from tensorgraft.quantization.backend import QuantizingBackend, quantizing
from tensorgraft.quantization.encode import encode
from tensorgraft.quantization.quantized import Quantized, dense, with_own_codes
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import Storage, contiguous_strides, is_dense

Place = Slot | quantized_cpu.Host  # the place of arrays


def quantize(
    t: torch.Tensor, scheme: Scheme, observer: str = "minmax", inputs: Sequence[np.ndarray] = ()
) -> torch.Tensor:
    slot, array = read(t, "quantize")
    with slot.backend.scope():
        encoded = encode(slot.backend, array, scheme, observer=observer, inputs=inputs)
    return tensor_at(slot, encoded)


def dequantize(t: torch.Tensor) -> torch.Tensor:
    if _inside_of(t) is not t:  # a tensor of a transform in progress, which has to see the operation
        with policy.allowed():
            return t * 1
    slot, array = read(t)
    return tensor_at(slot, slot.backend.ensure_owned(array) if slot.backend.mutable else array)


def host(t: torch.Tensor) -> np.ndarray:
    """Return the numbers of a tensor."""
    return cpu_to_numpy((dequantize(t) if is_quantized(t) else t).detach().cpu())


def placed_like(q: Quantized, like: torch.Tensor) -> torch.Tensor:
    """Codes and scales of the host where another tensor is."""
    slot = place_of(like.device)
    with slot.backend.scope():
        return tensor_at(slot, q.with_parts(tuple(map(slot.backend.asarray, q.parts))))


def place_of(device: torch.device) -> Place:
    return quantized_cpu.HOST if device.type == "cpu" else slot_of(device)


def tensor_at(slot: Place, array: Any) -> torch.Tensor:
    """Return a contiguous tensor of a new array."""
    return quantized_cpu.from_array(array) if isinstance(slot, quantized_cpu.Host) else from_array(array, slot)


def read(t: torch.Tensor, name: str = "dequantize") -> tuple[Place, Any]:
    """Return the dense numbers of a tensor, of which a trace under way is told."""
    if t.device.type == "cpu":
        with below_transforms():
            return quantized_cpu.HOST, quantized_cpu.dense_of(t, name)
    state.touch(cell_of(t))
    with policy.allowed(), below_transforms():
        return slot_at(t.device.index), to_array(t.detach())


def moved_to(t: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a quantised tensor, its codes and scales, on another device, with its strides where these are dense."""
    size, stride = tuple(t.size()), t.stride()
    if not is_dense(size, stride):
        stride = contiguous_strides(size)
    order = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    if t.device.type == TYPE:
        state.touch(cell_of(t))
        source: Any = cell_of(t).backend
        q = to_array(t.detach(), codes=True)
    else:
        source, q = quantized_cpu.backend(), quantized_cpu.array_of(t)
    with source.scope():
        q = with_own_codes(source.inner, source.permute_dims(q, order))
        parts = [source.inner.to_numpy(a) for a in q.parts]
    slot = place_of(device)
    with slot.backend.scope():
        q = q.with_parts([slot.backend.asarray(a) for a in parts])
    return attached(slot, q, FROM_NUMPY[q.dtype], size, stride)


def attached(
    slot: Place, q: Quantized, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0
) -> torch.Tensor:
    """Return a tensor on a new quantised array, as a view of a base with codes of its own."""
    if isinstance(slot, quantized_cpu.Host):
        return quantized_cpu.new_tensor(q, dtype, size, stride, offset)
    cell = state.created(Storage(q, quantizing(slot.backend)))
    return attach(cell, slot, dtype, size, stride, math.prod(q.base) * dtype.itemsize, offset)


class StraightThrough(torch.autograd.Function):
    """A rounding, which has the derivative 1."""

    @staticmethod
    def forward(x: torch.Tensor, rounding: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return rounding(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return g, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, _: None) -> torch.Tensor:
        return tangent.clone()  # an output's tangent is no view of an input's

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, rounding: Any) -> Any:
        return torch.stack([StraightThrough.apply(row, rounding) for row in x.unbind(in_dims[0])]), 0


def straight_through(t: torch.Tensor, rounding: Callable[[Backend, Any], Any]) -> torch.Tensor:
    """Round a tensor by a function of hub arrays, with the gradient of the identity."""

    def run(t: torch.Tensor) -> torch.Tensor:
        slot, array = read(t, "fake_quantize")
        with slot.backend.scope():
            return tensor_at(slot, rounding(slot.backend, array))

    return StraightThrough.apply(t, run)


def fake_quantize(t: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """See `tg.quantization.fake_quantize`."""
    return straight_through(t, lambda xp, x: dense(xp, encode(xp, x, scheme, "fake_quantize")))


def is_quantized(t: torch.Tensor) -> bool:
    """Return True if a tensor is quantised."""
    t = _inside_of(t)
    if t.device.type != TYPE:
        return isinstance(t, quantized_cpu.QuantizedTensor)
    if t.layout is not torch.strided:
        return False
    cell = getattr(t.untyped_storage(), "cell", None)  # none in a subclass around others
    return cell is not None and cell.backend.compound


def array_of(t: torch.Tensor) -> Quantized:
    """Return the codes and scales of a quantised tensor, or of the base of a view."""
    t = _inside_of(t)
    return cell_of(t).array if t.device.type == TYPE else quantized_cpu.array_of(t)


def _inside_of(t: torch.Tensor) -> torch.Tensor:
    """Return the tensor with a storage that transforms of `torch.func` have wrapped."""
    return torch.func.debug_unwrap(t)


def install() -> None:
    transfer.movers[QuantizingBackend] = moved_to


# ---- what a tensor has of it (`torch_entry.patches`) -----------------------------------------------------------------


def quantized_property(original: object) -> property:
    return property(is_quantized)


def nbytes_property(original: Any) -> property:
    return property(lambda t: bytes_kept(t) if is_quantized(t) else original.__get__(t))


def of_numbers(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(dequantize(t) if is_quantized(t) else t, *args, **kwargs)

    return functools.wraps(original)(method)


def bytes_kept(t: torch.Tensor) -> int:
    """Return the bytes of the codes, scales and zero points of a quantised tensor, or of the base of a view."""
    cell = cell_of(t)
    xp = cell.backend
    return sum(math.prod(xp.shape(a)) * xp.dtype_of(a).itemsize for a in cell.array.parts)
