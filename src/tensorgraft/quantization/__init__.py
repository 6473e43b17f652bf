"""Quantised tensors that behave as tensors: `tg.quantize`, `tg.dequantize`, and the setting for operations without a
rule for codes.

Names are imported when they are read: front ends are built on other modules of this package, which do not depend on it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorgraft.frontends.torch.quantized.adam8bit import Adam8bit
    from tensorgraft.frontends.torch.quantized.smoothing import smooth_
    from tensorgraft.frontends.torch.quantized.state import flatten_tensor_state_dict, unflatten_tensor_state_dict
    from tensorgraft.quantization.api.arrays import dequantize, from_torchao, is_quantized, quantize
    from tensorgraft.quantization.api.gptq import gptq
    from tensorgraft.quantization.api.models import quantize_
    from tensorgraft.quantization.api.optimizer import Adam8bitState, GradientTransformation, adam8bit
    from tensorgraft.quantization.api.training import convert_, fake_quantize, prepare_qat_
    from tensorgraft.quantization.policy import NoQuantizedRuleError, on_missing, report, reset
    from tensorgraft.quantization.scheme import Scheme

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

_HOMES = {  # {public name: module that defines it}
    "Adam8bit": "tensorgraft.frontends.torch.quantized.adam8bit",
    "Adam8bitState": "tensorgraft.quantization.api.optimizer",
    "GradientTransformation": "tensorgraft.quantization.api.optimizer",
    "NoQuantizedRuleError": "tensorgraft.quantization.policy",
    "Scheme": "tensorgraft.quantization.scheme",
    "adam8bit": "tensorgraft.quantization.api.optimizer",
    "convert_": "tensorgraft.quantization.api.training",
    "dequantize": "tensorgraft.quantization.api.arrays",
    "fake_quantize": "tensorgraft.quantization.api.training",
    "flatten_tensor_state_dict": "tensorgraft.frontends.torch.quantized.state",
    "from_torchao": "tensorgraft.quantization.api.arrays",
    "gptq": "tensorgraft.quantization.api.gptq",
    "is_quantized": "tensorgraft.quantization.api.arrays",
    "on_missing": "tensorgraft.quantization.policy",
    "prepare_qat_": "tensorgraft.quantization.api.training",
    "quantize": "tensorgraft.quantization.api.arrays",
    "quantize_": "tensorgraft.quantization.api.models",
    "report": "tensorgraft.quantization.policy",
    "reset": "tensorgraft.quantization.policy",
    "smooth_": "tensorgraft.frontends.torch.quantized.smoothing",
    "unflatten_tensor_state_dict": "tensorgraft.frontends.torch.quantized.state",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value
