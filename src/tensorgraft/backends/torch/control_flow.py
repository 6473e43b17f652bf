"""Control flow: Python's own on values that are known, PyTorch's higher-order operators where they are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree
import torch

Array = Any


class TorchControlFlow:
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
            step = optree.tree_map(lambda x: x.new_zeros(x.shape[1:]), xs)
            ys = body(init, step)[1]
            return init, optree.tree_map(lambda y: y.new_zeros((0, *y.shape)), ys)
        found = []
        for i in reversed(range(length)) if reverse else range(length):
            init, y = body(init, optree.tree_map(lambda x, i=i: x[i], xs))
            found.append(y)
        if reverse:
            found.reverse()
        return init, optree.tree_map(lambda *ys: torch.stack(ys), *found)
