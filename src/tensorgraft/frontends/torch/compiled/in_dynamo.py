"""Support for Dynamo: inlining of functions of this package, and the device in its graphs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from tensorgraft.compiled.source_location import OURS
from tensorgraft.frontends.torch.core import pytrees
from tensorgraft.frontends.torch.core.devices import TYPE


@functools.cache
def inline_when_called() -> None:
    from torch._dynamo import trace_rules

    if hasattr(trace_rules, "BUILTIN_INLINE_WHEN_CALLED"):
        trace_rules.BUILTIN_INLINE_WHEN_CALLED.add(OURS)
        trace_rules.add("tensorgraft")


def device_of(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.device | None:
    """Return the first device of ours that a graph of Dynamo's has tensors on."""
    examples = [node.meta.get("example_value") for node in graph.graph.nodes]
    tensors = (t for t in pytrees.leaves_of([inputs, examples]) if isinstance(t, torch.Tensor))
    return next((t.device for t in tensors if t.device.type == TYPE), None)
