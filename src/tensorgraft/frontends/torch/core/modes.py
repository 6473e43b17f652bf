"""Modes that a program has switched on around an operator and that do not apply inside a kernel.

PyTorch disables a function mode (a default device is one) before it calls an operator from Python. TorchScript and C++
call operators with the mode still on: PyTorch's functions that a kernel itself calls would go through it. Likewise
`torch.jit.trace` is suspended for most operators, but not for all: sizes would be tensors.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorgraft.frontends.torch.core import state

# True if a function mode is on and not disabled. `tracing`: the state of `torch.jit.trace`, None while it does not
# record.
function_mode = torch._C._is_torch_function_mode_enabled
tracing = torch._C._get_tracing_state


def _excluding(*keys: str) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return the context in which operators are called below these keys of the dispatcher."""
    key_sets = (torch.DispatchKeySet(getattr(torch.DispatchKey, key)) for key in keys)
    return functools.partial(torch._C._ExcludeDispatchKeyGuard, functools.reduce(operator.or_, key_sets))


without_autocast = _excluding(*(key for key in torch.DispatchKey.__members__ if key.startswith("Autocast")))
below_autograd = _excluding("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor")
below_transforms = _excluding("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode")


def function_modes() -> list[Any]:
    """Return the function modes that are on, the first one first."""
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


class BelowFunctions:
    """Context of our own code that reads tensors, of which function modes of the program and `__torch_function__` of
    its subclasses are not told."""

    def __enter__(self) -> None:
        self._before = state.now.below
        if self._before is None:
            subclasses = torch._C._is_torch_function_enabled()
            state.now.below = torch._C._EnableTorchFunction if subclasses else _functions_of_modes
        self._off = torch.DisableTorchFunction()
        self._off.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._off.__exit__(*error)
        state.now.below = self._before


@contextlib.contextmanager
def _functions_of_modes() -> Iterator[None]:
    with torch._C._EnableTorchFunction(), torch.DisableTorchFunctionSubclass():
        yield


def of_program(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of the program, whose calls its function modes and subclasses are told of again."""
    before = state.now.below
    if before is None:
        return fn(*args, **kwargs)
    state.now.below = None
    try:
        with before():
            return fn(*args, **kwargs)
    finally:
        state.now.below = before


class _OutsideDynamo(TorchDispatchMode):
    """A dispatch mode whose methods stay as they are written. PyTorch wraps those of others so that Dynamo leaves them
    out, and imports Dynamo, which takes 3 s, at the first call."""

    def __init_subclass__(cls, **options: Any) -> None:
        written = vars(cls).get("__torch_dispatch__")
        super().__init_subclass__(**options)
        if written is not None:
            cls.__torch_dispatch__ = written  # type: ignore[method-assign]


class OwnMode(_OutsideDynamo):
    """A dispatch mode that a compiled function enables for itself. It does not require decomposed operators, unlike a
    mode that observes them.

    While one is enabled, PyTorch's derivatives use formulas that read no values, as for tracers.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Context in which function modes of the program and the trace of `torch.jit.trace` are off."""
    trace, set_trace = tracing(), vars(torch._C)["_set_tracing_state"]
    with torch.DisableTorchFunction():
        if trace is not None:
            set_trace(None)
        try:
            yield
        finally:
            if trace is not None:
                set_trace(trace)


def below_modes(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `kernel` so that modes which the program has switched on are off while it runs. Its errors are noted for
    TorchScript."""

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
    """Return `kernel` for an operator that `torch.jit.trace` does not record, or, while that is tracing, `other`, which
    it does."""

    @functools.wraps(kernel)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (other if tracing() else kernel)(*args, **kwargs)

    return call
