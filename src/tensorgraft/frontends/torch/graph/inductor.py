"""Integration of the device with `torch.compile`, whatever its backend.

Our replacements of PyTorch's functions are not the program's code: Dynamo traces into them where it follows a call, but
does not start with one. And Inductor, the default backend, has no code for the device: graphs on it are compiled as for
`backend="tensorgraft"`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.compiled.in_dynamo import device_of
from tensorgraft.frontends.torch_entry import patches


def install() -> None:
    """Apply the change when Dynamo is loaded, which a program may have done before the first use of the device, without
    loading it here."""
    if "torch._dynamo" in sys.modules:
        patches.apply("compile")


def prepared(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        patches.apply("compile")
        original(self, *args, **kwargs)
        if getattr(self, "compiler_name", None) == "tensorgraft":
            from tensorgraft.frontends.torch.graph.dynamo import check

            check(**self.kwargs)

    return init


def on_the_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, model_: torch.fx.GraphModule, inputs_: Sequence[Any], **options: Any) -> Any:
        if device_of(model_, inputs_) is not None:
            from tensorgraft.frontends.torch.graph.dynamo import tensorgraft

            return tensorgraft(model_, inputs_)
        return original(self, model_, inputs_, **options)

    return call
