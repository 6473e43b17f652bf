"""Quantised tensors on the device: the array of their storage is codes and scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.devices import Slot, slot_at
from tensorgraft.frontends.torch.tensors import cell_of, cpu_to_numpy, from_array, to_array
from tensorgraft.quantization import policy
from tensorgraft.quantization.encode import encode
from tensorgraft.quantization.models import nothing_fits
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme


def quantize(t: torch.Tensor, scheme: Scheme, observer: str = "minmax") -> torch.Tensor:
    slot, array = read(t)
    with slot.backend.scope():
        made = encode(slot.backend, array, scheme, observer=observer)
    return from_array(made, slot)


def dequantize(t: torch.Tensor) -> torch.Tensor:
    slot, array = read(t)
    return from_array(slot.backend.own(array) if slot.backend.mutable else array, slot)


def host(t: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor."""
    return cpu_to_numpy(t.detach().cpu())


def placed(q: Quantized, like: torch.Tensor) -> torch.Tensor:
    """Codes and scales of the host where another tensor is."""
    slot = slot_at(like.device.index)
    with slot.backend.scope():
        return from_array(q.with_parts(tuple(map(slot.backend.asarray, q.parts))), slot)


def read(t: torch.Tensor) -> tuple[Slot, Any]:
    """The dense numbers of a tensor, of which a trace under way is told."""
    state.touch(cell_of(t))
    with policy.meant():
        return slot_at(t.device.index), to_array(t.detach())


def fake_quantize(t: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    from tensorgraft.frontends.torch import quantized_training

    return quantized_training.fake_quantize(t, scheme)


def is_quantized(t: torch.Tensor) -> bool:
    """The numbers of a tensor on the device are codes."""
    return t.device.type == "graft" and isinstance(getattr(cell_of(t), "array", None), Quantized)


def install() -> None:
    """`t.is_graft_quantized`, for programs that must not import tensorgraft; `t.nbytes` of what is really kept."""
    torch.Tensor.is_graft_quantized = property(is_quantized)  # type: ignore[attr-defined]
    logical = torch.Tensor.nbytes

    def nbytes(t: torch.Tensor) -> int:
        return kept(t) if is_quantized(t) else logical.__get__(t)  # type: ignore[attr-defined]

    torch.Tensor.nbytes = property(nbytes)  # type: ignore[assignment]


def kept(t: torch.Tensor) -> int:
    """The bytes of the codes, scales and zero points behind a quantised tensor, or behind what it is a view of."""
    cell = cell_of(t)
    xp = cell.backend
    return sum(math.prod(xp.shape(a)) * xp.dtype_of(a).itemsize for a in cell.array.parts)


def quantize_module(
    model: torch.nn.Module,
    choose: Callable[[str], Scheme | None],
    wanted: Callable[[str, torch.nn.Module], bool] | None,
    observer: str = "minmax",
) -> torch.nn.Module:
    """See `tg.quantize_`. Tied weights stay tied."""
    wanted = wanted or (lambda _, module: isinstance(module, torch.nn.Linear))
    made: dict[int, torch.nn.Parameter] = {}
    places: list[tuple[torch.nn.Module, torch.nn.Parameter]] = []
    names = []
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or weight.dim() < 2:
            continue
        names.append(name)
        scheme = choose(name) if wanted(name, module) else None
        if scheme is None:
            continue
        if weight.device.type != "graft":
            raise ValueError(
                f"quantize_: {name or 'the model'} is on {weight.device}: move the model to a device of ours first, for"
                " example model.to(tg.device('torch')), on which PyTorch computes"
            )
        if id(weight) not in made:
            try:
                made[id(weight)] = torch.nn.Parameter(quantize(weight, scheme, observer), requires_grad=False)
            except ValueError as error:
                raise ValueError(f"quantize_: {name}.weight: {error}") from None
        places.append((module, made[id(weight)]))
    if not places:
        raise nothing_fits(names)
    held = {id(w): p for w, p in zip(made, made.values(), strict=True)}
    for module, parameter in places:
        module._parameters["weight"] = parameter
    for module in model.modules():  # those that share a weight with what was quantised, under whatever name
        for key, p in module._parameters.items():
            if p is not None and id(p) in held:
                module._parameters[key] = held[id(p)]
    return model
