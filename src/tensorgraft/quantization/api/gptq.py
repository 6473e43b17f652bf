"""GPTQ of one weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.quantization.api.arrays import front_end, numbers_of
from tensorgraft.quantization.input_ranges import range_of, with_range
from tensorgraft.quantization.recorded_weight import Product
from tensorgraft.quantization.rounding import Moments, check_damping, rounded
from tensorgraft.quantization.scheme import Scheme, scheme_of


def gptq(
    w: Any,
    inputs: Any,
    scheme: str | Scheme,
    *,
    damping: float = 0.01,
    observer: str = "minmax",
    activation_observer: str = "minmax",
) -> Any:
    """Return a weight quantised so that the mean square change of `x @ w.T` is least for the `inputs` x.

    Arguments:
        w: (N, K), an array of `tensorgraft.array_api` or a `torch.Tensor`: the weight of a Linear.
        inputs: the inputs (..., K) of the Linear, or an iterable of them.
        scheme, observer, activation_observer: as `tg.quantize` takes them.
        damping: the fraction of the mean of the diagonal of x.T @ x that is added to the diagonal.

    Returns what `tg.quantize` returns. Of a whole model: `tg.quantize_(..., rounding="gptq")`.

    Raises ValueError for other shapes, inputs or weights that are not finite, and where there are no inputs; else as
    `tg.quantize` does.
    """
    resolved, front = scheme_of(scheme), front_end(w)
    if front is None:
        raise TypeError(
            f"gptq: expected an array of tensorgraft.array_api or a tensor on the CPU or tg.device(...), got a"
            f" {type(w).__module__}.{type(w).__qualname__}"
        )
    if len(w.shape) != 2:
        raise ValueError(f"gptq: expected the weight of a Linear, of shape (N, K), got {tuple(w.shape)}")
    check_damping("gptq", damping)
    host = front.host(w)
    moments, limits = Moments(host.shape), range_of(resolved, activation_observer)
    for x in numbers_of(inputs, "gptq", host.shape[1]):
        moments.update(Product(x, 1, np.arange(host.shape[1])))
        if limits is not None:
            limits.update(x)
    return front.placed_like(with_range(rounded(host, moments, resolved, damping, observer), limits), w)
