"""`nn.LSTM`, `nn.GRU` and `nn.RNN` inside compiled functions: a layer is one loop of the backend.

PyTorch takes these operators apart step by step, which a compiler sees as one long program. Eagerly they stay so, or
are CPU PyTorch's as a whole.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.library import Library
from torch.nn import functional as F

from tensorgraft.frontends.torch.compiled.control_flow.bodies import pulled_back, with_history
from tensorgraft.frontends.torch.compiled.control_flow.operators import compiled_scan
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import TYPE
from tensorgraft.frontends.torch.core.modes import below_modes
from tensorgraft.frontends.torch.core.tensors import cell_of
from tensorgraft.frontends.torch.dispatch.cold_history import on_the_host

Tensor = torch.Tensor
# (the input's contribution, the state h, the carry) -> the next carry, h first
Cell = Callable[[Tensor, Tensor | None, Sequence[Tensor]], list[Tensor]]

SHORTEST = 4  # steps: below, taken apart

_library = Library("aten", "IMPL")


def _lstm(x: Tensor, hidden: Tensor | None, carry: Sequence[Tensor]) -> list[Tensor]:
    hidden = torch.zeros_like(x) if hidden is None else hidden
    h, c, _ = torch.ops.aten._thnn_fused_lstm_cell(x, hidden, carry[1])
    return [h, c]


def _gru(x: Tensor, hidden: Tensor | None, carry: Sequence[Tensor]) -> list[Tensor]:
    return [torch.ops.aten._thnn_fused_gru_cell(x, hidden, carry[0])[0]]


def _rnn(activation: Callable[[Tensor], Tensor]) -> Cell:
    return lambda x, hidden, carry: [activation(x if hidden is None else x + hidden)]


CELLS: dict[str, Cell] = {"lstm.input": _lstm, "gru.input": _gru, "rnn_tanh.input": _rnn(torch.tanh),
                          "rnn_relu.input": _rnn(torch.relu)}  # fmt: skip


def _layer(
    cell: Cell, x: Tensor, carry: Sequence[Tensor], weights: Sequence[Tensor], biases: bool, reverse: bool
) -> Any:
    """Run one layer: `x` (T, N, I) -> (outputs (T, N, H), last carry)."""
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = rest[:2] if biases else (None, None)
    if biases and cell is not _gru:  # added in the loop: before it, that would be one more pass over memory
        b_ih, b_hh = None, rest[0] + rest[1]
    gates = F.linear(x, w_ih, b_ih)
    if len(rest) > 2 * biases:  # a projection of h
        return _projected(cell, gates, carry, w_hh, b_hh, rest[-1], reverse)
    return _recurrence(cell, gates, carry, w_hh, b_hh, reverse)


def _projected(
    cell: Cell, gates: Tensor, carry: Sequence[Tensor], w: Tensor, b: Tensor | None, projection: Tensor, reverse: bool
) -> Any:
    def step(
        carry: Sequence[Tensor], rows: Sequence[Tensor], w: Tensor, projection: Tensor, *b: Tensor
    ) -> list[Tensor]:
        h, *rest = cell(rows[0], F.linear(carry[0], w, *b), carry)
        h = F.linear(h, projection)
        return [h, *rest, h * 1]

    constants = [w, projection] if b is None else [w, projection, b]
    *last, ys = compiled_scan(step, carry, [gates], reverse, constants)
    return ys, last


def _recurrence(
    cell: Cell, gates: Tensor, carry: Sequence[Tensor], w: Tensor, b: Tensor | None, reverse: bool
) -> tuple[Tensor, list[Tensor]]:
    """The loop over `gates` (T, N, G), with a derivative of its own: it keeps what the cell was given at each step, and
    the gradient of the weights is one product for all steps, outside of the backward loop."""
    n = len(carry)
    keeps = torch.is_grad_enabled()
    summed = cell is not _gru  # the cell is a function of gates + hidden, whose sum is kept in the place of both

    def step(carry: Sequence[Tensor], rows: Sequence[Tensor], *constants: Tensor) -> list[Tensor]:
        gates_in = [rows[0], linear(carry[0], *constants)]
        gates_in = [gates_in[0] + gates_in[1]] if summed else gates_in
        new_carry = cell(gates_in[0], None if summed else gates_in[1], carry)
        return [*new_carry, new_carry[0] * 1, *(t * 1 for t in [*carry, gates_in[-1]] if keeps)]

    with torch.no_grad():
        is_few = w.dtype is torch.float32 and carry[0].size(0) <= cell_of(gates).backend.few_rows
        linear, factor = (F.linear, w) if is_few else (_turned_linear, w.t().contiguous())  # once, not at every step
        constants = [t.detach() for t in ([factor] if b is None else [factor, b])]
        outputs = compiled_scan(step, [c.detach() for c in carry], [gates.detach()], reverse, constants)
    if not keeps:
        return outputs[n], outputs[:n]

    def backward(saved: Sequence[Tensor], cotangents: Sequence[Tensor | None]) -> list[Tensor]:
        w, *saved_gates = saved[: len(saved) - n]
        before = saved[len(saved) - n :]
        # only a second derivative has cotangents of residuals (the states before each step, the inputs of the cell)
        extra = {i: c for i, c in enumerate(cotangents[n + 1 :]) if c is not None}
        dy = [c for c in cotangents[n : n + 1] if c is not None]

        def call(*row: Tensor) -> list[Tensor]:
            return cell(row[0], None if summed else row[1], row[len(saved_gates) :])

        def backward_step(state: Sequence[Tensor], rows: Sequence[Tensor], w: Tensor) -> list[Tensor]:
            row, d_row = rows[: len(saved_gates) + n], list(rows[len(saved_gates) + n :])
            d_after = [state[0] + d_row.pop(0), *state[1:]] if dy else state
            slopes = pulled_back(call, row, d_after, ())
            d_given, d_carry = slopes[: len(saved_gates)], slopes[len(saved_gates) :]
            extra_gradients = dict(zip(extra, d_row, strict=True))
            if n in extra_gradients:
                d_given[-1] = d_given[-1] + extra_gradients[n]
            d_carry[0] = d_carry[0] + d_given[-1] @ w
            return [*(c + extra_gradients[i] if i in extra_gradients else c for i, c in enumerate(d_carry)), *d_given]

        last = [torch.zeros_like(b[0]) if c is None else c for b, c in zip(before, cotangents, strict=False)]
        outputs = compiled_scan(backward_step, last, [*saved_gates, *before, *dy, *extra.values()], not reverse, [w])
        d_carry, d_given = outputs[:n], outputs[n:]
        flat = d_given[-1].flatten(0, 1)
        sums = [flat.t() @ before[0].flatten(0, 1), flat.sum(0)]
        return [*d_carry, d_given[0], *sums[: 1 if b is None else 2]]

    saved_gates = outputs[-1:] if summed else [gates, outputs[-1]]
    ends = [*carry, gates, w] if b is None else [*carry, gates, w, b]
    results = with_history(outputs, [w, *saved_gates, *outputs[n + 1 : -1]], ends, backward)
    return results[n], results[:n]


def _turned_linear(h: Tensor, transposed_w: Tensor, *b: Tensor) -> Tensor:
    return torch.addmm(b[0], h, transposed_w) if b else h @ transposed_w


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
    """Run all layers. Returns [outputs, last states (layers x directions, N, H)...]."""
    directions = 2 if bidirectional else 1
    per_layer = len(params) // (num_layers * directions)
    x = x.transpose(0, 1) if batch_first else x
    ends = []
    for layer in range(num_layers):
        outs = []
        for direction in range(directions):
            k = layer * directions + direction
            weights = params[k * per_layer : (k + 1) * per_layer]
            ys, last = _layer(cell, x, [s[k] for s in states], weights, has_biases, reverse=direction == 1)
            outs.append(ys)
            ends.append(last)
        x = torch.cat(outs, -1) if bidirectional else outs[0]
        if dropout and train and layer < num_layers - 1:
            x = F.dropout(x, dropout)
    return [x.transpose(0, 1) if batch_first else x, *map(torch.stack, zip(*ends, strict=True))]


def kernel(name: str) -> Callable[..., Any]:
    """Return the operator of a cell, for every tensor of the device."""
    packet, _, overload = name.partition(".")
    op, cell = getattr(getattr(torch.ops.aten, packet), overload), CELLS[name]
    # PyTorch's own composite: the decomposition that `op.decompose` prefers, in Python, leaves dropout out
    taken_apart = functools.partial(op._op_dk, torch.DispatchKey.CompositeImplicitAutograd)

    def call_layer(x: Tensor, states: Any, params: Sequence[Tensor], *options: Any) -> Any:
        if state.now.capture is None and not (options[2] and options[3]):  # dropout's numbers are the device's
            is_list = isinstance(states, list | tuple)
            n = 1 + (len(states) if is_list else 1)

            def call(run: Callable[..., Any]) -> Callable[..., Any]:
                return lambda *t: run(t[0], list(t[1:n]) if is_list else t[1], list(t[n:]), *options)

            outputs = on_the_host(call(op._op), call(taken_apart), [x, *(states if is_list else [states]), *params])
            if outputs is not None:
                return outputs
        steps = x.shape[1 if options[-1] else 0] if x.ndim == 3 else 0
        if state.now.capture is None or steps < SHORTEST or torch.is_autocast_enabled(TYPE):
            return taken_apart(x, states, params, *options)
        return tuple(_run(cell, x, states if isinstance(states, list | tuple) else [states], params, *options))

    return call_layer


def install() -> None:
    for name in CELLS:
        for key in ("AutogradPrivateUse1", "PrivateUse1"):
            _library.impl(name, below_modes(kernel(name)), key)
