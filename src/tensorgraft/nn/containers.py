"""Layers one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorgraft.array_api import Array
from tensorgraft.nn import initial
from tensorgraft.transforms.module import Module


class Sequential(Module):
    """Layers that are called in order, each with the result of the previous one, and with a key of its own if `key` is
    given."""

    layers: tuple[Callable[..., Any], ...]

    def __init__(self, layers: Sequence[Callable[..., Any]]) -> None:
        self.layers = tuple(layers)

    def __call__(self, x: Any, *, key: Array | None = None) -> Any:
        keys: Sequence[Array | None] = [None] * len(self.layers)
        if key is not None:
            keys = initial.keys(key, len(self.layers))
        for layer, layer_key in zip(self.layers, keys, strict=True):
            x = layer(x, key=layer_key)
        return x

    def __getitem__(self, i: int | slice) -> Any:
        return Sequential(self.layers[i]) if isinstance(i, slice) else self.layers[i]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


class Lambda(Module):
    """A function as a layer of `Sequential`."""

    fn: Callable[[Any], Any]

    def __call__(self, x: Any, *, key: Array | None = None) -> Any:
        return self.fn(x)
