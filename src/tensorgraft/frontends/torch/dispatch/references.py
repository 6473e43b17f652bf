"""PyTorch's reference functions (`torch._refs`), of which its meta functions and decompositions are made.

Each elementwise one is marked to be left out by Dynamo (`torch._disable_dynamo`), and the first call of any imports
Dynamo for that, which takes one to three seconds. As long as nobody has imported it, there is nothing to leave out.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tensorgraft.compiled.lookups import content_of
from tensorgraft.importing import when_imported

_MODULES = ("torch._refs", "torch._decomp", "torch._prims", "torch._meta_registrations")
_MARK = "__dynamo_disable"  # where `torch._disable_dynamo` keeps the function that it calls instead
_WRAPPER = torch._disable_dynamo(lambda: None).__code__


@functools.cache
def call_without_dynamo() -> None:
    """Let reference functions be called without an import of Dynamo, until the program imports it itself."""
    if "torch._dynamo" in sys.modules:
        return
    marked = [fn for fn in _disabled() if _MARK not in vars(fn)]
    for fn in marked:
        setattr(fn, _MARK, fn)

    def restore() -> None:
        for fn in marked:
            if vars(fn).get(_MARK) is fn:
                delattr(fn, _MARK)

    when_imported("torch._dynamo", restore)


def _disabled() -> Iterator[Callable[..., Any]]:
    """Yield the functions that Dynamo is to leave out, however they are wrapped."""
    modules = [module for name, module in [*sys.modules.items()] if name.startswith(_MODULES)]
    waiting: list[Any] = [value for module in modules for value in vars(module).values()]
    visited: set[int] = set()
    while waiting:
        fn = waiting.pop()
        if not isinstance(fn, types.FunctionType) or id(fn) in visited:
            continue
        visited.add(id(fn))
        held = dict(zip(fn.__code__.co_freevars, map(content_of, fn.__closure__ or ()), strict=True))
        if fn.__code__ is _WRAPPER:
            yield held["fn"]
        waiting += [*held.values(), vars(fn).get("__wrapped__")]
