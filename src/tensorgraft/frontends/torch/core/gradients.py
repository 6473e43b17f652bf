"""Assignment of gradients that PyTorch's own `x.grad = ...` refuses."""

from __future__ import annotations

from typing import Any

import torch

inherited_data: Any = vars(torch.Tensor.__base__)["data"]  # PyTorch's own `Tensor.data`


def put_gradient(x: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Set `x.grad`, also to a gradient of another shape or dtype: `x` may have been given other data since."""
    if grad is None or (grad.shape == x.shape and grad.dtype == x.dtype):
        x.grad = grad
        return
    data = x.data
    inherited_data.__set__(x, grad.detach())
    x.grad = grad
    inherited_data.__set__(x, data)
