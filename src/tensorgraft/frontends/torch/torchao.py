"""Tensors that torchao has quantised, as quantised tensors on the device: the same codes, scales and zero points."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch.devices import Slot, slot_of
from tensorgraft.frontends.torch.tensors import attach, cpu_to_numpy, numpy_dtype
from tensorgraft.hub import dtypes
from tensorgraft.quantization.backend import quantizing
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import Storage, contiguous_strides, whole

_FLOATS = {torch.float8_e4m3fn: "float8_e4m3", torch.float8_e5m2: "float8_e5m2"}


def is_torchao(t: Any) -> bool:
    """`t` has codes and scales as torchao's classes keep them: `qdata`, `scale`, `block_size`."""
    return isinstance(t, torch.Tensor) and all(hasattr(t, name) for name in ("qdata", "scale", "block_size"))


def from_torchao(x: Any, device: Any = None) -> Any:
    """See `tg.quantization.from_torchao`."""
    slot = slot_of(None if device is None else torch.device(device) if isinstance(device, str) else device)
    if not isinstance(x, torch.nn.Module):
        return _tensor(x, slot)
    made: dict[int, torch.nn.Parameter] = {}
    for name, p in x.named_parameters():
        if is_torchao(p.data) or is_torchao(p):
            try:
                made[id(p)] = torch.nn.Parameter(_tensor(p, slot), requires_grad=False)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
    for module in x.modules():
        for key, held in module._parameters.items():
            if held is not None and id(held) in made:
                module._parameters[key] = made[id(held)]
    return x.to(slot.device)


def _tensor(t: Any, slot: Slot) -> torch.Tensor:
    t = getattr(t, "data", t) if not is_torchao(t) else t
    if not is_torchao(t):
        raise TypeError(
            f"from_torchao: a {type(t).__module__}.{type(t).__qualname__} does not keep qdata, scale and block_size:"
            " Int8Tensor, IntxUnpackedToInt8Tensor and Float8Tensor do"
        )
    scheme, zero = _scheme(t), getattr(t, "zero_point", None)
    base, grid = tuple(t.qdata.shape), tuple(n // b for n, b in zip(t.shape, t.block_size, strict=True))
    if base != tuple(t.shape) or math.prod(grid) != t.scale.numel():
        raise TypeError(
            f"from_torchao: a {type(t).__qualname__} of shape {tuple(t.shape)} keeps codes of shape {base} and"
            f" {t.scale.numel()} scales for blocks of {tuple(t.block_size)}: it is packed or padded in its own way"
        )
    xp = slot.backend
    logical = t.dtype
    with xp.scope():
        codes = xp.asarray(np.ascontiguousarray(cpu_to_numpy(t.qdata.cpu())))
        scale = xp.asarray(np.ascontiguousarray(cpu_to_numpy(t.scale.float().cpu().reshape(grid))))
        kept = None
        if scheme.has_zero_points:
            kept = xp.asarray(np.ascontiguousarray(cpu_to_numpy(zero.float().cpu().reshape(grid))))  # type: ignore[union-attr]
        q = Quantized(scheme.codes.pack(xp, codes), scale, kept, base, whole(base, numpy_dtype(logical)), scheme)
    assert xp.dtype_of(scale) == dtypes.float32
    cell = Storage(q, quantizing(xp))
    return attach(cell, slot, logical, base, contiguous_strides(base), math.prod(base) * logical.itemsize)


def _scheme(t: Any) -> Scheme:
    encoding = _FLOATS.get(t.qdata.dtype) or str(getattr(t, "target_dtype", t.qdata.dtype)).removeprefix("torch.")
    zero = getattr(t, "zero_point", None)
    symmetric = zero is None or not bool(zero.any())
    block, shape = tuple(t.block_size), tuple(t.shape)
    granularity: dict[str, Any]
    if block == shape:
        granularity = {"granularity": "tensor"}
    elif block[1:] == shape[1:] and block[0] == 1:
        granularity = {"granularity": "channel"}
    elif all(b == 1 for b in block[:-1]):
        granularity = {"granularity": "group", "group": block[-1]}
    else:
        granularity = {"granularity": "block", "block": block}
    activation = getattr(t, "act_quant_kwargs", None)
    rows = granularity["granularity"] in ("tensor", "channel")
    whole_rows = "PerRow" in type(getattr(activation, "granularity", None)).__name__
    if activation is not None and not (encoding == "int8" and symmetric and rows and whole_rows):
        raise TypeError(
            f"from_torchao: {type(t).__qualname__} quantises activations by {activation}, for which there is no scheme"
            " here: int8, symmetric and by row there is (Int8DynamicActivationInt8WeightConfig)"
        )
    return Scheme(encoding, symmetric=symmetric, activation="int8" if activation is not None else None, **granularity)
