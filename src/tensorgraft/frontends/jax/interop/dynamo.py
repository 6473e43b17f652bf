"""A JAX function under `torch.compile`: it is one call for Dynamo, into which AOTAutograd traces.

Its operators, and those of the derivative that JAX computes, thus become part of the graph, and Inductor fuses them
with others. The module is imported by code that Dynamo traces, since nothing else needs `torch._dynamo`.
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
