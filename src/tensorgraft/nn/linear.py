"""Layers of matrices: `Linear`, `MLP`, `Embedding`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import optree

import tensorgraft.array_api as xp
from tensorgraft import random
from tensorgraft.array_api import Array
from tensorgraft.arrays import is_array
from tensorgraft.frontends.array_api.extensions.neural import relu
from tensorgraft.nn import initial
from tensorgraft.transforms.filtered_vmap import filter_vmap
from tensorgraft.transforms.module import Module, field

Size = int | Literal["scalar"]


def _extent(size: Size) -> int:
    return 1 if size == "scalar" else size


class Linear(Module):
    """weight x + bias, for x (..., in_features).

    The size "scalar" means no axis. Weights are uniform in +-1/sqrt(in_features).
    """

    weight: Array  # (out_features, in_features)
    bias: Array | None  # (out_features,)
    in_features: Size = field(static=True)
    out_features: Size = field(static=True)
    use_bias: bool = field(static=True)

    def __init__(
        self, in_features: Size, out_features: Size, use_bias: bool = True, dtype: Any = None, *, key: Array
    ) -> None:
        dtype = initial.dtype_or_default(dtype)
        n, m = _extent(in_features), _extent(out_features)
        limit = 1 / math.sqrt(n) if n else 1.0
        weight_key, bias_key = initial.keys(key, 2)
        self.weight = initial.uniform(weight_key, (m, n), dtype, limit)
        self.bias = initial.uniform(bias_key, (m,), dtype, limit) if use_bias else None
        self.in_features, self.out_features, self.use_bias = in_features, out_features, use_bias

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        if self.in_features == "scalar":
            x = xp.expand_dims(x, axis=-1)
        elif x.shape[-1:] != (self.in_features,):
            raise ValueError(f"Linear({self.in_features}, {self.out_features}) expects (..., {self.in_features}), got"
            f" {x.dtype}{list(x.shape)}")  # fmt: skip
        out = xp.matmul(x, self.weight.mT)
        if self.bias is not None:
            out = out + self.bias
        return xp.squeeze(out, axis=-1) if self.out_features == "scalar" else out


class Identity(Module):
    """A layer that returns its input unchanged."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, x: Any, *, key: Array | None = None) -> Any:
        return x


def _identity(x: Array) -> Array:
    return x


class MLP(Module):
    """A multi-layer perceptron, for x (..., in_size): `depth` hidden layers of `width_size`.

    An activation that holds arrays has a copy of them for each neuron.
    """

    layers: tuple[Linear, ...]
    activation: Callable[..., Any]
    final_activation: Callable[..., Any]
    use_bias: bool = field(static=True)
    use_final_bias: bool = field(static=True)
    in_size: Size = field(static=True)
    out_size: Size = field(static=True)
    width_size: int = field(static=True)
    depth: int = field(static=True)

    def __init__(
        self,
        in_size: Size,
        out_size: Size,
        width_size: int,
        depth: int,
        activation: Callable[..., Any] = relu,
        final_activation: Callable[..., Any] = _identity,
        use_bias: bool = True,
        use_final_bias: bool = True,
        dtype: Any = None,
        *,
        key: Array,
    ) -> None:
        keys = initial.keys(key, depth + 1)
        sizes: list[Size] = [in_size, *[width_size] * depth, out_size]
        self.layers = tuple(
            Linear(n, m, use_final_bias if k == depth else use_bias, dtype, key=keys[k])
            for k, (n, m) in enumerate(itertools.pairwise(sizes))
        )
        self.activation = _copies(activation, (depth, width_size))
        self.final_activation = _copies(final_activation, () if out_size == "scalar" else (out_size,))
        self.use_bias, self.use_final_bias = use_bias, use_final_bias
        self.in_size, self.out_size, self.width_size, self.depth = in_size, out_size, width_size, depth

    def __call__(self, x: Array, *, key: Array | None = None) -> Array:
        activation: Any = self.activation
        for i, layer in enumerate(self.layers[:-1]):
            activation_i = optree.tree_map(lambda a: a[i] if is_array(a) else a, activation)  # noqa: B023
            x = _activated(activation_i, layer(x))
        x = self.layers[-1](x)
        if self.depth == 0:
            return x
        return self.final_activation(x) if self.out_size == "scalar" else _activated(self.final_activation, x)


def _copies(activation: Any, shape: tuple[Any, ...]) -> Any:
    return optree.tree_map(
        lambda a: xp.broadcast_to(a, (*shape, *a.shape)) + xp.zeros_like(a) if is_array(a) else a, activation
    )


def _activated(activation: Any, x: Array) -> Array:
    if not any(map(is_array, optree.tree_leaves(activation))):
        return activation(x)
    return filter_vmap(lambda a, v: a(v), in_axes=(0 if is_array(activation) else _first, -1), out_axes=-1)(
        activation, x
    )


def _first(x: Any) -> int | None:
    return 0 if is_array(x) else None


class Embedding(Module):
    """Rows of a table for integers: (...) -> (..., embedding_size). Rows are normal numbers.

    Raises IndexError for an index that is out of range, where its value is known.
    """

    num_embeddings: int = field(static=True)
    embedding_size: int = field(static=True)
    weight: Array  # (num_embeddings, embedding_size)

    def __init__(
        self,
        num_embeddings: int | None = None,
        embedding_size: int | None = None,
        weight: Array | None = None,
        dtype: Any = None,
        *,
        key: Array | None = None,
    ) -> None:
        if weight is None:
            if num_embeddings is None or embedding_size is None or key is None:
                raise ValueError("Embedding: pass num_embeddings, embedding_size and key, or weight")
            dtype = initial.dtype_or_default(dtype)
            weight = random.normal(key, (num_embeddings, embedding_size), dtype)
        if weight.ndim != 2 or (num_embeddings or weight.shape[0], embedding_size or weight.shape[1]) != weight.shape:
            raise ValueError(
                f"Embedding: the weight has shape {weight.shape}, not (num_embeddings, embedding_size) ="
                f" ({num_embeddings}, {embedding_size})"
            )
        self.num_embeddings, self.embedding_size = weight.shape
        self.weight = weight

    def __call__(self, x: Any, *, key: Array | None = None) -> Array:
        return self.weight[x]
