"""Scaling and rounding of a Linear's inputs before the product, as some weights of torchao require."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensorgraft.frontends.torch.quantized.tensors import StraightThrough

_ARRAYS = ("act_pre_scale", "act_quant_scale", "act_quant_zero_point")


class Inputs(nn.Module):
    """Scales the inputs of a module, and rounds them if the product does not, with torchao's functions, but with
    gradients, straight-through."""

    rule: Any
    act_pre_scale: torch.Tensor | None
    act_quant_scale: torch.Tensor | None
    act_quant_zero_point: torch.Tensor | None

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.rule = None if activation_of(weight) else rule_of(weight)
        for name in _ARRAYS if self.rule is not None else _ARRAYS[:1]:
            self.register_buffer(name, getattr(weight, name, None))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.act_pre_scale is not None:
            x = x * self.act_pre_scale
        return x if self.rule is None else StraightThrough.apply(x, self.rounded)

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(self.rule, str):  # the one that there is: an enumeration of strings
            from torchao.quantization.quantize_.workflows.intx import intx_unpacked_to_int8_tensor as intx

            return intx._apply_int8_act_asym_per_token_quant_dequant(x)
        if hasattr(self.rule, "scaling_mode"):
            from torchao.prototype.mx_formats.mx_tensor import MXTensor

            k, rows = self.rule, x.reshape(-1, x.shape[-1])
            tensor = MXTensor.to_mx(rows, k.elem_dtype, k.block_size, k.scaling_mode, k.kernel_preference)
            return tensor.dequantize(x.dtype).reshape(x.shape)
        from torchao.quantization.quantize_.common import quantize_tensor_kwargs as kinds

        tensor = kinds._choose_quant_func_and_quantize_tensor(
            x, self.rule, scale=self.act_quant_scale, zero_point=self.act_quant_zero_point
        )
        return tensor.dequantize()

    def extra_repr(self) -> str:
        return "" if self.rule is None else str(self.rule)


def rule_of(weight: Any) -> Any:
    """Return the rule by which a weight has activations rounded, or None."""
    return getattr(weight, "act_quant_kwargs", None) or getattr(weight, "activation_quantization", None)


def activation_of(weight: Any) -> str | None:
    """Return the `Scheme.activation` by which products round as a weight of torchao's has it; None for none, or
    another."""
    rule = rule_of(weight)
    if type(rule).__name__ != "QuantizeTensorToInt8Kwargs" or rule.reduce_range or weight.dim() != 2:
        return None
    if weight.block_size[-1] != weight.shape[-1]:
        return None
    symmetric = rule.mapping_type.name == "SYMMETRIC"
    if weight.act_quant_scale is None:
        return "int8" if symmetric and type(rule.granularity).__name__ == "PerRow" else None
    if weight.act_quant_scale.numel() != 1:
        return None
    return "int8_static" if symmetric or weight.act_quant_zero_point is None else "int8_static_asymmetric"


def has_inputs(weight: Any) -> bool:
    """Return True if a weight scales or quantises the activations that it is multiplied by in a way that the products
    here do not know."""
    other_rule = rule_of(weight) is not None and activation_of(weight) is None
    return other_rule or getattr(weight, "act_pre_scale", None) is not None


def attach(module: nn.Module, inputs: Inputs) -> None:
    """Let a module scale and round its inputs, by a child module named `inputs`."""
    module.add_module("inputs", inputs)
    module.register_forward_pre_hook(_apply)


def _apply(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    inputs: Any = module.get_submodule("inputs")
    return (inputs(args[0]), *args[1:])
