"""Quantised tensors that behave as tensors: `tg.quantize`, `tg.dequantize`, and what happens where an operation has no
rule for codes."""

from tensorgraft.quantization.models import quantize_
from tensorgraft.quantization.policy import NoQuantizedRuleError, on_missing, report, reset
from tensorgraft.quantization.public import dequantize, from_torchao, is_quantized, quantize
from tensorgraft.quantization.scheme import Scheme
from tensorgraft.quantization.training import convert_, fake_quantize, prepare_qat_

__all__ = [
    "NoQuantizedRuleError",
    "Scheme",
    "convert_",
    "dequantize",
    "fake_quantize",
    "from_torchao",
    "is_quantized",
    "on_missing",
    "prepare_qat_",
    "quantize",
    "quantize_",
    "report",
    "reset",
]
