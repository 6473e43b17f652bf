"""Python's warnings in code that is not the program's: suppressed, recorded, or shown at the program's line.

Python shows a warning once for each location. It forgets the shown ones when the filters change, and
`warnings.catch_warnings` changes them twice: it is therefore not used around a program. Inserting a filter into the
list and removing it again does not have this effect.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_LIBRARIES = ("tensorgraft", "torch", "jax", "jaxlib", "numpy", "tensorflow", "optree", "contextlib", "functools")


def _filter(action: str, message: str = "") -> Any:
    """Return a filter as `warnings.filters` has it."""
    return action, re.compile(message, re.IGNORECASE) if message else None, Warning, None, 0


_NOTHING, _ALWAYS = _filter("ignore"), _filter("always")


def ignore(message: str) -> None:
    """Hide, from now on, warnings whose text begins as the regular expression `message` says."""
    filters: Any = warnings.filters
    filters.insert(0, _filter("ignore", message))


class _first:
    """Context in which a filter precedes all others."""

    __slots__ = ("_item",)

    def __init__(self, item: Any) -> None:
        self._item = item

    def __enter__(self) -> None:
        filters: Any = warnings.filters
        filters.insert(0, self._item)

    def __exit__(self, *exc: object) -> None:
        filters: Any = warnings.filters
        for i, entry in enumerate(filters):
            if entry is self._item:
                del filters[i]
                break


def ignored(message: str = "") -> contextlib.AbstractContextManager[None]:
    """Context that hides warnings whose text begins with the regular expression `message`."""
    return _first(_filter("ignore", message))


class recorded_warnings:
    """Context that hides this thread's warnings, and yields the list of their texts."""

    __slots__ = ("_first", "_show")

    def __enter__(self) -> list[str]:
        texts: list[str] = []
        show, thread = warnings.showwarning, threading.get_ident()

        def note(message: Any, *args: Any, **kwargs: Any) -> None:
            if threading.get_ident() == thread:
                texts.append(str(message))
            else:
                show(message, *args, **kwargs)

        self._show, self._first = show, _first(_ALWAYS)
        warnings.showwarning = note
        self._first.__enter__()
        return texts

    def __exit__(self, *exc: object) -> None:
        self._first.__exit__()
        warnings.showwarning = self._show


@contextlib.contextmanager
def remembered() -> Iterator[None]:
    """Context in which libraries that are imported may change the filters, without warnings that were shown already
    being shown again."""
    before = _version()
    try:
        yield
    finally:
        after = _version()
        if after != before:
            for module in [*sys.modules.values()]:
                registry = getattr(module, "__dict__", {}).get("__warningregistry__")
                if registry and registry.get("version") == before:
                    registry["version"] = after


def _version() -> int:
    """Return how often the filters have changed: Python notes it beside what a module has shown."""
    registry: dict[Any, Any] = {}
    with _first(_NOTHING):
        warnings.warn_explicit("", Warning, "", 0, registry=registry)
    return registry["version"]


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the program's line: the innermost one that is not a library's."""
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def show_warning(text: str) -> None:
    """Show a warning that is never an exception: if the filters turn it into one, it is written to stderr. Used while a
    framework is being imported, which an exception would break."""
    try:
        warnings.warn(text, stacklevel=2)
    except Warning as warning:
        print(f"{type(warning).__name__}: {warning}", file=sys.stderr)
