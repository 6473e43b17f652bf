"""Rules for the attention of `com.microsoft`, with its masks, caches and rotary embeddings."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.frontends.onnx.rules.microsoft import DOMAIN, integer_product
from tensorgraft.hub import dtypes
from tensorgraft.hub.value import Value, with_operators


def _heads(xp: Any, x: Any, heads: int) -> Any:
    """Return (N, L, heads E) as (N, heads, L, E)."""
    n, length, width = x.shape
    return xp.permute_dims(xp.reshape(x, (n, length, heads, width // heads)), (0, 2, 1, 3))


def _joined(xp: Any, x: Any) -> Any:
    n, heads, length, width = x.shape
    return xp.reshape(xp.permute_dims(x, (0, 2, 1, 3)), (n, length, heads * width))


def _padding(xp: Any, mask: Any, batch: int, queries: int, keys: int, filter_value: float, dtype: np.dtype) -> Any:
    """Return the numbers that a mask adds to scores (N, heads, queries, keys).

    The mask is the number of keys of each row (N); their ends and then their starts (2 N); one for a key that counts
    (N, keys), also for each query (N, queries, keys); or (N, 1, M, M), of which the last queries are taken.
    """
    rank = len(mask.shape)
    if rank == 2 and mask.shape[1] == 1 and keys > 1:
        return None  # of no key
    if rank == 1:
        at = xp.iota(keys, dtypes.int32)
        mask = xp.astype(mask, dtypes.int32)
        counted = xp.less(at, xp.expand_dims(xp.take_slice(mask, 0, 0, batch), 1))
        if mask.shape[0] == 2 * batch:
            starts = xp.expand_dims(xp.take_slice(mask, 0, batch, 2 * batch), 1)
            started = xp.greater_equal(at, starts)
            counted = xp.logical_and(counted, started)
        elif mask.shape[0] != batch:
            raise NotImplementedError(f"a mask of shape {tuple(mask.shape)} for {batch} rows is not computed here")
        rank = 2
    else:
        counted = xp.greater(mask, 0)
    if rank == 4:
        start = keys - queries
        counted = xp.take_slice(xp.take_slice(counted, 2, start, keys), 3, 0, keys)
    else:
        counted = xp.reshape(counted, (batch, 1, *((queries,) if rank == 3 else (1,)), keys))
    return xp.where(counted, xp.zeros((), dtype), xp.full((), filter_value, dtype))


def _attended(
    xp: Any, q: Any, k: Any, v: Any, past: Any, mask: Any, bias: Any, causal: int, scale: float, filter_value: float
) -> Any:
    """Return attention by keys and values of which the first are those of `past`, as (N, L, heads E)."""
    batch, _, queries, width = q.shape
    keys, dtype = k.shape[2], xp.dtype_of(q)
    parts = [None if mask is None else _padding(xp, mask, batch, queries, keys, filter_value, dtype), bias]
    if causal:
        visible = xp.triangle_mask(queries, keys, 0 if past is None else past.shape[2])
        parts.append(xp.where(visible, xp.zeros((), dtype), xp.full((), -math.inf, dtype)))
    added = [x for x in parts if x is not None]
    numbers = functools.reduce(xp.add, added) if added else None
    return _joined(xp, xp.dot_product_attention(q, k, v, numbers, scale=scale or width**-0.5))


def _self_attention(
    xp: Any, projected: Any, mask: Any, past: Any, attention_bias: Any, *, num_heads: int, unidirectional: int = 0,
    scale: float = 0.0, mask_filter_value: float = -10000.0, qkv_hidden_sizes: tuple[int, ...] = (),
) -> Any:  # fmt: skip
    widths = list(qkv_hidden_sizes) or [projected.shape[2] // 3] * 3
    q, k, v = (_heads(xp, p, num_heads) for p in xp.split(projected, widths, 2))
    old = (None, None) if past is None else xp.unstack(past, 0)
    k, v = (x if kept is None else xp.concat([kept, x], axis=2) for x, kept in zip((k, v), old, strict=True))
    out = _attended(xp, q, k, v, old[0], mask, attention_bias, unidirectional, scale, mask_filter_value)
    return [out, xp.stack([k, v]) if k.shape == v.shape else None]


@rule("Attention", domain=DOMAIN, like=[_self_attention])
def attention(
    xp: Any, x: Any, weights: Any, bias: Any = None, mask_index: Any = None, past: Any = None,
    attention_bias: Any = None, past_sequence_length: Any = None, *, do_rotary: int = 0,
    past_present_share_buffer: int = 0, **options: Any,
) -> Any:  # fmt: skip
    """Return (attention of x by itself, the keys and values (2, N, heads, length, E))."""
    if do_rotary or past_present_share_buffer:
        raise NotImplementedError("Attention with do_rotary or past_present_share_buffer is not computed here")
    projected = xp.matmul(x, weights)
    projected = projected if bias is None else xp.add(projected, bias)
    return _self_attention(xp, projected, mask_index, past, attention_bias, **options)


@rule("QAttention", domain=DOMAIN, state=("input_scale", "weight_scale"), like=[_self_attention])
def quantized_attention(
    xp: Any, x: Any, weight: Any, bias: Any, input_scale: Any, weight_scale: Any, mask_index: Any = None,
    input_zero_point: Any = None, weight_zero_point: Any = None, past: Any = None, **options: Any,
) -> Any:  # fmt: skip
    projected = integer_product(xp, x, weight, input_scale, weight_scale, input_zero_point, weight_zero_point, bias)
    return _self_attention(xp, projected, mask_index, past, None, **options)


@rule("MultiHeadAttention", domain=DOMAIN)
def multi_head_attention(
    xp: Any, query: Any, key: Any = None, value: Any = None, bias: Any = None, key_padding_mask: Any = None,
    attention_bias: Any = None, past_key: Any = None, past_value: Any = None, past_sequence_length: Any = None,
    cache_indirection: Any = None, *, num_heads: int, scale: float = 0.0, mask_filter_value: float = -10000.0,
    unidirectional: int = 0, node: Any = None,
) -> Any:  # fmt: skip
    """Keys and values are (N, L, heads E) or (N, heads, L, E), or packed with the queries (N, L, heads, 3, E) or with
    each other (N, L, heads, 2, E)."""
    if past_sequence_length is not None or cache_indirection is not None or len(node.outputs) > 3:
        raise NotImplementedError(
            "MultiHeadAttention with past_sequence_length, cache_indirection or the output qk is not computed here"
        )
    if len(query.shape) == 5:
        query, key, value = (_flat(xp, p) for p in xp.unstack(query, 3))
    elif key is not None and len(key.shape) == 5:
        key, value = (_flat(xp, p) for p in xp.unstack(key, 3))
    if bias is not None:
        width = query.shape[2]
        parts = xp.split(bias, [width, width, bias.shape[0] - 2 * width], 0)
        query = xp.add(query, parts[0])
        if len(key.shape) == 3:
            key, value = xp.add(key, parts[1]), xp.add(value, parts[2])
    q, k, v = (x if len(x.shape) == 4 else _heads(xp, x, num_heads) for x in (query, key, value))
    k, v = (x if p is None else xp.concat([p, x], axis=2) for x, p in ((k, past_key), (v, past_value)))
    out = _attended(xp, q, k, v, past_key, key_padding_mask, attention_bias, unidirectional, scale, mask_filter_value)
    return [out, k, v]


def _flat(xp: Any, x: Any) -> Any:
    n, length, heads, width = x.shape
    return xp.reshape(x, (n, length, heads * width))


# ---- rotary embeddings -----------------------------------------------------------------------------------------------


def rotated(xp: Any, x: Any, cos: Any, sin: Any, interleaved: bool, width: int = 0) -> Any:
    """Rotate pairs of the first `width` elements of x (N, heads, L, E) by angles (N, 1, L, width / 2): neighbours if
    interleaved, else those half of the width apart (Su and others 2021)."""
    full = x.shape[3]
    width = width or full
    rest = xp.take_slice(x, 3, width, full) if width < full else None
    x = xp.take_slice(x, 3, 0, width) if rest is not None else x
    if interleaved:
        pairs = xp.unstack(xp.reshape(x, (*x.shape[:3], width // 2, 2)), 4)
    else:
        pairs = xp.split(x, [width // 2] * 2, 3)
    first, second = _rotation(xp, *pairs, cos, sin)
    y = xp.reshape(xp.stack([first, second], axis=4), x.shape) if interleaved else xp.concat([first, second], axis=3)
    return y if rest is None else xp.concat([y, rest], axis=3)


@with_operators
def _rotation(xp: Any, a: Value, b: Value, cos: Value, sin: Value) -> list[Value]:
    return [a * cos - b * sin, a * sin + b * cos]


def _angles(xp: Any, cache: Any, positions: Any, batch: int, length: int) -> Any:
    """Return rows of a cache (M, E) at positions (N, L), or from the first position on (1): (N or 1, 1, L, E)."""
    if len(positions.shape) == 1 or (positions.shape == (1, 1) and (batch, length) != (1, 1)):
        positions = xp.expand_dims(xp.add(xp.reshape(positions, (1,)), xp.iota(length, xp.dtype_of(positions))), 0)
    return xp.expand_dims(xp.take(cache, positions, 0), 1)


@rule("RotaryEmbedding", domain=DOMAIN)
def rotary_embedding(
    xp: Any, x: Any, position_ids: Any, cos_cache: Any, sin_cache: Any, *, interleaved: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0, scale: float = 1.0, is_packed_batching: int = 0,
) -> Any:  # fmt: skip
    is_flat = len(x.shape) == 3
    if is_flat:
        width = x.shape[2] // num_heads if num_heads else cos_cache.shape[1] * 2
        y = _heads(xp, x, x.shape[2] // width)
    else:
        y = x
    cos, sin = (_angles(xp, c, position_ids, y.shape[0], y.shape[2]) for c in (cos_cache, sin_cache))
    y = rotated(xp, y, cos, sin, bool(interleaved), rotary_embedding_dim)
    return _joined(xp, y) if is_flat else y


# ---- grouped queries -------------------------------------------------------------------------------------------------

REFUSED = ("k_scale", "v_scale", "q_norm_weight", "k_norm_weight", "query_seqlens")


@rule("GroupQueryAttention", domain=DOMAIN)
def group_query_attention(
    xp: Any, query: Any, key: Any, value: Any, past_key: Any, past_value: Any, seqlens_k: Any,
    total_sequence_length: Any, cos_cache: Any = None, sin_cache: Any = None, position_ids: Any = None,
    attention_bias: Any = None, head_sink: Any = None, k_scale: Any = None, v_scale: Any = None,
    q_norm_weight: Any = None, k_norm_weight: Any = None, query_seqlens: Any = None, *, num_heads: int,
    kv_num_heads: int, do_rotary: int = 0, rotary_interleaved: int = 0, scale: float = 0.0, softcap: float = 0.0,
    local_window_size: int = -1, smooth_softmax: int = 0, causal: int = 1, node: Any = None,
) -> Any:  # fmt: skip
    """Return (causal attention, its keys, its values) of queries that continue rows of `seqlens_k + 1` tokens."""
    given = (k_scale, v_scale, q_norm_weight, k_norm_weight, query_seqlens)
    if strange := [n for n, x in zip(REFUSED, given, strict=True) if x is not None]:
        raise NotImplementedError(f"GroupQueryAttention with {strange[0]} is not computed here")
    if len(node.outputs) > 3 or causal != 1:
        raise NotImplementedError("GroupQueryAttention with causal=0 or the output qk is not computed here")
    if key is None:
        width = query.shape[2] // (num_heads + 2 * kv_num_heads)
        query, key, value = xp.split(query, [width * n for n in (num_heads, kv_num_heads, kv_num_heads)], 2)
    q, k, v = _heads(xp, query, num_heads), _heads(xp, key, kv_num_heads), _heads(xp, value, kv_num_heads)
    length, kept = q.shape[2], 0 if past_key is None else past_key.shape[2]
    total = _known_total(xp, total_sequence_length, kept + length)
    is_first = total == length
    ends = xp.add(xp.astype(xp.reshape(seqlens_k, (q.shape[0],)), dtypes.int32), 1)
    starts = xp.zeros_like(ends) if is_first else xp.subtract(ends, length)
    starts = xp.expand_dims(starts, 1)
    at = xp.add(starts, xp.iota(length, dtypes.int32))  # the position of each query (N, L)
    if do_rotary:
        places = at if position_ids is None else position_ids
        cos, sin = (_angles(xp, c, places, *at.shape) for c in (cos_cache, sin_cache))
        q, k = (rotated(xp, x, cos, sin, bool(rotary_interleaved), 2 * cos_cache.shape[1]) for x in (q, k))
    size = max(kept, total)
    if kept:
        k, v = (_placed(xp, old, new, starts, size) for old, new in ((past_key, k), (past_value, v)))
    keys = xp.iota(size, dtypes.int32)
    visible = xp.less_equal(keys, xp.expand_dims(at, 2))
    if local_window_size > 0:
        first = xp.subtract(at, local_window_size)
        recent = xp.greater(keys, xp.expand_dims(first, 2))
        visible = xp.logical_and(visible, recent)
    visible = xp.expand_dims(visible, 1)
    scale = scale or q.shape[3] ** -0.5
    if softcap or smooth_softmax or head_sink is not None:
        weights = _capped_weights(xp, q, k, visible, attention_bias, scale, softcap, smooth_softmax, head_sink)
        out = xp.matmul(weights, xp.repeat(v, num_heads // kv_num_heads, 1))
    else:
        if attention_bias is not None:
            bias = attention_bias
            short = size - bias.shape[3]
            bias = xp.pad(bias, 0, [(0, 0, 0)] * 3 + [(0, short, 0)]) if short > 0 else bias
            visible = xp.where(visible, bias, xp.full((), -math.inf, xp.dtype_of(bias)))
        out = xp.dot_product_attention(q, k, v, visible, scale=scale)
    return [_joined(xp, out), k, v]


def _known_total(xp: Any, total: Any, usual: int) -> int:
    """Return how many keys there are; the usual number if a trace does not know it."""
    if isinstance(total, np.ndarray):
        return int(total.reshape(()))
    return usual if xp.is_traced(total) else int(xp.to_numpy(total).reshape(()))


def _placed(xp: Any, old: Any, new: Any, starts: Any, size: int) -> Any:
    """Return (N, heads, size, E): of each row the old entries before its start, then the new ones, then zeros."""
    kept, length = old.shape[2], new.shape[2]
    at = xp.iota(size, dtypes.int32)
    end = xp.full((), kept + length, dtypes.int32)
    shift = xp.subtract(starts, kept)
    offset = xp.subtract(at, shift)
    source = xp.where(xp.less(at, starts), at, xp.where(xp.less(offset, kept + length), offset, end))
    entries = xp.pad(xp.concat([old, new], axis=2), 0, [(0, 0, 0), (0, 0, 0), (0, 1, 0), (0, 0, 0)])
    index = xp.astype(xp.reshape(source, (source.shape[0], 1, size, 1)), dtypes.int64)
    return xp.take_along_axis(entries, xp.broadcast_to(index, (*old.shape[:2], size, old.shape[3])), 2)


def _capped_weights(
    xp: Any, q: Any, k: Any, visible: Any, bias: Any, scale: float, softcap: float, smooth: int, sink: Any
) -> Any:
    """Return softmax weights (N, heads, L, S) of scores below `softcap`, with one more number in the sums: that of the
    head in `sink`, or 0."""
    dtype, heads = xp.dtype_of(q), q.shape[1]
    k = xp.repeat(k, heads // k.shape[1], 1)
    q = xp.multiply(q, scale)
    scores = xp.matmul(q, xp.matrix_transpose(k))
    if softcap:
        scores = xp.multiply(xp.tanh(xp.divide(scores, softcap)), softcap)
    scores = scores if bias is None else xp.add(scores, bias)
    scores = xp.where(visible, scores, xp.full((), -math.inf, dtype))
    if not smooth and sink is None:
        return xp.softmax(scores, 3)
    more = xp.zeros((1, 1, 1, 1), dtype) if sink is None else xp.reshape(sink, (1, heads, 1, 1))
    scores = xp.concat([scores, xp.broadcast_to(more, (*scores.shape[:3], 1))], axis=3)
    return xp.take_slice(xp.softmax(scores, 3), 3, 0, scores.shape[3] - 1)
