"""Cells of recurrent layers that are one operation, whole sequences of them, and their derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.rule import rule
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@rule("LSTMBlockCell")
def lstm_block_cell(
    xp: Backend, x: Array, c: Array, h: Array, w: Array, wci: Array, wcf: Array, wco: Array, b: Array, *,
    forget_bias: float = 1.0, cell_clip: float = 3.0, use_peephole: bool = False,
) -> list[Array]:  # fmt: skip
    """(i, c, f, o, ci, co, h): gates in the order input, new, forget, output."""
    gates = xp.add(xp.matmul(xp.concat([x, h], axis=1), w), b)
    i, ci, f, o = xp.split(gates, [xp.shape(c)[1]] * 4, 1)
    f = xp.add(f, forget_bias)
    if use_peephole:
        i, f = xp.add(i, xp.multiply(c, wci)), xp.add(f, xp.multiply(c, wcf))
    i, f, ci = xp.sigmoid(i), xp.sigmoid(f), xp.tanh(ci)
    new = xp.add(xp.multiply(ci, i), xp.multiply(c, f))
    if cell_clip > 0:
        new = xp.clip(new, -cell_clip, cell_clip)
    o = xp.add(o, xp.multiply(new, wco)) if use_peephole else o
    o, co = xp.sigmoid(o), xp.tanh(new)
    return [i, new, f, o, ci, co, xp.multiply(co, o)]


@rule("BlockLSTM", "BlockLSTMV2", known=(0,))
def block_lstm(
    xp: Backend, steps: np.ndarray, x: Array, c: Array, h: Array, w: Array, wci: Array, wcf: Array, wco: Array,
    b: Array, *, forget_bias: float = 1.0, cell_clip: float = 3.0, use_peephole: bool = False, node: Any,
) -> list[Array]:  # fmt: skip
    """Zeros behind the longest sequence. The second version has gates in another order, and no bias for one."""
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


def _second_order(xp: Backend, v: Array) -> Array:
    axis = xp.ndim(v) - 1
    i, f, ci, o = xp.split(v, [xp.shape(v)[axis] // 4] * 4, axis)
    return xp.concat([i, ci, f, o], axis=axis)


@rule("LSTMBlockCellGrad")
def lstm_block_cell_grad(
    xp: Backend, x: Array, c: Array, h: Array, w: Array, wci: Array, wcf: Array, wco: Array, b: Array, i: Array,
    new: Array, f: Array, o: Array, ci: Array, co: Array, d_new: Array, d_h: Array, *, use_peephole: bool,
) -> list[Array]:  # fmt: skip
    """(that of the state before, of the four gates before their functions, of the three peepholes)."""

    def scaled(*factors: Array) -> Array:
        whole = factors[0]
        for factor in factors[1:]:
            whole = xp.multiply(whole, factor)
        return whole

    def of_sigmoid(y: Array) -> Array:
        return xp.multiply(y, xp.subtract(1, y))

    def of_tanh(y: Array) -> Array:
        return xp.subtract(1, xp.square(y))

    do = scaled(of_sigmoid(o), d_h, co)
    dc = xp.add(scaled(of_tanh(co), d_h, o), d_new)
    if use_peephole:
        dc = xp.add(dc, xp.multiply(do, wco))
    dci, df, di = scaled(of_tanh(ci), dc, i), scaled(of_sigmoid(f), dc, c), scaled(of_sigmoid(i), dc, ci)
    before = xp.multiply(dc, f)
    peepholes = [xp.zeros_like(v) for v in (wci, wcf, wco)]
    if use_peephole:
        before = xp.add(before, xp.add(xp.multiply(di, wci), xp.multiply(df, wcf)))
        peepholes = [xp.sum(xp.multiply(a, s), axis=0) for a, s in ((di, c), (df, c), (do, new))]
    return [before, xp.concat([di, dci, df, do], axis=1), *peepholes]


@rule("BlockLSTMGrad", "BlockLSTMGradV2", known=(0,))
def block_lstm_grad(
    xp: Backend, steps: np.ndarray, x: Array, c: Array, h: Array, w: Array, wci: Array, wcf: Array, wco: Array,
    b: Array, *sequences: Array, use_peephole: bool, node: Any,
) -> list[Array]:  # fmt: skip
    """`sequences`: the seven results of the forward operation, and the derivatives of states and outputs."""
    second = node.op == "BlockLSTMGradV2"
    if second:
        w, b = (_second_order(xp, v) for v in (w, b))
    total, width = xp.shape(x)[:1][0], xp.shape(x)[2]
    i, cs, f, o, ci, co, hs, d_cs, d_hs = (xp.unstack(s, 0) for s in sequences)
    rows = xp.unstack(x, 0)
    dx: list[Array] = [xp.zeros_like(row) for row in rows]
    dc, dh = xp.zeros_like(c), xp.zeros_like(h)
    dw, db, peepholes = xp.zeros_like(w), xp.zeros_like(b), [xp.zeros_like(v) for v in (wci, wcf, wco)]
    for t in reversed(range(min(int(steps), total))):
        before, out = (cs[t - 1], hs[t - 1]) if t else (c, h)
        dc, gates, *more = lstm_block_cell_grad(
            xp, rows[t], before, out, w, wci, wcf, wco, b, i[t], cs[t], f[t], o[t], ci[t], co[t],
            xp.add(d_cs[t], dc), xp.add(d_hs[t], dh), use_peephole=use_peephole,
        )  # fmt: skip
        both = xp.matmul(gates, xp.matrix_transpose(w))
        dx[t], dh = xp.take_slice(both, 1, 0, width), xp.take_slice(both, 1, width, xp.shape(both)[1])
        dw = xp.add(dw, xp.matmul(xp.matrix_transpose(xp.concat([rows[t], out], axis=1)), gates))
        db = xp.add(db, xp.sum(gates, axis=0))
        peepholes = [xp.add(a, p) for a, p in zip(peepholes, more, strict=True)]
    if second:
        dw, db = (_second_order(xp, v) for v in (dw, db))
    return [xp.stack(dx, axis=0), dc, dh, dw, *peepholes, db]


@rule("GRUBlockCell")
def gru_block_cell(xp: Backend, x: Array, h: Array, w_ru: Array, w_c: Array, b_ru: Array, b_c: Array) -> list[Array]:
    both = xp.sigmoid(xp.add(xp.matmul(xp.concat([x, h], axis=1), w_ru), b_ru))
    r, u = xp.split(both, [xp.shape(h)[1]] * 2, 1)
    c = xp.tanh(xp.add(xp.matmul(xp.concat([x, xp.multiply(h, r)], axis=1), w_c), b_c))
    return [r, u, c, xp.add(xp.multiply(u, h), xp.multiply(xp.subtract(1, u), c))]


@rule("GRUBlockCellGrad")
def gru_block_cell_grad(
    xp: Backend, x: Array, h: Array, w_ru: Array, w_c: Array, b_ru: Array, b_c: Array, r: Array, u: Array, c: Array,
    d: Array,
) -> list[Array]:  # fmt: skip
    """(that of x, of h, of the candidate before its tanh, of both gates before their sigmoid)."""
    n = xp.shape(x)[1]
    dc = xp.multiply(xp.multiply(d, xp.subtract(1, u)), xp.subtract(1, xp.square(c)))
    du = xp.multiply(xp.multiply(d, xp.subtract(h, c)), xp.multiply(u, xp.subtract(1, u)))
    inner = xp.matmul(dc, xp.matrix_transpose(w_c))
    dx, drh = xp.take_slice(inner, 1, 0, n), xp.take_slice(inner, 1, n, xp.shape(inner)[1])
    dr = xp.multiply(xp.multiply(drh, h), xp.multiply(r, xp.subtract(1, r)))
    gates = xp.concat([dr, du], axis=1)
    outer = xp.matmul(gates, xp.matrix_transpose(w_ru))
    dx = xp.add(dx, xp.take_slice(outer, 1, 0, n))
    dh = xp.add(xp.add(xp.multiply(drh, r), xp.multiply(d, u)), xp.take_slice(outer, 1, n, xp.shape(outer)[1]))
    return [dx, dh, dc, gates]
