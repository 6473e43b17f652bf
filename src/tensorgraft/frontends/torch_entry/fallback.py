"""The device's dispatch key: an operator without a kernel loads the front end, and from then on is its fallback's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.library import Library

from tensorgraft.frontends.torch_entry import loading

KEY = "PrivateUse1"
_library = Library("_", "IMPL")
_boxed: Callable[..., Any] | None = None  # the front end's; PyTorch takes one fallback for a key and keeps it


def install() -> None:
    _library.fallback(_call, KEY)


def serve(boxed: Callable[..., Any]) -> None:
    """Call `boxed(operator, *args, **kwargs)` where the device has no kernel."""
    global _boxed
    _boxed = boxed


def _call(op: Any, *args: Any, **kwargs: Any) -> Any:
    if loading.loaded():
        assert _boxed is not None
        return _boxed(op, *args, **kwargs)
    loading.load()
    return op(*args, **kwargs)  # it may have a kernel now
