"""The context of this backend's operations, in which modes that a program enables for its own tensors are off.

Kernels of a front end run below autograd, and PyTorch disables a mode before it calls them. The remaining ones are
autocast of the CPU (or CUDA), inference mode, and modes of the program around calls of the hub from outside of kernels.
Usually there are none, and the context costs a check of four flags.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils._python_dispatch import _disable_current_modes

_AUTOCAST = ("cpu", "cuda")
_KEYS = torch.DispatchKeySet(torch.DispatchKey.AutocastCPU) | torch.DispatchKeySet(torch.DispatchKey.AutocastCUDA)
PLAIN: contextlib.AbstractContextManager[None] = contextlib.nullcontext()

_compiling = torch.compiler.is_compiling
_inference = torch.is_inference_mode_enabled
_autocast = torch._C._is_any_autocast_enabled
_dispatch_modes = torch._C._len_torch_dispatch_stack
_function_modes = torch._C._len_torch_function_stack


def scope() -> contextlib.AbstractContextManager[None]:
    if _compiling() or not (_inference() or _dispatch_modes() or _function_modes() or _autocast()):
        return PLAIN
    return _without_modes()


def native_scope() -> contextlib.AbstractContextManager[None]:
    """Return `scope`, inside of which tracers and other modes still see operators."""
    if _compiling():
        return torch._C._ExcludeDispatchKeyGuard(_KEYS) if _autocast() else PLAIN
    return _without_modes(modes=False) if _inference() or _function_modes() or _autocast() else PLAIN


def is_followed() -> bool:
    """Return True if `torch.compile`, `torch.export` or a mode sees every operator."""
    return _compiling() or _dispatch_modes() > 0


@contextlib.contextmanager
def _without_modes(modes: bool = True) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if _inference():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if modes and _dispatch_modes():
            stack.enter_context(_disable_current_modes())
        if _function_modes():
            stack.enter_context(torch.DisableTorchFunction())
        if _autocast():
            stack.enter_context(torch._C._ExcludeDispatchKeyGuard(_KEYS))
        yield
