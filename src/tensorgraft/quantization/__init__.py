"""Quantised tensors that behave as tensors: `tg.quantize`, `tg.dequantize`, and what happens where an operation has no
rule for codes."""

from tensorgraft.quantization.models import quantize_
from tensorgraft.quantization.policy import NoQuantizedRuleError, on_missing, report, reset
from tensorgraft.quantization.public import dequantize, from_torchao, is_quantized, quantize
from tensorgraft.quantization.scheme import Scheme

__all__ = [
    "NoQuantizedRuleError",
    "Scheme",
    "dequantize",
    "from_torchao",
    "is_quantized",
    "on_missing",
    "quantize",
    "quantize_",
    "report",
    "reset",
]
