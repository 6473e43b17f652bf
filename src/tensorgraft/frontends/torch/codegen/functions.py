"""`torch.autograd.Function` while a module is recorded: its forward computation is recorded like other code.

A note is added, because its derivative is then that of the recorded computation.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from tensorgraft.frontends.torch.codegen.backend import SourceRecording

Function = torch.autograd.Function


class Context:
    """The `ctx` that `forward` writes to."""

    saved_tensors: tuple[Any, ...] = ()

    def __init__(self, args: tuple[Any, ...]) -> None:
        self.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_dirty(self, *tensors: Any) -> None: ...

    def mark_non_differentiable(self, *tensors: Any) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


@contextlib.contextmanager
def traced(recording: SourceRecording) -> Iterator[None]:
    original, thread = Function.__dict__["apply"], threading.get_ident()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread or cls.__module__.startswith("tensorgraft."):
            return original.__get__(None, cls)(*args, **kwargs)
        if cls is CheckpointFunction:
            run, _, *rest = args
            return run(*rest)
        recording.derivative_notes[
            f"the derivative of {cls.__qualname__} is that of what it computes, not its backward()"
        ] = None
        own_context = cls.setup_context is not Function.setup_context
        return cls.forward(*args, **kwargs) if own_context else cls.forward(Context(args), *args, **kwargs)

    Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        Function.apply = original  # type: ignore[method-assign]
