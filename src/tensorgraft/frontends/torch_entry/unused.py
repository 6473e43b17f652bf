"""A callback before a program first uses PyTorch, if PyTorch was imported on its behalf (`tensorgraft run`)."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

_unused: list[types.ModuleType] = []
_action: Callable[[], object] | None = None


class Unused(types.ModuleType):
    """The class of PyTorch's modules until an attribute of one is read. `import torch` reads none, except those that
    begin and end with underscores."""

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__"):
            _use()
        return types.ModuleType.__getattribute__(self, name)  # it is `Unused` no more


def before_use(action: Callable[[], object]) -> None:
    """Call `action` when PyTorch is first used, before that."""
    global _action
    _action = action
    modules = [m for name, m in [*sys.modules.items()] if name.partition(".")[0] == "torch"]
    _unused.extend(m for m in modules if type(m) is types.ModuleType)
    for module in _unused:
        module.__class__ = Unused


def forget() -> None:
    """PyTorch takes itself down, and `action` is not called any more."""
    global _action
    _action = None
    _use()


def _use() -> None:
    global _action
    while _unused:
        _unused.pop().__class__ = types.ModuleType
    action, _action = _action, None
    if action is not None:
        action()
