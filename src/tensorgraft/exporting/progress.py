"""The steps of an export, for who shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[str, int, int], None]  # what is done now, the number of its part, the number of parts
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """A context in which a function is called at each step of an export."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def step(text: str, part: int = 0, parts: int = 1) -> None:
    """Announce a step: it begins with part `part` of `parts`."""
    listener = _listener.get()
    if listener is not None:
        listener(text, part, parts)
