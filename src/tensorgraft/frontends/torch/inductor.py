"""`torch.compile` of a model on the device where nobody chose a backend: Inductor has no code for the device, so that
graphs on it are compiled as for `backend="tensorgraft"`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tensorgraft.frontends.torch.devices import TYPE


def install() -> None:
    wrapper: Any = torch._TorchCompileInductorWrapper
    wrapper.__call__ = _ours_on_the_device(wrapper.__call__)


def device_of(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> torch.device | None:
    """The first device of ours that a graph of Dynamo's has tensors on."""
    made = [node.meta.get("example_value") for node in graph.graph.nodes]
    tensors = (t for t in tree_leaves([inputs, made]) if isinstance(t, torch.Tensor))
    return next((t.device for t in tensors if t.device.type == TYPE), None)


def _ours_on_the_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, model_: torch.fx.GraphModule, inputs_: Sequence[Any], **options: Any) -> Any:
        if device_of(model_, inputs_) is not None:
            from tensorgraft.frontends.torch.dynamo import tensorgraft  # loads Dynamo, as the caller has

            return tensorgraft(model_, inputs_)
        return original(self, model_, inputs_, **options)

    return call
