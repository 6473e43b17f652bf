"""Tensors that torchao has quantised, as quantised tensors of ours: the same codes, scales and zero points.

Built on `tensors` and `torchao_formats`, and on torchao itself; nothing of the core imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from tensorgraft.frontends.torch.core.devices import slot_of
from tensorgraft.frontends.torch.core.tensors import cpu_to_numpy, numpy_dtype
from tensorgraft.frontends.torch.quantized import torchao_inputs
from tensorgraft.frontends.torch.quantized.tensors import Place, attached, place_of
from tensorgraft.frontends.torch.quantized.torchao_formats import TorchaoFormat, is_dense, is_torchao, read
from tensorgraft.quantization.quantized import Quantized, check_numbers
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.storage import contiguous_geometry, contiguous_strides


def from_torchao(x: Any, device: Any = None) -> Any:
    """See `tg.quantization.from_torchao`."""
    slot = slot_of(None) if device is None else place_of(torch.device(device))
    if isinstance(x, nn.Module):
        return _module(x, slot)
    if isinstance(x, Mapping):
        return {name: _with_name(name, t, slot) for name, t in x.items()}
    return _without_module(x, slot)


def _module(model: nn.Module, slot: Place) -> nn.Module:
    """Convert a module in place. All weights are read before the first is replaced, so that an error leaves it
    unchanged."""
    parameters: dict[int, nn.Parameter] = {}
    inputs: dict[nn.Module, torchao_inputs.Inputs] = {}
    for prefix, module in model.named_modules():
        for key, p in module._parameters.items():
            if p is None or not is_torchao(p) or is_dense(p):
                continue
            name = f"{prefix}.{key}" if prefix else key
            try:
                if id(p) not in parameters:
                    parameters[id(p)] = nn.Parameter(_tensor(p, slot), requires_grad=False)
                input_scheme = _inputs(module, p)
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from None
            if input_scheme is not None:
                inputs[module] = input_scheme
    for module in list(model.modules()):
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) in parameters:
                module._parameters[key] = parameters[id(parameter)]
                _without_repr(module)
        if module in inputs:
            torchao_inputs.attach(module, inputs[module])
    return model.to(slot.device)


def _without_repr(module: nn.Module) -> None:
    """Remove the `extra_repr` that torchao has put into a module, which cannot be pickled."""
    method = module.__dict__.get("extra_repr")
    function = getattr(method, "__func__", None)
    function = getattr(function, "func", function)  # the function of a `functools.partial`
    if getattr(function, "__module__", "").partition(".")[0] == "torchao":
        del module.extra_repr


def _inputs(module: nn.Module, p: Any) -> torchao_inputs.Inputs | None:
    """Return the preprocessing of a module's inputs that a weight requires; None if there is none, as for a lookup of
    rows."""
    if not torchao_inputs.has_inputs(p) or isinstance(module, nn.Embedding):
        return None
    if not isinstance(module, nn.Linear | nn.Conv2d):
        raise TypeError(
            f"from_torchao: a {type(p).__qualname__} scales or quantises activations"
            f" ({torchao_inputs.rule_of(p)}), which is supported in Linear and Conv2d, but not in a"
            f" {type(module).__name__}"
        )
    return torchao_inputs.Inputs(p)


def _with_name(name: str, t: Any, slot: Place) -> Any:
    try:
        if is_torchao(t) and not is_dense(t):
            return _without_module(t, slot)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    return t.to(slot.device) if isinstance(t, torch.Tensor) else t


def _without_module(t: Any, slot: Place) -> torch.Tensor:
    """Convert a tensor. Raises TypeError if its activations are quantised, which its module has to do."""
    if is_torchao(t) and torchao_inputs.has_inputs(t):
        raise TypeError(
            f"from_torchao: a {type(t).__qualname__} scales or quantises activations"
            f" ({torchao_inputs.rule_of(t)}), which is done by its module: pass the module to from_torchao"
        )
    return _tensor(t, slot)


def _tensor(t: Any, slot: Place) -> torch.Tensor:
    """Return a tensor with the same codes and scales on the device."""
    values = read(t)
    scheme = _scheme(values, torchao_inputs.activation_of(t) if values.zero is None else None)
    base, shape, xp = tuple(values.codes.shape), tuple(t.shape), slot.backend
    with xp.scope():
        codes = xp.asarray(_host(values.codes))
        scale = xp.asarray(_host(values.scale.float()))
        zero: Any = None
        if scheme.has_zero_points:
            zero = torch.zeros_like(values.scale) if values.zero is None else values.zero
            zero = xp.asarray(_host(zero.float()))
        found_numbers = {n: _host(x.float()) for n in ("scale", "zero") if (x := getattr(values, n)) is not None}
        check_numbers(found_numbers, f"from_torchao: a {type(t).__qualname__} of shape {shape}")
        parts: dict[str, Any] = {"codes": scheme.codes.pack(xp, codes), "scale": scale, "zero": zero}
        for name in ("input_scale", "input_zero"):
            if name in scheme.parts:
                stored = getattr(t, {"input_scale": "act_quant_scale", "input_zero": "act_quant_zero_point"}[name])
                parts[name] = xp.asarray(_host(stored.reshape(()).float()))
        q = Quantized(**parts, base=base, geometry=contiguous_geometry(base, numpy_dtype(t.dtype)), scheme=scheme)
    return attached(slot, q, t.dtype, shape, contiguous_strides(shape))


def _host(t: torch.Tensor) -> np.ndarray:
    return np.ascontiguousarray(cpu_to_numpy(t.cpu()))


def _scheme(f: TorchaoFormat, activation: str | None) -> Scheme:
    shape, grid = tuple(f.codes.shape), tuple(f.scale.shape)
    block = tuple(n // max(g, 1) for n, g in zip(shape, grid, strict=True))
    single = [axis for axis, b in enumerate(block) if b == 1 and shape[axis] != 1]
    granularity: dict[str, Any]
    if block == shape:
        granularity = {"granularity": "tensor"}
    elif len(single) == 1 and all(b == n for i, (b, n) in enumerate(zip(block, shape, strict=True)) if i not in single):
        granularity = {"granularity": "channel", "axis": single[0]}
    elif all(b == 1 for b in block[:-1]):
        granularity = {"granularity": "group", "group": block[-1]}
    else:
        granularity = {"granularity": "block", "block": block}
    return Scheme(
        f.encoding, symmetric=f.zero is None, offset=f.offset, table=f.table, activation=activation, **granularity
    )
