"""The work of an operator on the host of a device whose memory the host cannot read: what is counted until a program of
the device computes it (`hub.tiers.Heat`)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.storage import ColdStorage, Storage

# operators that multiply more often than they read -> the number of multiplications, of the arguments
_MULTIPLICATIONS: dict[str, Callable[..., int]] = {
    "mm": lambda a, b, *rest: a.numel() * b.size(-1),
    "bmm": lambda a, b, *rest: a.numel() * b.size(-1),
    "addmm": lambda c, a, b, *rest: a.numel() * b.size(-1),
    "baddbmm": lambda c, a, b, *rest: a.numel() * b.size(-1),
    "linear": lambda x, weight, *rest: x.numel() * weight.size(0),
    "linear_backward": lambda x, cotangent, weight, *rest: 2 * cotangent.numel() * weight.size(1),
    "convolution": lambda x, weight, bias, stride, *rest: x.numel() * weight.numel() // (x.size(1) * math.prod(stride)),
    "convolution_backward": lambda cotangent, x, weight, *rest: (
        2 * cotangent.numel() * weight.numel() // weight.size(0)
    ),
    "_scaled_dot_product_flash_attention_for_cpu": lambda query, key, *rest: 2 * query.numel() * key.size(-2),
    "_scaled_dot_product_flash_attention_for_cpu_backward": lambda cotangent, query, key, *rest: (
        5 * query.numel() * key.size(-2)
    ),
}
_COPIED = 8  # elements of a pass that take as long as to copy one there and back
_FUSED = 4  # passes of NumPy that one of CPU PyTorch's stands for
_A_PASS = 32  # multiplications of a product that take as long as one element of a pass


def elements(cell: Storage) -> int:
    """Return the number of elements of a storage's memory."""
    if cell.__class__ is ColdStorage:
        return cell.cold.numel()
    return math.prod(cell.backend.shape(cell.array))


def host_work(name: str, cells: Sequence[Storage], args: Sequence[Any]) -> tuple[int, int]:
    """Return (elements that an operator's call passes over, on the scale of `tiers.ELEMENTS`; arrays to be copied)."""
    passed, copies = 0, 0
    for cell in cells:
        if cell.__class__ is ColdStorage:
            passed += cell.cold.numel()
        else:  # there and, as what is next to it is the device's, back
            passed += _COPIED * elements(cell)
            copies += 2
    multiplications = _MULTIPLICATIONS.get(name)
    if multiplications is not None:
        with contextlib.suppress(AttributeError, IndexError, TypeError, ZeroDivisionError):  # PyTorch raises its own
            passed += multiplications(*args) // _A_PASS
    return passed // _FUSED, copies
