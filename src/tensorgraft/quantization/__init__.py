"""Quantised tensors that behave as tensors: `tg.quantize`, `tg.dequantize`, and what happens where an operation has no
rule for codes."""

import importlib
from typing import TYPE_CHECKING, Any

from tensorgraft.quantization.models import quantize_
from tensorgraft.quantization.optimizer import Adam8bitState, GradientTransformation, adam8bit
from tensorgraft.quantization.policy import NoQuantizedRuleError, on_missing, report, reset
from tensorgraft.quantization.public import dequantize, from_torchao, is_quantized, quantize
from tensorgraft.quantization.rounding import gptq
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.quantization.training import convert_, fake_quantize, prepare_qat_

if TYPE_CHECKING:
    from tensorgraft.frontends.torch.quantized.adam8bit import Adam8bit
    from tensorgraft.frontends.torch.quantized.smoothing import smooth_
    from tensorgraft.frontends.torch.quantized.state import flatten_tensor_state_dict, unflatten_tensor_state_dict

__all__ = [
    "Adam8bit",
    "Adam8bitState",
    "GradientTransformation",
    "NoQuantizedRuleError",
    "Scheme",
    "adam8bit",
    "convert_",
    "dequantize",
    "fake_quantize",
    "flatten_tensor_state_dict",
    "from_torchao",
    "gptq",
    "is_quantized",
    "on_missing",
    "prepare_qat_",
    "quantize",
    "quantize_",
    "report",
    "reset",
    "smooth_",
    "unflatten_tensor_state_dict",
]


_OF_TORCH = {  # which import it
    "Adam8bit": "quantized.adam8bit",
    "flatten_tensor_state_dict": "quantized.state",
    "smooth_": "quantized.smoothing",
    "unflatten_tensor_state_dict": "quantized.state",
}


def __getattr__(name: str) -> Any:
    if name in _OF_TORCH:
        return getattr(importlib.import_module(f"tensorgraft.frontends.torch.{_OF_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
