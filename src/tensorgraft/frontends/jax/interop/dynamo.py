"""A JAX function under `torch.compile`: Dynamo takes it for one call, into which AOTAutograd traces.

So its operators, and those of the derivative that JAX gives, become part of the graph, and Inductor fuses them with
what is around. Imported by what Dynamo traces: `torch._dynamo` is needed by nobody else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch


class _Function(Protocol):
    def now(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


@torch.compiler.disable
def opaque_call(function: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function.now(args, kwargs)


@torch.compiler.disable
def opaque_run(run: Callable[..., Any], *args: Any) -> Any:
    """Run the function of a module whose state it changes, which no graph has."""
    return run(*args)


@torch._dynamo.nonstrict_trace
def call(function: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return opaque_call(function, args, kwargs)
