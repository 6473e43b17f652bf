"""Settings of the whole process that affect the results of functions: they are part of the key of every cached trace.

Front ends and backends register functions that read the settings of their framework (`register`). A function of one
framework may call those of another, so the key of a trace includes all of them (`current`). They are asked for at each
call, and not watched where they are set: there are many ways to set them, context managers and C++ among them.
`docs/settings.md` lists them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from typing import Any

from tensorgraft.hub.straight_line import StraightLine

_keys: list[Callable[[], Hashable]] = []
_defaults: list[Hashable] = []
_names: list[Callable[[], dict[str, Any]]] = []
_written: list[Callable[[StraightLine], None] | None] = []


def register(
    key: Callable[[], Hashable],
    default: Hashable,
    names: Callable[[], dict[str, Any]],
    write: Callable[[StraightLine], None] | None = None,
) -> None:
    """Add settings of a framework. `key` gives their values, at each call; `names` says the same by name, for messages;
    `write` writes that they are the default ones. What equals `default` leaves no trace in a key: a framework that is
    imported later makes no other key."""
    _keys.append(key)
    _defaults.append(default)
    _names.append(names)
    _written.append(write)


def current() -> tuple[Hashable, ...]:
    """Return the settings in force, as a part of a key."""
    values = [key() for key in _keys]
    if values == _defaults:
        return ()
    return tuple([value for value, default in zip(values, _defaults, strict=False) if value != default])


def write(code: StraightLine) -> None:
    """Write that the settings are those in force now."""
    code.require(f"len({code.name(_keys)}) == {len(_keys)}")
    for key, default, write_default in zip(_keys, _defaults, _written, strict=True):
        value = key()
        if write_default is not None and value == default:
            write_default(code)
        else:
            code.require(f"{code.name(key)}() == {code.name(value)}")


def by_name() -> dict[str, Any]:
    """Return the settings in force by name."""
    return {name: value for names in _names for name, value in names().items()}


_OF_KERAS = ("float32", 1e-7, "channels_last")  # Keras's defaults


def _keras() -> Hashable:
    """Return the settings that operations of Keras read. Layers copy some of them when they are created."""
    config = getattr(sys.modules.get("keras"), "config", None)
    if config is None or not hasattr(config, "image_data_format"):  # it is being imported
        return _OF_KERAS
    return config.floatx(), config.epsilon(), config.image_data_format()


def _write_keras(code: StraightLine) -> None:
    modules = code.name(sys.modules)
    code.require(f"'keras' not in {modules} or {code.name(_keras)}() == {code.name(_OF_KERAS)}")


register(_keras, _OF_KERAS, lambda: {"floatx, epsilon, image_data_format of Keras": _keras()}, _write_keras)
