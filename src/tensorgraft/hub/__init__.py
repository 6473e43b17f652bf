"""The hub: the operations and code between front ends and backends."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorgraft.hub.backend import Backend

__all__ = ["Backend"]


def __getattr__(name: str) -> Any:
    """Import `Backend` when it is read: code that only lists backends (`registry`) does not need it."""
    if name != "Backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tensorgraft.hub import backend

    return backend.Backend
