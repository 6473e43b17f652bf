"""Rules of vmap that PyTorch lacks, or that its own cannot do for a device of Python's.

Its rules for `linspace` and `logspace` between a batched tensor and a number make a "wrapped number" of the latter on
the device of the former, and no such tensor can be given to Python. Here the number becomes a plain tensor first.
For `linear_backward`, which no other device calls, it has none, and would go row by row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from tensorgraft import warning_filters
from tensorgraft.frontends.torch.dispatch.autograd import linear_backward

_library = Library("aten", "IMPL")
# {type of a number: the dtype that PyTorch gives it}
_WIDE = {bool: torch.bool, complex: torch.complex128, float: torch.float64, torch.SymFloat: torch.float64}


def install() -> None:
    with warning_filters.ignored():  # PyTorch notes the first kernel in a process that replaces another
        for packet in (torch.ops.aten.linspace, torch.ops.aten.logspace):
            for number, overload_name in enumerate(("Scalar_Tensor", "Tensor_Scalar")):
                op = getattr(packet, overload_name)
                _library.impl(op.name(), _between_tensors(packet.Tensor_Tensor, number), "FuncTorchBatched")
        for key in ("FuncTorchBatched", "Batched"):  # `torch.vmap`; `is_grads_batched`
            _library.impl("linear_backward", linear_backward, key)


def _between_tensors(op: Callable[..., Any], number: int) -> Callable[..., Any]:
    """Call `op` with two tensors as its ends, the one at `number` being converted."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        ends = list(args[:2])
        dtype = _WIDE.get(type(ends[number]), torch.int64)
        ends[number] = torch.full((), ends[number], dtype=dtype, device=ends[1 - number].device)
        return op(*ends, *args[2:], **kwargs)

    return rule
