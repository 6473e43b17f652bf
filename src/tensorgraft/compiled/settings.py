"""Settings of the whole process that change what a function computes: inputs of everything that keeps a trace of one.

Each front end says what it knows of its framework, by `register`. A function of one may call those of another, so
whoever keeps a trace keeps it by all of them (`now`). They are asked for at each call, and not watched where they are
set: there are many ways to set them, context managers and C++ among them. `docs/settings.md` lists them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Any

_keys: list[Callable[[], Hashable]] = []
_names: list[Callable[[], dict[str, Any]]] = []


def register(key: Callable[[], Hashable], names: Callable[[], dict[str, Any]]) -> None:
    """Add a framework's settings. `key` is asked at each call; `names` says the same by name, for messages."""
    _keys.append(key)
    _names.append(names)


def now() -> tuple[Hashable, ...]:
    """Return the settings in force, as a part of a key."""
    return tuple([key() for key in _keys])


def named() -> dict[str, Any]:
    """Return the settings in force by name."""
    return {name: value for names in _names for name, value in names().items()}


def _keras() -> Any:
    """Return what operations of Keras look up. What layers look up when they are made is theirs from then on."""
    config = getattr(sys.modules.get("keras"), "config", None)
    if config is None or not hasattr(config, "image_data_format"):  # it is being imported
        return None
    return config.floatx(), config.epsilon(), config.image_data_format()


register(
    _keras, lambda: dict(zip(("floatx", "epsilon", "image_data_format of Keras"), _keras() or (None,) * 3, strict=True))
)
