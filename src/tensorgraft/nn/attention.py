"""Attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorgraft.array_api as xp
from tensorgraft.array_api import Array
from tensorgraft.frontends.array_api.extensions.neural import attention_weights
from tensorgraft.nn import initial
from tensorgraft.nn.linear import Linear
from tensorgraft.nn.regularisation import Dropout
from tensorgraft.transforms.module import Module, field


def dot_product_attention(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    """Compute softmax(query key^T / sqrt(size)) value, of (..., q, size), (..., kv, size) and (..., kv, width). `mask`,
    which broadcasts to (..., q, kv), is true for keys that a query may attend to (Vaswani et al. 2017, arXiv
    1706.03762).

    Returns (..., q, width). Raises TypeError for operands that are not floating-point arrays, ValueError for other
    shapes.
    """
    return xp.matmul(attention_weights(query, key, mask), value)


class MultiheadAttention(Module):
    """Attention of several heads, for query (..., q, query_size), key (..., kv, key_size), value (..., kv, value_size)
    to (..., q, output_size) (Vaswani et al. 2017, arXiv 1706.03762)."""

    query_proj: Linear
    key_proj: Linear
    value_proj: Linear
    output_proj: Linear
    dropout: Dropout
    num_heads: int = field(static=True)
    query_size: int = field(static=True)
    key_size: int = field(static=True)
    value_size: int = field(static=True)
    output_size: int = field(static=True)
    qk_size: int = field(static=True)
    vo_size: int = field(static=True)
    use_query_bias: bool = field(static=True)
    use_key_bias: bool = field(static=True)
    use_value_bias: bool = field(static=True)
    use_output_bias: bool = field(static=True)

    def __init__(
        self,
        num_heads: int,
        query_size: int,
        key_size: int | None = None,
        value_size: int | None = None,
        output_size: int | None = None,
        qk_size: int | None = None,
        vo_size: int | None = None,
        use_query_bias: bool = False,
        use_key_bias: bool = False,
        use_value_bias: bool = False,
        use_output_bias: bool = False,
        dropout_p: float = 0.0,
        inference: bool = False,
        dtype: Any = None,
        *,
        key: Array,
    ) -> None:
        """`qk_size`, `vo_size`: of one head, by default query_size // num_heads; other sizes are query_size."""
        self.num_heads, self.query_size = num_heads, query_size
        self.key_size = query_size if key_size is None else key_size
        self.value_size = query_size if value_size is None else value_size
        self.output_size = query_size if output_size is None else output_size
        self.qk_size = query_size // num_heads if qk_size is None else qk_size
        self.vo_size = query_size // num_heads if vo_size is None else vo_size
        self.use_query_bias, self.use_key_bias = use_query_bias, use_key_bias
        self.use_value_bias, self.use_output_bias = use_value_bias, use_output_bias
        qkey, kkey, vkey, okey = initial.keys(key, 4)
        inner, outer = num_heads * self.qk_size, num_heads * self.vo_size
        self.query_proj = Linear(query_size, inner, use_query_bias, dtype, key=qkey)
        self.key_proj = Linear(self.key_size, inner, use_key_bias, dtype, key=kkey)
        self.value_proj = Linear(self.value_size, outer, use_value_bias, dtype, key=vkey)
        self.output_proj = Linear(outer, self.output_size, use_output_bias, dtype, key=okey)
        self.dropout = Dropout(dropout_p, inference)

    def __call__(
        self,
        query: Array,
        key_: Array,
        value: Array,
        mask: Array | None = None,
        *,
        key: Array | None = None,
        inference: bool | None = None,
        process_heads: Callable[[Array, Array, Array], tuple[Array, Array, Array]] | None = None,
    ) -> Array:
        """
        Arguments:
            mask: True where a query may attend to a key: (q, kv), or (heads, q, kv), or with leading batch axes.
            key: for dropout.
            process_heads: a function of the projections, (..., sequence, heads, size) each, that is applied before the
                attention.

        Raises ValueError if key and value have different lengths.
        """
        if key_.shape[:-1] != value.shape[:-1]:
            raise ValueError(
                f"MultiheadAttention: key and value must be sequences of the same length, got {key_.shape} and"
                f" {value.shape}"
            )
        heads = [
            self._heads(self.query_proj, query),
            self._heads(self.key_proj, key_),
            self._heads(self.value_proj, value),
        ]
        if process_heads is not None:
            before = [h.shape for h in heads]
            heads = list(process_heads(*heads))
            if [h.shape for h in heads] != before:
                raise ValueError(
                    f"process_heads must not change shapes: {before} changed to {[h.shape for h in heads]}"
                )
        q, k, v = (xp.moveaxis(h, -2, -3) for h in heads)
        weights = attention_weights(q, k, mask)
        if key is None or self.dropout.p == 0:
            weights = self.dropout(weights, inference=inference)
        else:
            one_each = initial.keys(key, self.num_heads)
            dropped = [
                self.dropout(weights[..., i, :, :], key=one_each[i], inference=inference) for i in range(self.num_heads)
            ]
            weights = xp.stack(dropped, axis=-3)
        out = xp.moveaxis(xp.matmul(weights, v), -3, -2)
        return self.output_proj(xp.reshape(out, (*out.shape[:-2], self.num_heads * self.vo_size)))

    def _heads(self, projection: Linear, x: Array) -> Array:
        y = projection(x)
        return xp.reshape(y, (*y.shape[:-1], self.num_heads, y.shape[-1] // self.num_heads))
