"""The hub: what joins front ends and backends."""

from tensorgraft.hub.backend import Backend

__all__ = ["Backend"]
