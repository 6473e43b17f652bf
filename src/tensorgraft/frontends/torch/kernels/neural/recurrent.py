"""One step of an LSTM or a GRU after its matrix products. `nn.LSTM` and `nn.GRU` call these operators for each step."""

from __future__ import annotations

from typing import Any

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import dtypes
from tensorgraft.hub.operations.recurrent import lstm_gates
from tensorgraft.hub.value import AnyArray, Value, with_operators


def _wide(xp: Any, x: AnyArray | None, like: AnyArray) -> AnyArray:
    """Return `x` in the dtype in which `like` is accumulated; zero if it is None."""
    if x is None:
        return xp.zeros((), dtypes.accumulator(xp.dtype_of(like)))
    return xp.astype(x, dtypes.accumulator(xp.dtype_of(like)))


def _gates(xp: Any, x: AnyArray, n: int) -> list[AnyArray]:
    return xp.split(x, [xp.shape(x)[1] // n] * n, axis=1)


def _slope(xp: Any, gate: Value) -> Value:
    """Return the derivative of the sigmoid whose value is `gate`."""
    return gate * (1 - gate)


@kernel("_thnn_fused_lstm_cell", meta=False)
@with_operators
def _lstm_cell(
    xp: Any,
    input_gates: Value,
    hidden_gates: Value,
    cx: Value,
    input_bias: Value | None = None,
    hidden_bias: Value | None = None,
) -> tuple[Value, Value, Value]:
    """Return (hidden state, cell state, workspace (N, 4 H): the four gates)."""
    parts = (input_gates, hidden_gates, input_bias, hidden_bias)
    total = xp.add(*(_wide(xp, v, cx) for v in parts[:2]))
    for bias in parts[2:]:
        total = total + _wide(xp, bias, cx)
    i, f, g, o = lstm_gates(xp, total)
    cy = f * _wide(xp, cx, cx) + i * g
    hy = o * xp.tanh(cy)
    results = (hy, cy, xp.concat([i, f, g, o], axis=1))
    return tuple(xp.astype(v, cx.dtype) for v in results)


@kernel("_thnn_fused_lstm_cell_backward_impl", meta=False)
@with_operators
def _lstm_cell_backward(
    xp: Any, grad_hy: Value | None, grad_cy: Value | None, cx: Value, cy: Value, workspace: Value, has_bias: bool
) -> tuple[Value | None, ...]:
    """Gradients in the gates (N, 4 H), the cell state and, where there is one, the bias (4 H,)."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    dtype = cx.dtype
    i, f, g, o = _gates(xp, _wide(xp, workspace, cx), 4)
    grad_h, grad_c = _wide(xp, grad_hy, cx), _wide(xp, grad_cy, cx)
    t = xp.tanh(_wide(xp, cy, cx))
    grad_o = grad_h * t * _slope(xp, o)
    grad_c = grad_c + grad_h * o * (1 - t * t)
    grad_i = grad_c * g * _slope(xp, i)
    grad_f = grad_c * _wide(xp, cx, cx) * _slope(xp, f)
    grad_g = grad_c * i * (1 - g * g)
    gates = xp.concat([grad_i, grad_f, grad_g, grad_o], axis=1)
    bias = xp.astype(xp.sum(gates, axis=0), dtype) if has_bias else None
    return xp.astype(gates, dtype), xp.astype(grad_c * f, dtype), bias


@kernel("_thnn_fused_gru_cell", meta=False)
@with_operators
def _gru_cell(
    xp: Any,
    input_gates: Value,
    hidden_gates: Value,
    hx: Value,
    input_bias: Value | None = None,
    hidden_bias: Value | None = None,
) -> tuple[Value, Value]:
    """Return (hidden state, workspace (N, 5 H): reset, update and new gate, the state before, the new gate's hidden
    part)."""
    from_input = _wide(xp, input_gates, hx) + _wide(xp, input_bias, hx)
    from_hidden = _wide(xp, hidden_gates, hx) + _wide(xp, hidden_bias, hx)
    (ir, iz, i_n), (hr, hz, hn) = _gates(xp, from_input, 3), _gates(xp, from_hidden, 3)
    before = _wide(xp, hx, hx)
    r, z = xp.sigmoid(ir + hr), xp.sigmoid(iz + hz)
    n = xp.tanh(i_n + r * hn)
    hy = n + z * (before - n)
    dtype = hx.dtype
    return xp.astype(hy, dtype), xp.astype(xp.concat([r, z, n, before, hn], axis=1), dtype)


@kernel("_thnn_fused_gru_cell_backward", meta=False)
@with_operators
def _gru_cell_backward(xp: Any, grad_hy: Value, workspace: Value, has_bias: bool) -> tuple[Value | None, ...]:
    """Gradients in the input's and the hidden state's gates (N, 3 H), the state before, and the two biases (3 H,)."""
    dtype = grad_hy.dtype
    grad = _wide(xp, grad_hy, grad_hy)
    r, z, n, before, hn = _gates(xp, _wide(xp, workspace, grad_hy), 5)
    grad_z = grad * (before - n) * _slope(xp, z)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r = grad_n * hn * _slope(xp, r)
    from_input = xp.concat([grad_r, grad_z, grad_n], axis=1)
    from_hidden = xp.concat([grad_r, grad_z, grad_n * r], axis=1)
    biases = [xp.astype(xp.sum(v, axis=0), dtype) if has_bias else None for v in (from_input, from_hidden)]
    return (*(xp.astype(v, dtype) for v in (from_input, from_hidden, grad * z)), *biases)
