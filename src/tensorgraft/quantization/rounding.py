"""GPTQ: rounding that makes up, in the columns to come, for the error of those that are rounded (Frantar et al., arXiv
2210.17323). Computed on the host in float64: it is done once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorgraft.hub import registry
from tensorgraft.quantization.observers import observed
from tensorgraft.quantization.public import front_end
from tensorgraft.quantization.quantized import Quantized
from tensorgraft.quantization.scheme import Scheme, scheme_of
from tensorgraft.storage import whole

_TOGETHER = 128  # columns whose errors reach those beyond in one product


def gptq(w: Any, inputs: Any, scheme: str | Scheme, *, damping: float = 0.01, observer: str = "minmax") -> Any:
    """A weight quantised so that `x @ w.T` changes least, in the mean square, for the `inputs` x.

    Arguments:
        w: (N, K), an array of `tensorgraft.array_api` or a `torch.Tensor` on the device: the weight of a Linear.
        inputs: (..., K), or an iterable of such: what goes into it.
        scheme, observer: as `tg.quantize` takes them.
        damping: of the mean of the diagonal of x.T @ x, what is added to it.

    Returns what `tg.quantize` returns.

    Raises ValueError for other shapes, inputs or weights that are not finite, and where there are no inputs; else as
    `tg.quantize` does.
    """
    found, front = scheme_of(scheme), front_end(w)
    if front is None:
        raise TypeError(
            f"gptq: expected an array of tensorgraft.array_api or a tensor on tg.device(...), got a"
            f" {type(w).__module__}.{type(w).__qualname__}"
        )
    if len(w.shape) != 2:
        raise ValueError(f"gptq: the weight of a Linear has the shape (N, K), got {tuple(w.shape)}")
    if damping <= 0:
        raise ValueError(f"gptq: damping is {damping}: it is to be more than 0")
    host = front.host(w)
    if not np.isfinite(host.astype(np.float64)).all():
        raise ValueError(f"gptq: the weight of shape {host.shape} has NaN or infinite values")
    batches = (inputs,) if hasattr(inputs, "shape") else inputs
    return front.placed(rounded(host, second_moments(batches, host.shape[1]), found, damping, observer), w)


def second_moments(batches: Iterable[Any], k: int) -> np.ndarray:
    """(K, K) float64: the sum of x.T @ x."""
    total, rows = np.zeros((k, k)), 0
    for n, batch in enumerate(batches):
        front = front_end(batch)
        x = np.asarray(batch if front is None else front.host(batch)).astype(np.float64)
        if x.ndim < 1 or x.shape[-1] != k:
            raise ValueError(f"gptq: inputs of the weight have the shape (..., {k}), batch {n} has {x.shape}")
        if not np.isfinite(x).all():
            raise ValueError(f"gptq: batch {n} of the inputs, of shape {x.shape}, has NaN or infinite values")
        x = x.reshape(-1, k)
        total += x.T @ x
        rows += len(x)
    if not rows:
        raise ValueError("gptq: there are no inputs")
    return total


def rounded(w: np.ndarray, moments: np.ndarray, scheme: Scheme, damping: float, observer: str) -> Quantized:
    """In arrays of NumPy's backend."""
    xp = registry.get("numpy")
    (n, k), codes = w.shape, scheme.codes
    rows, columns = scheme.blocks((n, k))
    left = w.astype(np.float64)
    upper = _inverse_root(moments, damping)
    found = np.zeros((n, k), codes.dtype)
    scales: list[Any] = []
    zeros: list[Any] = []
    for start in range(0, k, _TOGETHER):
        stop = min(start + _TOGETHER, k)
        errors = np.zeros((n, stop - start))
        for i in range(start, stop):
            if i % columns == 0:  # a group begins: its range is that of what it has become
                reach = slice(i, i + columns)
                pending = errors[:, : i - start] @ upper[start:i, reach]
                pending[:, : max(stop - i, 0)] = 0  # these columns have it already
                now = (left[:, reach] - pending).astype(np.float32)
                scale, zero = observed(xp, now, scheme, (rows, columns), observer)
                scales.append(scale)
                zeros.append(zero)
                wide = np.repeat(scale[:, 0], rows)
                middle = 0.0 if zero is None else np.repeat(zero[:, 0], rows) * (-1.0 / wide if scheme.offset else 1.0)
            code = codes.encode(xp, (left[:, i] / wide + middle).astype(np.float32))
            found[:, i] = code
            value = (codes.decode(xp, code).astype(np.float64) - middle) * wide
            errors[:, i - start] = (left[:, i] - value) / upper[i, i]
            left[:, i:stop] -= errors[:, i - start, None] * upper[i, i:stop]
        left[:, stop:] -= errors @ upper[start:stop, stop:]
    zero = None if zeros[0] is None else np.concatenate(zeros, 1)
    return Quantized(codes.pack(xp, found), np.concatenate(scales, 1), zero, (n, k), whole((n, k), w.dtype), scheme)


def _inverse_root(moments: np.ndarray, damping: float) -> np.ndarray:
    """Upper triangular U with U.T @ U the inverse of the damped moments; an input that is always 0 counts as 1."""
    h = moments.copy()
    diagonal = np.einsum("ii->i", h)
    diagonal[diagonal == 0] = 1.0
    diagonal += damping * diagonal.mean()
    return np.linalg.cholesky(np.linalg.inv(h)).T
