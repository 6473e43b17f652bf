"""Cells of recurrent networks."""

from __future__ import annotations

import math
from typing import Any

import tensorgraft.array_api as xp
from tensorgraft.array_api import Array
from tensorgraft.frontends.array_api.extensions.neural import sigmoid
from tensorgraft.nn import initial
from tensorgraft.transforms.module import Module, field


def _parts(x: Array, n: int) -> list[Array]:
    size = x.shape[-1] // n
    return [x[..., i * size : (i + 1) * size] for i in range(n)]


class GRUCell(Module):
    """One step of a gated recurrent unit (Cho et al. 2014, arXiv 1406.1078): input (..., input_size), hidden (...,
    hidden_size) to the next hidden state.

    Weights and `bias` are those of the gates reset, update, new, one below the other. `bias_n` is added to the part of
    "new" that is computed from the hidden state, before the reset gate scales it. All are uniform in
    +-1/sqrt(hidden_size).
    """

    weight_ih: Array  # (3 hidden_size, input_size)
    weight_hh: Array  # (3 hidden_size, hidden_size)
    bias: Array | None  # (3 hidden_size,)
    bias_n: Array | None  # (hidden_size,)
    input_size: int = field(static=True)
    hidden_size: int = field(static=True)
    use_bias: bool = field(static=True)

    def __init__(
        self, input_size: int, hidden_size: int, use_bias: bool = True, dtype: Any = None, *, key: Array
    ) -> None:
        dtype, limit = initial.dtype_or_default(dtype), math.sqrt(1 / hidden_size)
        ih, hh, b, bn = initial.keys(key, 4)
        self.weight_ih = initial.uniform(ih, (3 * hidden_size, input_size), dtype, limit)
        self.weight_hh = initial.uniform(hh, (3 * hidden_size, hidden_size), dtype, limit)
        self.bias = initial.uniform(b, (3 * hidden_size,), dtype, limit) if use_bias else None
        self.bias_n = initial.uniform(bn, (hidden_size,), dtype, limit) if use_bias else None
        self.input_size, self.hidden_size, self.use_bias = input_size, hidden_size, use_bias

    def __call__(self, input: Array, hidden: Array, *, key: Array | None = None) -> Array:
        """Return the next hidden state. `key` is ignored: all modules take one, for those that draw random numbers."""
        from_input = xp.matmul(input, self.weight_ih.mT)
        if self.bias is not None:
            from_input = from_input + self.bias
        i_reset, i_update, i_new = _parts(from_input, 3)
        h_reset, h_update, h_new = _parts(xp.matmul(hidden, self.weight_hh.mT), 3)
        reset, update = sigmoid(i_reset + h_reset), sigmoid(i_update + h_update)
        if self.bias_n is not None:
            h_new = h_new + self.bias_n
        new = xp.tanh(i_new + reset * h_new)
        return new + update * (hidden - new)


class LSTMCell(Module):
    """One step of a long short-term memory (Hochreiter and Schmidhuber 1997): input (..., input_size), (hidden, cell)
    of (..., hidden_size) each, to the next pair.

    Weights and `bias` are those of the gates input, forget, cell, output, one below the other, uniform in
    +-1/sqrt(hidden_size).
    """

    weight_ih: Array  # (4 hidden_size, input_size)
    weight_hh: Array  # (4 hidden_size, hidden_size)
    bias: Array | None  # (4 hidden_size,)
    input_size: int = field(static=True)
    hidden_size: int = field(static=True)
    use_bias: bool = field(static=True)

    def __init__(
        self, input_size: int, hidden_size: int, use_bias: bool = True, dtype: Any = None, *, key: Array
    ) -> None:
        dtype, limit = initial.dtype_or_default(dtype), math.sqrt(1 / hidden_size)
        ih, hh, b = initial.keys(key, 3)
        self.weight_ih = initial.uniform(ih, (4 * hidden_size, input_size), dtype, limit)
        self.weight_hh = initial.uniform(hh, (4 * hidden_size, hidden_size), dtype, limit)
        self.bias = initial.uniform(b, (4 * hidden_size,), dtype, limit) if use_bias else None
        self.input_size, self.hidden_size, self.use_bias = input_size, hidden_size, use_bias

    def __call__(self, input: Array, hidden: tuple[Array, Array], *, key: Array | None = None) -> tuple[Array, Array]:
        """Return the next (hidden, cell). `key` is ignored: all modules take one, for those that draw numbers."""
        h, c = hidden
        gates = xp.matmul(input, self.weight_ih.mT) + xp.matmul(h, self.weight_hh.mT)
        if self.bias is not None:
            gates = gates + self.bias
        i, f, g, o = _parts(gates, 4)
        c = sigmoid(f) * c + sigmoid(i) * xp.tanh(g)
        return sigmoid(o) * xp.tanh(c), c
