"""Masks: arrays of zeros and large negative numbers that a program computes from its inputs alone.

They are constants for the example. Where they meet parameters (relative positions) both are one static array, whichever
is added first, and whether the mask is added or selects.
"""

from __future__ import annotations

import numpy as np

from tensorgraft.hub.recorded.block import mapped
from tensorgraft.porting.nodes import ValueNode, evaluate

MASKED = 1e4  # numbers beyond it are masks, which programs write in several ways


def known_value(node: ValueNode, values: dict[ValueNode, np.ndarray | None]) -> np.ndarray | None:
    """The value of a node that is computed from inputs and constants alone; None for others. `values` keeps them."""
    if node.value is not None:
        return node.value
    if not node.dynamic:
        return None
    if node not in values:
        inputs = [known_value(x, values) for x in node.inputs()]
        values[node] = None
        if inputs and all(x is not None for x in inputs) and not node.output:
            of_node = mapped(lambda x: known_value(x, values) if type(x) is ValueNode else x, (node.args, node.kwargs))
            out = evaluate(node.op, *of_node)
            values[node] = None if isinstance(out, tuple | list) else np.asarray(out)
    return values[node]


def is_mask(x: np.ndarray | None) -> bool:
    """Zeros, and numbers that a softmax takes to zero."""
    return x is not None and x.dtype.kind == "f" and bool(np.all((x == 0) | (x <= -MASKED)))
