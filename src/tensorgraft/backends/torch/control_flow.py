"""Control flow: Python's own on values that are known, PyTorch's higher-order operators where a program is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import optree
import torch
import torch._higher_order_ops

from tensorgraft.backends.torch import branches
from tensorgraft.backends.torch.recorder import StandIn, now
from tensorgraft.backends.torch.scope import scope
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array

_UNROLLED = 8  # steps of a recorded scan that are cheaper one after the other than as a loop


def _recorded(*leaves: Any) -> bool:
    return now.recorder is not None and any(isinstance(x, StandIn) for x in leaves)


def _own() -> contextlib.AbstractContextManager[None]:
    """Return the context of operations outside of bodies: modes of the program do not observe a recording."""
    return contextlib.nullcontext() if now.recorder is None else scope()


def _without_shared_memory(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `fn` so that its results share no memory with its arguments, as PyTorch's control flow requires."""
    return lambda *args: optree.tree_map(torch.clone, fn(*args))


def _any(x: Array) -> bool:
    while torch._C._functorch.is_batchedtensor(x):
        x = torch.func.debug_unwrap(x, recurse=False)
    return bool(x.any())


def _batched_while(goes_on: Array, condition: Callable[[Any], Array], body: Callable[[Any], Any], state: Any) -> Any:
    while _any(goes_on):
        state = optree.tree_map(lambda y, x: torch.where(goes_on, y, x), body(state), state)  # noqa: B023
        goes_on = torch.logical_and(goes_on, condition(state))
    return state


class TorchControlFlow:
    def cond(
        self, predicate: Array, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any
    ) -> Any:
        if torch.compiler.is_compiling():
            return torch.cond(predicate, _without_shared_memory(true_fn), _without_shared_memory(false_fn), operands)
        if _recorded(predicate):
            return branches.cond(predicate, lambda: true_fn(*operands), lambda: false_fn(*operands))
        if torch._C._functorch.is_batchedtensor(predicate):  # another branch for each of a batch
            return optree.tree_map(lambda x, y: torch.where(predicate, x, y), true_fn(*operands), false_fn(*operands))
        return true_fn(*operands) if predicate else false_fn(*operands)

    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        if torch.compiler.is_compiling():
            leaves, tree = optree.tree_flatten(init)

            def step(*leaves: Array) -> tuple[Array, ...]:
                return tuple(optree.tree_leaves(body(optree.tree_unflatten(tree, leaves))))

            outputs = torch.while_loop(
                lambda *leaves: condition(optree.tree_unflatten(tree, leaves)),
                _without_shared_memory(step),
                tuple(leaves),
            )
            return optree.tree_unflatten(tree, outputs)
        if now.recorder is not None:
            return branches.while_loop(condition, body, init)
        while True:
            goes_on = condition(init)
            if torch._C._functorch.is_batchedtensor(goes_on):  # until each of a batch has ended
                return _batched_while(goes_on, condition, body, init)
            if not goes_on:
                return init
            init = body(init)

    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        if not length:  # the structure of the results is that of a step that is not taken
            with _own():
                step = optree.tree_map(lambda x: x.new_zeros(x.shape[1:]), xs)
            ys = body(init, step)[1]
            with _own():
                return init, optree.tree_map(lambda y: y.new_zeros((0, *y.shape)), ys)
        if length > _UNROLLED and not optree.tree_leaves(xs):  # PyTorch's operator scans along the rows of an operand
            with _own():
                rows: Any = self.full((length, 1), 0, dtypes.int32)  # type: ignore[attr-defined]
            return self.scan(lambda carry, _: body(carry, xs), init, rows, length=length, reverse=reverse)
        # under Dynamo, the operator needs a body that Dynamo has traced
        if torch.compiler.is_dynamo_compiling() and length > _UNROLLED:
            return torch._higher_order_ops.scan(_without_shared_memory(body), init, xs, reverse=reverse)
        if now.recorder is not None and length > _UNROLLED:
            return branches.scan(body, init, xs, reverse)
        leaves, tree = optree.tree_flatten(xs)
        with _own():
            rows = [x.unbind() for x in leaves]
        columns = []
        for i in reversed(range(length)) if reverse else range(length):
            init, y = body(init, optree.tree_unflatten(tree, [x[i] for x in rows]))
            columns.append(y)
        if reverse:
            columns.reverse()
        with _own():
            return init, optree.tree_map(lambda *ys: torch.stack(ys), *columns)
