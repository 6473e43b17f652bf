"""The functions that files of PyTorch's name, as pickling its tensors says them."""

from __future__ import annotations

from collections.abc import Callable

import torch


def _rebuilt_by(x: torch.Tensor) -> Callable[..., torch.Tensor]:
    function: Callable[..., torch.Tensor] = x.__reduce_ex__(2)[0]  # type: ignore[assignment, index]
    return function


_example = torch.nn.Parameter(torch.empty(0, device="cpu"))
parameter = _rebuilt_by(_example)  # of data, requires_grad, and hooks
_example.attribute = None  # type: ignore[attr-defined]
parameter_with_state = _rebuilt_by(_example)  # of these, and attributes
sparse = _rebuilt_by(
    torch.sparse_coo_tensor(size=(0,), device="cpu", check_invariants=False)
)  # of a layout and its parts
del _example
