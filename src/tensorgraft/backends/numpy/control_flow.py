"""Control flow with Python's own statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from tensorgraft.hub.array import NativeArray as Array


class NumpyControlFlow:
    def cond(
        self, predicate: Array, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any
    ) -> Any:
        return true_fn(*operands) if predicate else false_fn(*operands)

    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        while condition(init):
            init = body(init)
        return init

    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        if not length:  # the structure of the results is that of a step that is not taken
            step = optree.tree_map(lambda x: np.zeros(x.shape[1:], x.dtype), xs)
            ys = body(init, step)[1]
            return init, optree.tree_map(lambda y: np.zeros((0, *np.shape(y)), np.asarray(y).dtype), ys)
        leaves, tree = optree.tree_flatten(xs)
        columns: list[np.ndarray] = []
        for i in reversed(range(length)) if reverse else range(length):
            init, y = body(init, optree.tree_unflatten(tree, [x[i] for x in leaves]))
            ys, structure = optree.tree_flatten(y)
            if not columns:
                columns = [np.empty((length, *np.shape(y)), np.asarray(y).dtype) for y in ys]
            for stacked, y in zip(columns, ys, strict=True):
                stacked[i] = y
        return init, optree.tree_unflatten(structure, columns)
