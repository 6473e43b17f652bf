"""Quantisation-aware training of modules: weights as parametrisations that round, straight-through.

Built on `tensors` and `models`; nothing of the core imports it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from tensorgraft.frontends.torch.quantized.cpu import ELSEWHERE
from tensorgraft.frontends.torch.quantized.models import of_module
from tensorgraft.frontends.torch.quantized.tensors import fake_quantize, is_quantized, quantize, straight_through
from tensorgraft.hub.backend import Backend
from tensorgraft.quantization.activations import by_row
from tensorgraft.quantization.calibration import nothing_fits
from tensorgraft.quantization.scheme import Scheme


def _rows(xp: Backend, x: Any) -> Any:
    codes, scale = by_row(xp, x, (xp.ndim(x) - 1,))
    return xp.astype(xp.multiply(xp.astype(codes, xp.dtype_of(scale)), scale), xp.dtype_of(x))


def _rounds_input(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return (straight_through(args[0], _rows), *args[1:])


class FakeQuantize(nn.Module):
    """The parametrisation of a weight that is trained to be quantised."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme
        self.hook: Any = None  # the hook of the module's inputs

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return fake_quantize(weight, self.scheme)

    def extra_repr(self) -> str:
        return str(self.scheme)


def prepare(
    model: nn.Module, choose: Callable[[str], Scheme | None], predicate: Callable[[str, nn.Module], bool] | None
) -> nn.Module:
    """See `tg.quantization.prepare_qat_`."""
    predicate = predicate or (lambda _, module: isinstance(module, nn.Linear))
    layers: list[tuple[nn.Module, Scheme]] = []
    names = []
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.dim() < 2 or isinstance(module, FakeQuantize):
            continue
        names.append(name)
        scheme = choose(name) if predicate(name, module) else None
        if scheme is None:
            continue
        where = f"prepare_qat_: {name or 'the model'}"
        if parametrize.is_parametrized(module, "weight"):
            raise ValueError(f"{where}.weight is already parametrised by {module.parametrizations['weight'][0]}")
        if weight.device.type not in ("graft", "cpu"):
            raise ValueError(f"{where} is on {weight.device}: {ELSEWHERE}")
        if is_quantized(weight):
            raise ValueError(f"{where}.weight is quantised: train a dense model, then convert it")
        if scheme.is_static:
            raise ValueError(
                f"{where}: {scheme} uses a range that is measured after training: train with int8_dynamic or"
                " int8_per_channel, then call tg.quantize_(model, 'int8_static', calibrate=batches)"
            )
        scheme = of_module(scheme, module)
        if scheme.activation and not isinstance(module, nn.Linear):
            raise ValueError(
                f"{where}: {scheme} quantises the input of a Linear, but this is a {type(module).__name__}"
            )
        try:
            quantize(weight, scheme)
        except ValueError as error:
            raise ValueError(f"{where}.weight: {error}") from None
        layers.append((module, scheme))
    if not layers:
        raise nothing_fits(names, "prepare_qat_")
    for module, scheme in layers:
        rounding = FakeQuantize(scheme)
        if scheme.activation:
            rounding.hook = module.register_forward_pre_hook(_rounds_input)
        rounding.train(module.training)
        parametrize.register_parametrization(module, "weight", rounding)
    return model


def convert(model: nn.Module) -> nn.Module:
    """See `tg.quantization.convert_`."""
    parameters: dict[tuple[int, Scheme], nn.Parameter] = {}
    rounded_weights = []
    for name, module in model.named_modules():
        if not parametrize.is_parametrized(module, "weight"):
            continue
        parametrisations: Any = module.parametrizations["weight"]
        if len(parametrisations) != 1 or not isinstance(rounding := parametrisations[0], FakeQuantize):
            continue
        weight, scheme = parametrisations.original, rounding.scheme
        if (id(weight), scheme) not in parameters:
            try:
                parameters[id(weight), scheme] = nn.Parameter(quantize(weight, scheme), requires_grad=False)
            except ValueError as error:
                raise ValueError(f"convert_: {name}.weight: {error}") from None
        rounded_weights.append((module, rounding, parameters[id(weight), scheme]))
    if not rounded_weights:
        raise ValueError(
            "convert_: the model has no prepared weight: call tg.quantization.prepare_qat_ before training"
        )
    for module, rounding, parameter in rounded_weights:
        if rounding.hook is not None:
            rounding.hook.remove()
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
        module._parameters["weight"] = parameter
    return model
