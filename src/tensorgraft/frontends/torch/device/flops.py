"""`torch.utils.flop_counter` on the device: costs of operators that PyTorch decomposes on its own devices."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.importing import when_imported


def install() -> None:
    when_imported("torch.utils.flop_counter", _register)


def _register() -> None:
    counter = sys.modules["torch.utils.flop_counter"]
    if torch.ops.aten.linear_backward not in counter.flop_registry:
        counter.register_flop_formula(torch.ops.aten.linear_backward)(_linear_backward)


def _linear_backward(
    x: Sequence[int], gradient: Sequence[int], weight: Sequence[int], mask: Sequence[bool], **_: Any
) -> int:
    """Count the products for the gradients of the input and of the weight, as far as they are wanted."""
    return 2 * math.prod(gradient[:-1]) * math.prod(weight) * sum(mask[:2])
