"""Cells of recurrent layers that are one operation, whole sequences of them, and their derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.value import AnyArray, Value, ValueBackend, with_operators


@rule("LSTMBlockCell")
@with_operators
def lstm_block_cell(
    xp: ValueBackend, x: Value, c: Value, h: Value, w: Value, wci: Value, wcf: Value, wco: Value, b: Value, *,
    forget_bias: float = 1.0, cell_clip: float = 3.0, use_peephole: bool = False,
) -> list[Value]:  # fmt: skip
    """Return (i, c, f, o, ci, co, h): gates in the order input, new, forget, output."""
    gates = xp.concat([x, h], axis=1) @ w + b
    i, ci, f, o = xp.split(gates, [c.shape[1]] * 4, 1)
    f = f + forget_bias
    if use_peephole:
        i, f = i + c * wci, f + c * wcf
    i, f, ci = xp.sigmoid(i), xp.sigmoid(f), xp.tanh(ci)
    new = ci * i + c * f
    if cell_clip > 0:
        new = xp.clip(new, -cell_clip, cell_clip)
    o = o + new * wco if use_peephole else o
    o, co = xp.sigmoid(o), xp.tanh(new)
    return [i, new, f, o, ci, co, co * o]


@rule("BlockLSTM", "BlockLSTMV2", known=(0,))
def block_lstm(
    xp: Backend, steps: np.ndarray, x: Array, c: Array, h: Array, w: Array, wci: Array, wcf: Array, wco: Array,
    b: Array, *, forget_bias: float = 1.0, cell_clip: float = 3.0, use_peephole: bool = False, node: Any,
) -> list[Array]:  # fmt: skip
    """Run the cell over the first `steps` rows; later results are zeros. BlockLSTMV2 has the gates in another order,
    and adds no bias to the forget gate."""
    second = node.op == "BlockLSTMV2"
    if second:  # input, forget, new, output
        w, b = (_second_order(xp, v) for v in (w, b))
    n, total = min(int(steps), xp.shape(x)[0]), xp.shape(x)[0]
    rows: list[list[Array]] = []
    for t in range(n):
        row = lstm_block_cell(
            xp, xp.squeeze(xp.take_slice(x, 0, t, t + 1), 0), c, h, w, wci, wcf, wco, b,
            forget_bias=0.0 if second else forget_bias, cell_clip=cell_clip, use_peephole=use_peephole,
        )  # fmt: skip
        c, h = row[1], row[6]
        rows.append(row)
    zero = xp.zeros_like(c)
    rows += [[zero] * 7] * (total - n)
    return [xp.stack([row[k] for row in rows], axis=0) for k in range(7)]


def _second_order(xp: Any, v: AnyArray) -> AnyArray:
    """Exchange the second and third of four gates along the last axis: from one version's order to the other's."""
    axis = xp.ndim(v) - 1
    i, f, ci, o = xp.split(v, [xp.shape(v)[axis] // 4] * 4, axis)
    return xp.concat([i, ci, f, o], axis=axis)


@rule("LSTMBlockCellGrad")
@with_operators
def lstm_block_cell_grad(
    xp: ValueBackend, x: Value, c: Value, h: Value, w: Value, wci: Value, wcf: Value, wco: Value, b: Value, i: Value,
    new: Value, f: Value, o: Value, ci: Value, co: Value, d_new: Value, d_h: Value, *, use_peephole: bool,
) -> list[Value]:  # fmt: skip
    """Return the gradients of (the previous state, the four gates before their activations, the three peepholes)."""

    def sigmoid_slope(y: Value) -> Value:
        return y * (1 - y)

    def tanh_slope(y: Value) -> Value:
        return 1 - xp.square(y)

    do = sigmoid_slope(o) * d_h * co
    dc = tanh_slope(co) * d_h * o + d_new
    if use_peephole:
        dc = dc + do * wco
    dci, df, di = tanh_slope(ci) * dc * i, sigmoid_slope(f) * dc * c, sigmoid_slope(i) * dc * ci
    before = dc * f
    peepholes = [xp.zeros_like(v) for v in (wci, wcf, wco)]
    if use_peephole:
        before = before + (di * wci + df * wcf)
        peepholes = [xp.sum(a * s, axis=0) for a, s in ((di, c), (df, c), (do, new))]
    return [before, xp.concat([di, dci, df, do], axis=1), *peepholes]


@rule("BlockLSTMGrad", "BlockLSTMGradV2", known=(0,))
@with_operators
def block_lstm_grad(
    xp: ValueBackend, steps: np.ndarray, x: Value, c: Value, h: Value, w: Value, wci: Value, wcf: Value, wco: Value,
    b: Value, *sequences: Value, use_peephole: bool, node: Any,
) -> list[Value]:  # fmt: skip
    """Return the gradients of all operands. `sequences`: the seven results of the forward operation, and the gradients
    of the states and of the outputs."""
    second = node.op == "BlockLSTMGradV2"
    if second:
        w, b = (_second_order(xp, v) for v in (w, b))
    total, width = x.shape[:1][0], x.shape[2]
    i, cs, f, o, ci, co, hs, d_cs, d_hs = (xp.unstack(s, 0) for s in sequences)
    rows = xp.unstack(x, 0)
    dx: list[Value] = [xp.zeros_like(row) for row in rows]
    dc, dh = xp.zeros_like(c), xp.zeros_like(h)
    dw, db, peepholes = xp.zeros_like(w), xp.zeros_like(b), [xp.zeros_like(v) for v in (wci, wcf, wco)]
    for t in reversed(range(min(int(steps), total))):
        before, out = (cs[t - 1], hs[t - 1]) if t else (c, h)
        dc, gates, *peephole_terms = lstm_block_cell_grad(
            xp, rows[t], before, out, w, wci, wcf, wco, b, i[t], cs[t], f[t], o[t], ci[t], co[t],
            d_cs[t] + dc, d_hs[t] + dh, use_peephole=use_peephole,
        )  # fmt: skip
        joint = gates @ xp.matrix_transpose(w)
        dx[t], dh = xp.take_slice(joint, 1, 0, width), xp.take_slice(joint, 1, width, joint.shape[1])
        dw = dw + xp.matrix_transpose(xp.concat([rows[t], out], axis=1)) @ gates
        db = db + xp.sum(gates, axis=0)
        peepholes = [a + p for a, p in zip(peepholes, peephole_terms, strict=True)]
    if second:
        dw, db = (_second_order(xp, v) for v in (dw, db))
    return [xp.stack(dx, axis=0), dc, dh, dw, *peepholes, db]


@rule("GRUBlockCell")
@with_operators
def gru_block_cell(
    xp: ValueBackend, x: Value, h: Value, w_ru: Value, w_c: Value, b_ru: Value, b_c: Value
) -> list[Value]:
    gates = xp.sigmoid(xp.concat([x, h], axis=1) @ w_ru + b_ru)
    r, u = xp.split(gates, [h.shape[1]] * 2, 1)
    c = xp.tanh(xp.concat([x, h * r], axis=1) @ w_c + b_c)
    return [r, u, c, u * h + (1 - u) * c]


@rule("GRUBlockCellGrad")
@with_operators
def gru_block_cell_grad(
    xp: ValueBackend, x: Value, h: Value, w_ru: Value, w_c: Value, b_ru: Value, b_c: Value, r: Value, u: Value,
    c: Value, d: Value,
) -> list[Value]:  # fmt: skip
    """Return the gradients of (x, h, the candidate before its tanh, both gates before their sigmoid)."""
    n = x.shape[1]
    dc = d * (1 - u) * (1 - xp.square(c))
    du = d * (h - c) * (u * (1 - u))
    inner = dc @ xp.matrix_transpose(w_c)
    dx, drh = xp.take_slice(inner, 1, 0, n), xp.take_slice(inner, 1, n, inner.shape[1])
    dr = drh * h * (r * (1 - r))
    gates = xp.concat([dr, du], axis=1)
    outer = gates @ xp.matrix_transpose(w_ru)
    dx = dx + xp.take_slice(outer, 1, 0, n)
    dh = drh * r + d * u + xp.take_slice(outer, 1, n, outer.shape[1])
    return [dx, dh, dc, gates]
