"""Control flow on pytrees (optree) of arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.hub.array import Array
from tensorgraft.hub.placement import Placement
from tensorgraft.hub.primitive import primitive


class ControlFlow:
    @primitive
    def cond(
        self, predicate: Array, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any
    ) -> Any:
        """`true_fn(*operands)` where the 0-d bool holds, else `false_fn(*operands)`; results of one structure."""
        raise NotImplementedError

    @primitive
    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        raise NotImplementedError

    @primitive
    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        """`body(carry, x) -> (carry, y)` along the first axis of every leaf of `xs`; returns (carry, stacked ys)."""
        raise NotImplementedError

    def map(self, fn: Callable[[Any], Any], xs: Any, length: int) -> Any:
        """`fn` of every slice along the first axis, results stacked."""
        return self.scan(lambda carry, x: (carry, fn(x)), (), xs, length=length)[1]

    def optimization_barrier(self, x: Array, after: Array, /) -> Array:
        """`x`, of which a compiler may not assume that it has seen it before, nor use it before `after` is computed."""
        return x

    def constrain(self, x: Array, placement: Placement, /) -> Array:
        """`x`, its pieces where the placement says: moved now, or, in a trace, by the compiled program. Here: of
        backends that compute on one device. Raises ValueError for a mesh of more."""
        return _on_one_device(self, x, placement)

    def host_call(
        self, fn: Callable[..., Sequence[np.ndarray]], operands: Sequence[Array], results: Sequence[Any], /
    ) -> list[Array]:
        """`fn` of the operands on the host, called whenever this is computed; its arrays have the shapes and dtypes of
        `results`. Raises TracedValueError in a trace, unless the framework's programs can call the host."""
        return [self.asarray(np.asarray(x)) for x in fn(*map(self.to_numpy, operands))]


def _on_one_device(xp: Any, x: Array, placement: Placement) -> Array:
    if placement.mesh.size > 1:
        raise ValueError(
            f"the backend {xp.name} computes on one device, and this is a {placement.mesh}: use a mesh of one device,"
            " or arrays of a backend that partitions programs (jax)"
        )
    return x
