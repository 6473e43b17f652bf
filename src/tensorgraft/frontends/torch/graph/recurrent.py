"""An LSTM's layer as graphs captured on the CPU have it (`mkldnn_rnn_layer`, with Dynamo's `allow_rnn`): a loop of the
backend, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.compiled.control_flow import recurrent

Tensor = torch.Tensor


def _run(x: Tensor, weights: Sequence[Tensor], h: Tensor, c: Tensor, biases: bool, reverse: bool) -> list[Tensor]:
    """Run one layer: `x` (T, N, I), states (1, N, H) -> outputs (T, N, H), last states (1, N, H)."""
    used = weights if biases else weights[:2]
    ys, last = recurrent._layer(recurrent.CELLS["lstm.input"], x, [h[0], c[0]], used, biases, reverse)
    return [ys, *(state.unsqueeze(0) for state in last)]


def layer(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    h: Tensor,
    c: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    *_: bool,
) -> list[Tensor]:
    workspace = torch.empty((0,), dtype=torch.uint8, device=x.device)
    return [*_run(x, (w_ih, w_hh, b_ih, b_hh), h, c, has_biases, reverse), workspace]


def layer_backward(
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    h: Tensor,
    c: Tensor,
    output: Tensor,
    hy: Tensor,
    cy: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    reverse: bool,
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    *_: Any,
) -> list[Tensor]:
    """Compute the gradients. The forward pass is repeated, because its residuals are no outputs of the operator."""
    ends = [t.detach().requires_grad_() for t in (x, w_ih, w_hh, b_ih, b_hh, h, c)]
    with torch.enable_grad():
        results = _run(ends[0], ends[1:5], ends[5], ends[6], has_biases, reverse)
        result_gradients = zip(results, (grad_output, grad_hy, grad_cy), strict=True)
        roots, dy = zip(*[(r, g) for r, g in result_gradients if g is not None], strict=True)
        return list(torch.autograd.grad(roots, ends, dy, allow_unused=True, materialize_grads=True))


LAYERS: dict[str, Callable[..., Any]] = {
    "mkldnn_rnn_layer.default": layer,
    "mkldnn_rnn_layer_backward.default": layer_backward,
}
