"""Quantised tensors on the device and on the CPU: the array of their storage is codes and scales."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.nn.modules.conv import _ConvNd

from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE, Slot, slot_at, slot_of
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, attach, cell_of, cpu_to_numpy, from_array, to_array
from tensorgraft.frontends.torch.quantized import cpu as quantized_cpu
from tensorgraft.quantization import policy
from tensorgraft.quantization.backend import quantizing
from tensorgraft.quantization.calibration import Method, Weight
from tensorgraft.quantization.encode import encode
from tensorgraft.quantization.models import nothing_fits
from tensorgraft.quantization.quantized import Quantized, anew
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import Storage, contiguous_strides, is_dense

Place = Slot | quantized_cpu.Host  # where arrays are


def quantize(
    t: torch.Tensor, scheme: Scheme, observer: str = "minmax", inputs: Sequence[np.ndarray] = ()
) -> torch.Tensor:
    place, array = read(t, "quantize")
    with place.backend.scope():
        made = encode(place.backend, array, scheme, observer=observer, inputs=inputs)
    return tensor_at(place, made)


def dequantize(t: torch.Tensor) -> torch.Tensor:
    if _inside_of(t) is not t:  # of a transform that is under way, which is to see it
        with policy.meant():
            return t * 1
    place, array = read(t)
    return tensor_at(place, place.backend.own(array) if place.backend.mutable else array)


def host(t: torch.Tensor) -> np.ndarray:
    """The numbers of a tensor."""
    return cpu_to_numpy((dequantize(t) if is_quantized(t) else t).detach().cpu())


def placed(q: Quantized, like: torch.Tensor) -> torch.Tensor:
    """Codes and scales of the host where another tensor is."""
    place = place_of(like.device)
    with place.backend.scope():
        return tensor_at(place, q.with_parts(tuple(map(place.backend.asarray, q.parts))))


def place_of(device: torch.device) -> Place:
    return quantized_cpu.HOST if device.type == "cpu" else slot_of(device)


def tensor_at(place: Place, array: Any) -> torch.Tensor:
    """A contiguous tensor of a new array."""
    return quantized_cpu.from_array(array) if isinstance(place, quantized_cpu.Host) else from_array(array, place)


def read(t: torch.Tensor, name: str = "dequantize") -> tuple[Place, Any]:
    """The dense numbers of a tensor, of which a trace under way is told."""
    if t.device.type == "cpu":
        with torch._C._DisableFuncTorch():
            return quantized_cpu.HOST, quantized_cpu.dense_of(t, name)
    state.touch(cell_of(t))
    with policy.meant(), torch._C._DisableFuncTorch():
        return slot_at(t.device.index), to_array(t.detach())


def moved(t: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A quantised tensor, its codes and scales, on another device, with its strides where these are dense."""
    size, stride = tuple(t.size()), t.stride()
    if not is_dense(size, stride):
        stride = contiguous_strides(size)
    order = sorted(range(len(size)), key=lambda d: (-stride[d], d))
    if t.device.type == TYPE:
        state.touch(cell_of(t))
        here: Any = cell_of(t).backend
        q = to_array(t.detach(), codes=True)
    else:
        here, q = quantized_cpu.backend(), quantized_cpu.array_of(t)
    with here.scope():
        q = anew(here.inner, here.permute_dims(q, order))
        parts = [here.inner.to_numpy(a) for a in q.parts]
    place = place_of(device)
    with place.backend.scope():
        q = q.with_parts([place.backend.asarray(a) for a in parts])
    return attached(place, q, FROM_NUMPY[q.dtype], size, stride)


def attached(
    place: Place, q: Quantized, dtype: torch.dtype, size: tuple[int, ...], stride: tuple[int, ...], offset: int = 0
) -> torch.Tensor:
    """A tensor that looks at a new quantised array, of a base that has codes of its own."""
    if isinstance(place, quantized_cpu.Host):
        return quantized_cpu.made(q, dtype, size, stride, offset)
    cell = state.created(Storage(q, quantizing(place.backend)))
    return attach(cell, place, dtype, size, stride, math.prod(q.base) * dtype.itemsize, offset)


def fake_quantize(t: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    from tensorgraft.frontends.torch.quantized import training as quantized_training

    return quantized_training.fake_quantize(t, scheme)


def is_quantized(t: torch.Tensor) -> bool:
    """The numbers of a tensor are codes."""
    t = _inside_of(t)
    if t.device.type != TYPE:
        return isinstance(t, quantized_cpu.QuantizedTensor)
    return not t.is_sparse and cell_of(t).backend.wraps


def array_of(t: torch.Tensor) -> Quantized:
    """The codes and scales of a quantised tensor, or of what it is a view of."""
    t = _inside_of(t)
    return cell_of(t).array if t.device.type == TYPE else quantized_cpu.array_of(t)


def _inside_of(t: torch.Tensor) -> torch.Tensor:
    """The tensor with a storage that transforms of `torch.func` have wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(t):
        t = torch._C._functorch.get_unwrapped(t)
    return t


# ---- what a tensor has of it (`torch_entry.patches`) -----------------------------------------------------------------


def quantized_property(original: object) -> property:
    return property(is_quantized)


def nbytes_property(original: Any) -> property:
    return property(lambda t: kept(t) if is_quantized(t) else original.__get__(t))


def of_numbers(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(dequantize(t) if is_quantized(t) else t, *args, **kwargs)

    return functools.wraps(original)(method)


def kept(t: torch.Tensor) -> int:
    """The bytes of the codes, scales and zero points behind a quantised tensor, or behind what it is a view of."""
    cell = cell_of(t)
    xp = cell.backend
    return sum(math.prod(xp.shape(a)) * xp.dtype_of(a).itemsize for a in cell.array.parts)


def quantize_module(
    model: torch.nn.Module,
    choose: Callable[[str], Scheme | None],
    wanted: Callable[[str, torch.nn.Module], bool] | None,
    method: Method,
) -> torch.nn.Module:
    """See `tg.quantize_`. Tied weights stay tied."""
    wanted = wanted or (lambda _, module: isinstance(module, torch.nn.Linear))
    names = []
    known: dict[int, str] = {}  # by the identity of the parameter
    weights: dict[str, Weight] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is None or weight.dim() < 2:
            continue
        names.append(name)
        scheme = choose(name) if wanted(name, module) else None
        if scheme is None or id(weight) in known:
            continue
        if weight.device.type not in (TYPE, "cpu"):
            raise ValueError(f"quantize_: {name or 'the model'} is on {weight.device}: {quantized_cpu.ELSEWHERE}")
        if isinstance(module, _ConvNd) and (scheme.is_static or method.rounding != "nearest"):
            raise ValueError(
                f"quantize_: {name or 'the model'} is a {type(module).__name__}: what goes into convolutions is neither"
                f" measured nor rounded: take int8_per_channel for it, and rounding='nearest', or leave it out"
            )
        known[id(weight)] = full = f"{name}.weight" if name else "weight"
        place, array = read(weight, "quantize_")
        weights[full] = Weight(place.backend, array, of_module(scheme, module))
    if not weights:
        raise nothing_fits(names)
    stage = _Stage(model, known)
    try:
        return stage.show(method.quantized(weights, stage))
    except BaseException:
        stage.show({})
        raise


def of_module(scheme: Scheme, module: torch.nn.Module) -> Scheme:
    """Of convolutions groups run along the channels that come in, and channels are those that come out."""
    if not isinstance(module, _ConvNd):
        return scheme
    if scheme.granularity == "group":
        axes = module.weight.dim() - (not module.transposed)
        return replace(scheme, granularity="block", block=(scheme.group, *(1,) * (axes - 1)))
    return replace(scheme, axis=1) if scheme.granularity == "channel" and module.transposed else scheme


class _Stage:
    """A module with quantised parameters in the places of some, under whatever names it has them."""

    def __init__(self, model: torch.nn.Module, known: Mapping[int, str]) -> None:
        self.model = model
        self.places = [
            (module, key, p, known[id(p)])
            for module in model.modules()
            for key, p in module._parameters.items()
            if p is not None and id(p) in known
        ]

    def show(self, arrays: Mapping[str, Quantized]) -> torch.nn.Module:
        made: dict[str, torch.nn.Parameter] = {}
        for module, key, p, name in self.places:
            if name in arrays and name not in made:
                made[name] = torch.nn.Parameter(tensor_at(place_of(p.device), arrays[name]), requires_grad=False)
            module._parameters[key] = made.get(name, p)
        return self.model

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        modes = [(module, module.training) for module in self.model.modules()]
        fused = torch.backends.mha.get_fastpath_enabled()  # one operator for a layer, whose products nobody sees
        try:
            torch.backends.mha.set_fastpath_enabled(False)
            self.model.eval()
            with torch.no_grad():
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
            for module, training in modes:
                module.training = training
