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
        """Call `true_fn(*operands)` if the 0-d bool holds, else `false_fn(*operands)`; both return the same
        structure."""
        raise NotImplementedError

    @primitive
    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        raise NotImplementedError

    @primitive
    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        """Run `body(carry, x) -> (carry, y)` along the first axis of every leaf of `xs`; return (carry, stacked ys)."""
        raise NotImplementedError

    def map(self, fn: Callable[[Any], Any], xs: Any, length: int) -> Any:
        """Apply `fn` to every slice along the first axis, and stack the results."""
        return self.scan(lambda carry, x: (carry, fn(x)), (), xs, length=length)[1]

    def optimization_barrier(self, x: Array, after: Array, /) -> Array:
        """Return `x` as a value that the compiler may not merge with equal ones, nor use before `after` is computed."""
        return x

    def constrain(self, x: Array, placement: Placement, /) -> Array:
        """Return `x` laid out as the placement says: moved now, or, in a trace, by the compiled program. This default
        is for backends that compute on one device. Raises ValueError for a mesh of more."""
        return _on_one_device(self, x, placement)

    def host_call(
        self, fn: Callable[..., Sequence[np.ndarray]], operands: Sequence[Array], results: Sequence[Any], /
    ) -> list[Array]:
        """Call `fn` with the operands on the host, each time this is computed. `results`: the shapes and dtypes of what
        it returns. Raises TracedValueError in a trace, unless the framework's programs can call the host."""
        return [self.asarray(np.asarray(x)) for x in fn(*map(self.to_numpy, operands))]


def _on_one_device(xp: Any, x: Array, placement: Placement) -> Array:
    if placement.mesh.size > 1:
        raise ValueError(
            f"the backend {xp.name} computes on one device, but got a {placement.mesh}: use a mesh of one device,"
            " or arrays of a backend that partitions programs (jax)"
        )
    return x
