"""The gates of an LSTM after its products, in the order of any framework."""

from __future__ import annotations

from typing import Any


def lstm_gates(xp: Any, gates: Any, order: str = "ifgo") -> tuple[Any, ...]:
    """Return the gates i, f, g (the new state), o after their activations, of sums of products (N, 4 H) that have them
    in `order`.

    The sigmoid is computed of the whole array: XLA for the CPU does not fuse it into the two kernels that read it.
    Fused, each would read four places of a row of the loop, which LLVM does not vectorise: a step of 16 x 256 takes 73
    us instead of 20.
    """
    sizes = (xp.shape(gates)[1] // 4,) * 4
    sigmoid = dict(zip(order, xp.split(xp.sigmoid(gates), sizes, 1), strict=True))
    new = xp.tanh(xp.split(gates, sizes, 1)[order.index("g")])
    return sigmoid["i"], sigmoid["f"], new, sigmoid["o"]
