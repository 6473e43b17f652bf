"""The hub: what joins front ends and backends."""

from typing import Any

__all__ = ["Backend"]


def __getattr__(name: str) -> Any:
    """Whoever asks which backends there are (`registry`) needs none of the class."""
    if name != "Backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tensorgraft.hub.backend import Backend

    return Backend
