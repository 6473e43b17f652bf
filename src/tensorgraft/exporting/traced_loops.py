"""Loops of written PyTorch whose number of steps is an open size: an operator of PyTorch, not unrolled."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch._higher_order_ops import scan as scan_operator

Step = Callable[[Any, Any], tuple[Any, Any]]


def symbolic_scan(module: ModuleType) -> Callable[..., Any]:
    """Return the helper `scan` of a written file for `torch.export`."""
    unrolled = module.scan

    def scan(
        step: Step, carry: tuple[Any, ...], xs: tuple[Any, ...], length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        if isinstance(length, int):
            return unrolled(step, carry, xs, length, reverse)
        rows = xs or (torch.zeros(length, dtype=torch.int32),)  # the operator counts the rows of an operand
        first = _copies(carry) or (torch.zeros(()),)  # and has a state

        def body(state: Any, row: Any) -> tuple[Any, Any]:
            after, y = step(state if carry else (), row if xs else ())
            return _copies(after) if carry else _copies(state), _copies(y)

        with _importable(module):
            last, ys = scan_operator(body, first, rows, reverse=reverse)
        return tuple(last) if carry else (), tuple(ys)

    return scan


def _copies(xs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return tensors that share no memory, in the strides that the operator expects of a state."""
    return tuple(x.clone(memory_format=torch.contiguous_format) for x in xs)


def inline_numbers(program: torch.export.ExportedProgram) -> None:
    """Write numbers in the bodies of loops as operators: `torch.export.save` does not keep the constants of these."""
    for body in program.graph_module.modules():
        if body is program.graph_module or not isinstance(body, torch.fx.GraphModule):
            continue
        for node in body.graph.find_nodes(op="get_attr"):
            value = getattr(body, node.target)
            if isinstance(value, torch.Tensor) and value.numel() == 1:
                with body.graph.inserting_before(node):
                    full = body.graph.call_function(
                        torch.ops.aten.full.default, ([*value.shape], value.item()), {"dtype": value.dtype}
                    )
                full.meta = dict(node.meta)
                node.replace_all_uses_with(full)
                body.graph.erase_node(node)
        body.recompile()


@contextmanager
def _importable(module: ModuleType) -> Iterator[None]:
    """A context in which Dynamo, which traces the steps of loops, finds the functions of a module by its name."""
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
