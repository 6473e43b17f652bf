"""`tg.explain`: what `tg.jit` makes of a call, and what that needs."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tensorgraft.hub.analysis import Analysis


@dataclass
class Input:
    """An array that the compiled program is given at every call."""

    kind: str  # argument, parameter, buffer, gradient, optimizer state, captured, host, constant
    name: str  # as the program has it
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    written: bool = False
    donated: bool = False  # its memory is used again


@dataclass
class OperatorUse:
    """Calls of an operator of the program in one of its lines."""

    name: str
    place: str  # file:line
    source: str  # the line
    backward: bool  # in the backward pass of that line
    calls: int = 0
    flops: float = 0.0
    bytes: float = 0.0


@dataclass
class Fallback:
    """An operator without a kernel: eagerly it runs on the CPU, `tg.jit` refuses it."""

    name: str
    place: str
    calls: int = 0


@dataclass
class Traced:
    """One trace of a compiled function, and what was new when it was made."""

    reasons: list[str]  # [] for the first
    operations: int


@dataclass
class Explanation:
    """What `tg.jit` makes of one call. `print` it, or take it apart with `to_dict()`."""

    name: str
    backend: str
    program: Analysis
    inputs: list[Input]
    operators: list[OperatorUse]  # the most expensive first
    results: int
    kept_for_backward: tuple[int, int]  # tensors and bytes, where a result can be differentiated
    trace_seconds: float
    fallbacks: list[Fallback] = field(default_factory=list)
    traces: list[Traced] = field(default_factory=list)  # of a function compiled by `tg.jit`
    calls: int = 0
    cold: int = 0  # of the calls, those that ran uncompiled: with signatures that had not come back yet
    this_call: list[str] = field(default_factory=list)  # what is new in it; [] where it would run what is compiled

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        from tensorgraft.transforms.rendering import as_text

        return as_text(self)

    def __rich__(self) -> Any:
        from tensorgraft.transforms.rendering import rendered

        return rendered(self)


def explain(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Explanation:
    """What `tg.jit(fn)` makes of the call `fn(*args, **kwargs)`: what it captures, what it costs and why it was traced.

    The call is traced and compiled, not run: tensors, gradients, optimizers, modules and random states stay as they
    are, and so do lists, dictionaries and objects that `fn` reaches. What it prints is printed.

        print(tg.explain(step, x, y))

    Arguments:
        fn: a function or a module of a PyTorch program on the device, compiled by `tg.jit` or not. Of a compiled one
            it is also told which calls were traced again, and why.

    Raises:
        TracedValueError: where `fn` asks for the value of a tensor, as `tg.jit` does.
        TypeError: on a backend that does not compile.

    >>> import tensorgraft as tg, torch
    >>> tg.explain(lambda x: (x * 2).sum(), torch.ones(3, device=tg.device("jax"))).results
    1
    """
    from tensorgraft.frontends.torch.compiled.explain import explain_call
    from tensorgraft.transforms.jit import Jit

    if isinstance(fn, Jit):
        fn = fn.decided(args, kwargs)
    elif isinstance(fn, types.MethodType) and isinstance(fn.__func__, Jit):
        fn = types.MethodType(fn.__func__.decided((fn.__self__, *args), kwargs), fn.__self__)
    return explain_call(fn, args, kwargs)
