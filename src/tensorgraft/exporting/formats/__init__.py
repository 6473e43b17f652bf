"""File formats: for each how a program is written, and the runtime that reads it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorgraft.exporting.conversion import Converted
from tensorgraft.exporting.sizes import OpenSizes
from tensorgraft.exporting.subject import Subject
from tensorgraft.importing import required


@dataclass(frozen=True)
class Format:
    """A file format. `write(converted, subject, sizes, path, options)` writes a file and returns notes on it; it may
    fix sizes that the exporter cannot leave open."""

    name: str
    framework: str | None  # whose exporter writes it; None: it is written from the recorded program
    runner: str  # the script that runs a file
    suffix: str
    write: Callable[[Converted, Subject, OpenSizes, str, Mapping[str, Any]], list[str]]
    options: tuple[str, ...] = ()
    keeps_state: bool = True  # False: the state of a program is an argument and a result
    validate: Callable[[Mapping[str, Any]], None] = lambda options: None  # raises ValueError for options


# the packages that write and run a format, and the extras that install them
PACKAGES = {
    "stablehlo": {"jax": "jax"},
    "onnx": {"onnx": "onnx", "onnxruntime": "onnx"},
    "saved_model": {"tensorflow": "tensorflow"},
    "pt2": {"torch": "torch"},
    "litert": {"tensorflow": "tensorflow"},
}


def format_named(name: str) -> Format:
    """Return a format. Raises ValueError for an unknown one, ModuleNotFoundError if a package for it is missing."""
    if name not in PACKAGES:
        raise ValueError(f"to={name!r}: expected one of {', '.join(map(repr, PACKAGES))}")
    for package, extra in PACKAGES[name].items():
        required(package, by=f"tg.export(..., to={name!r})", extra=extra)
    found: Format = importlib.import_module(f"tensorgraft.exporting.formats.{name}").FORMAT
    return found
