"""Modes that a program has switched on around an operator and that do not apply inside a kernel.

PyTorch disables a function mode (a default device is one) before it calls an operator from Python. TorchScript and C++
call operators with the mode still on: PyTorch's functions that a kernel itself calls would go through it. Likewise
`torch.jit.trace` is suspended for most operators, but not for all: sizes would be tensors.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorgraft.frontends.torch.core import state

# A function mode is on, and not suspended. `torch.jit.trace` is looking.
function_mode = torch._C._is_torch_function_mode_enabled
tracing = torch._C._is_tracing


class OwnMode(TorchDispatchMode):
    """A dispatch mode of a compiled function's own, for which operators stay whole: nobody watches what they do.

    While one is on, PyTorch's derivatives ask for no values: they choose the formulas that tracers can follow.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Inside, function modes of the program and the trace of `torch.jit.trace` are off."""
    trace, set_trace = torch._C._get_tracing_state(), vars(torch._C)["_set_tracing_state"]
    with torch.DisableTorchFunction():
        if trace is not None:
            set_trace(None)
        try:
            yield
        finally:
            if trace is not None:
                set_trace(trace)


def below_modes(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, during which what the program has switched on is off. Its errors are noted for TorchScript."""

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            if function_mode() or tracing():
                with suspended():
                    return kernel(*args, **kwargs)
            return kernel(*args, **kwargs)
        except Exception as error:
            if state.now.scripted:
                state.now.raised = error
            raise

    return call


def traced_in_parts(kernel: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel` of an operator that `torch.jit.trace` does not note: while it looks, `other`, which it does."""

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (other if tracing() else kernel)(*args, **kwargs)

    return call
