"""`nn.LSTM`, `nn.GRU` and `nn.RNN` inside compiled functions: a layer is one loop of the backend.

PyTorch takes these operators apart step by step, which a compiler sees as one long program. Eagerly they stay so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.library import Library
from torch.nn import functional as F

from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.control_flow import compiled_scan
from tensorgraft.frontends.torch.devices import TYPE

Tensor = torch.Tensor
# (carry, input gates, hidden weight, input bias, hidden bias, projection) -> carry, the output first
Cell = Callable[..., list[Tensor]]

SHORTEST = 4  # steps: below, taken apart

_library = Library("aten", "IMPL")


def _lstm(carry: Sequence[Tensor], gates: Tensor, w: Tensor, b: Sequence[Tensor], projection: Sequence[Tensor]) -> Any:
    h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(gates, F.linear(carry[0], w), carry[1], *b)
    return [F.linear(h, *projection) if projection else h, c]


def _gru(carry: Sequence[Tensor], gates: Tensor, w: Tensor, b: Sequence[Tensor], projection: Sequence[Tensor]) -> Any:
    return [torch.ops.aten._thnn_fused_gru_cell(gates, F.linear(carry[0], w), carry[0], *b)[0]]


def _rnn(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(
        carry: Sequence[Tensor], gates: Tensor, w: Tensor, b: Sequence[Tensor], projection: Sequence[Tensor]
    ) -> list[Tensor]:
        return [activation(sum(b, start=gates + F.linear(carry[0], w)))]

    return cell


CELLS: dict[str, Cell] = {"lstm.input": _lstm, "gru.input": _gru, "rnn_tanh.input": _rnn(torch.tanh),
                          "rnn_relu.input": _rnn(torch.relu)}  # fmt: skip


def _layer(
    cell: Cell, x: Tensor, carry: Sequence[Tensor], weights: Sequence[Tensor], biases: bool, reverse: bool
) -> Any:
    """`x` (T, N, I) -> (outputs (T, N, H), last carry)."""
    w_ih, w_hh, *rest = weights
    n = 2 if biases else 0

    def step(carry: Sequence[Tensor], rows: Sequence[Tensor], w: Tensor, *more: Tensor) -> list[Tensor]:
        after = cell(carry, rows[0], w, more[:n], more[n:])
        return [*after, after[0] * 1]

    *last, ys = compiled_scan(step, carry, [F.linear(x, w_ih)], reverse, [w_hh, *rest])
    return ys, last


def _run(
    cell: Cell,
    x: Tensor,
    states: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[Tensor]:
    """All layers: [outputs, last states (layers x directions, N, H)...]."""
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    x = x.transpose(0, 1) if batch_first else x
    ends = []
    for layer in range(num_layers):
        outs = []
        for direction in range(directions):
            k = layer * directions + direction
            weights = params[k * each : (k + 1) * each]
            ys, last = _layer(cell, x, [s[k] for s in states], weights, has_biases, reverse=direction == 1)
            outs.append(ys)
            ends.append(last)
        x = torch.cat(outs, -1) if bidirectional else outs[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout)
    return [x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*ends, strict=True))]


def _kernel(name: str) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    op, cell = getattr(getattr(torch.ops.aten, packet), overload), CELLS[name]
    # PyTorch's own composite: the decomposition that `op.decompose` prefers, in Python, leaves dropout out
    taken_apart = functools.partial(op._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)

    def kernel(x: Tensor, states: Any, params: Sequence[Tensor], *options: Any) -> Any:
        steps = x.shape[1 if options[-1] else 0] if x.ndim == 3 else 0
        if state.now.capture is None or steps < SHORTEST or torch.is_autocast_enabled(TYPE):
            return taken_apart(x, states, params, *options)
        return tuple(_run(cell, x, states if isinstance(states, list | tuple) else [states], params, *options))

    return kernel


def install() -> None:
    for name in CELLS:
        kernel = _kernel(name)
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            _library.impl(name, kernel, key)
