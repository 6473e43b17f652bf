"""Attention and its gradients (Vaswani et al. 2017, arXiv 1706.03762; the softmax's parts as in Dao et al. 2022, arXiv
2205.14135): the residual of the backward pass is one number for each query."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array

# Under a causal mask queries are computed in at most PARTS parts of at least ROWS queries, each with only the keys that
# its queries may see.
ROWS, PARTS = 256, 4


class Attention:
    """Queries are (N, H, L, E), keys (N, G, S, E) and values (N, G, S, F) of one floating dtype; H is a multiple of G,
    each head of keys belongs to H / G heads of queries. A mask broadcasts to (N, H, L, S): bool, True where a query
    attends to a key, or numbers that are added to the scores. `causal`: query i attends to the keys up to i. `scale`,
    1 / sqrt(E) by default, multiplies the scores. Sums are computed in at least float32; the softmax is rounded to the
    dtype before it is multiplied with the values.
    """

    def attention(
        self: Any, q: Array, k: Array, v: Array, mask: Array | None = None, causal: bool = False,
        scale: float | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Return (softmax(scale q k^T + mask) v (N, H, L, F), the logarithm of the softmax's denominator (N, H, L) in
        at least float32); both are zero for a query that attends to no key."""
        dtype = self.dtype_of(q)
        wide = dtypes.accumulator(dtype)
        outputs, norms = [], []
        for first, last, keys in _parts(self.shape(q)[2], self.shape(k)[2], causal):
            scores, _ = _scores(self, q, k, mask, causal, scale, first, last, keys)
            high = self.max(scores, axis=3, keepdims=True)
            if mask is not None or not keys:  # there may be rows without a key: exp(-inf - 0) is zero
                high = self.where(self.equal(high, np.array(-np.inf, wide).item()), self.zeros_like(high), high)
            exps = self.exp(self.subtract(scores, high))
            total = self.sum(exps, axis=3, keepdims=True)
            if mask is not None or not keys:
                total = self.where(self.equal(total, 0), self.ones_like(total), total)
            product = _product(self, self.astype(exps, dtype), self.take_slice(v, 2, 0, keys), 3, 2, wide)
            outputs.append(self.astype(self.divide(product, total), dtype))
            norms.append(self.squeeze(self.add(high, self.log(total)), 3))
        return _joined(self, outputs), _joined(self, norms)

    def attention_gradients(
        self: Any, grad: Array, q: Array, k: Array, v: Array, out: Array, norm: Array, mask: Array | None = None,
        causal: bool = False, scale: float | None = None,
    ) -> tuple[Array, Array, Array]:  # fmt: skip
        """Return the gradients of q, k and v from that of `out`; `out` and `norm` are the results of `attention`."""
        dtype = self.dtype_of(q)
        wide = dtypes.accumulator(dtype)
        factor = 1 / math.sqrt(self.shape(q)[3]) if scale is None else scale
        mean = self.sum(self.multiply(self.astype(grad, wide), self.astype(out, wide)), axis=3, keepdims=True)
        d_q: list[Array] = []
        d_k: Any = None
        d_v: Any = None
        for first, last, keys in _parts(self.shape(q)[2], self.shape(k)[2], causal):
            scores, scaled = _scores(self, q, k, mask, causal, scale, first, last, keys)
            rows = [self.take_slice(x, 2, first, last) for x in (norm, mean, grad)]
            p = self.exp(self.subtract(scores, self.expand_dims(rows[0], 3)))
            d_p = _product(self, rows[2], self.take_slice(v, 2, 0, keys), 3, 3, wide)
            d_scores = self.multiply(p, self.subtract(d_p, rows[1]))
            if wide != dtype:  # `_scores` has then scaled the scores, not the queries
                d_scores = self.astype(self.multiply(d_scores, factor), dtype)
            row = _product(self, d_scores, self.take_slice(k, 2, 0, keys), 3, 2, wide)
            d_q.append(self.multiply(row, factor) if wide == dtype else row)
            d_k = _plus(self, d_k, _gathered(self, d_scores, scaled, k, wide))
            d_v = _plus(self, d_v, _gathered(self, self.astype(p, dtype), rows[2], v, wide))
        full = self.shape(k)[2]
        return tuple(self.astype(x, dtype) for x in (_joined(self, d_q), *(_padded(self, x, full) for x in (d_k, d_v))))


def _parts(queries: int, keys: int, causal: bool) -> Iterator[tuple[int, int, int]]:
    """Yield (first query, the one after the last, number of keys that they attend to). Under a causal mask long
    sequences are divided, so that no scores are computed for most of the later keys."""
    n = min(PARTS, queries // ROWS) if causal else 0
    size = -(-queries // n) if n else queries
    for first in range(0, queries, size) if size else (0,):
        last = min(first + size, queries)
        yield first, last, min(last, keys) if causal else keys


def _scores(
    xp: Any, q: Array, k: Array, mask: Array | None, causal: bool, scale: float | None, first: int, last: int, keys: int
) -> tuple[Array, Array]:
    """Return (the scores (N, H, last - first, keys), the queries, scaled if they are in the dtype of the sums)."""
    dtype = xp.dtype_of(q)
    wide = dtypes.accumulator(dtype)
    factor = 1 / math.sqrt(xp.shape(q)[3]) if scale is None else scale
    q = xp.take_slice(q, 2, first, last)
    if wide == dtype:  # cheaper than to scale the scores, which are more
        q = xp.multiply(q, factor)
    scores = _product(xp, q, xp.take_slice(k, 2, 0, keys), 3, 3, wide)
    if wide != dtype:
        scores = xp.multiply(scores, factor)
    hidden = xp.full((), -np.inf, wide)
    if causal:
        positions = xp.expand_dims(xp.add(xp.iota(last - first, dtypes.int32), first), 1)
        scores = xp.where(xp.greater_equal(positions, xp.iota(keys, dtypes.int32)), scores, hidden)
    if mask is not None:
        shape = xp.shape(mask)
        if len(shape) > 1 and shape[-2] > 1:
            mask = xp.take_slice(mask, len(shape) - 2, first, last)
        if shape and shape[-1] > 1:
            mask = xp.take_slice(mask, len(shape) - 1, 0, keys)
        is_boolean = dtypes.is_bool(xp.dtype_of(mask))
        scores = xp.where(mask, scores, hidden) if is_boolean else xp.add(scores, xp.astype(mask, wide))
    return scores, q


def _product(xp: Any, a: Array, b: Array, i: int, j: int, dtype: np.dtype) -> Array:
    """Contract a (N, H, L, ...) along `i` and b (N, G, ...) along `j`, to (N, H, L, ...). The H / G heads of `a` that
    share a head of `b` are joined into one matrix."""
    n, heads, rows, width = xp.shape(a)
    shared = xp.shape(b)[1]
    if heads != shared:
        a = xp.reshape(a, (n, shared, (heads // shared if shared else 1) * rows, width))
    out = xp.dot_general(a, b, ((i,), (j,)), ((0, 1), (0, 1)), dtype)
    return out if heads == shared else xp.reshape(out, (n, heads, rows, xp.shape(out)[3]))


def _gathered(xp: Any, weights: Array, rows: Array, like: Array, dtype: np.dtype) -> Array:
    """Compute weights^T rows (N, G, keys, width), of weights (N, H, L, keys) and rows (N, H, L, width)."""
    shared = xp.shape(like)[1]
    merged = []
    for x in (weights, rows):
        n, heads, count, width = xp.shape(x)
        merged.append(x if heads == shared else xp.reshape(x, (n, shared, heads // shared * count, width)))
    return xp.dot_general(*merged, ((2,), (2,)), ((0, 1), (0, 1)), dtype)


def _joined(xp: Any, parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=2)


def _plus(xp: Any, total: Array | None, x: Array) -> Array:
    """Add `x` to `total`, padded with zeros to its number of keys."""
    return x if total is None else xp.add(_padded(xp, total, xp.shape(x)[2]), x)


def _padded(xp: Any, x: Array, keys: int) -> Array:
    n, heads, length, width = xp.shape(x)
    return x if length == keys else xp.concat([x, xp.zeros((n, heads, keys - length, width), xp.dtype_of(x))], axis=2)


__all__ = ["Attention"]
