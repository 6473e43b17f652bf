"""What a program has switched on around an operator, and what is not for the inside of a kernel.

PyTorch takes a function mode (a default device is one) off before it goes on to an operator, where Python calls it.
TorchScript and C++ call operators with the mode still on: what a kernel itself asks of PyTorch would go through it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

# A function mode is on, and not suspended.
function_mode = torch._C._is_torch_function_mode_enabled
suspended = torch._C.DisableTorchFunction


def below_modes(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel`, during which function modes of the program are suspended."""

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        if function_mode():
            with suspended():
                return kernel(*args, **kwargs)
        return kernel(*args, **kwargs)

    return call
