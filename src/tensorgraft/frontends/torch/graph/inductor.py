"""What `torch.compile` has to know of the device, whatever its backend.

Our functions that stand for PyTorch's own are no code of the program's: Dynamo looks into them where it follows a call,
but begins with none. And Inductor, the default backend, has no code for the device: graphs on it are compiled as for
`backend="tensorgraft"`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.frontends.torch.compiled.in_dynamo import device_of, inline_when_called


def install() -> None:
    """Dynamo itself is not loaded here, but when a program asks for it."""
    inductor: Any = torch._TorchCompileInductorWrapper
    inductor.__call__ = _ours_on_the_device(inductor.__call__)
    others: Any = torch._TorchCompileWrapper
    for wrapper in (inductor, others):
        wrapper.__init__ = _prepared(wrapper.__init__)


def _prepared(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        inline_when_called()
        original(self, *args, **kwargs)
        if getattr(self, "compiler_name", None) == "tensorgraft":
            from tensorgraft.frontends.torch.graph.dynamo import check

            check(**self.kwargs)

    return init


def _ours_on_the_device(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, model_: torch.fx.GraphModule, inputs_: Sequence[Any], **options: Any) -> Any:
        if device_of(model_, inputs_) is not None:
            from tensorgraft.frontends.torch.graph.dynamo import tensorgraft

            return tensorgraft(model_, inputs_)
        return original(self, model_, inputs_, **options)

    return call
