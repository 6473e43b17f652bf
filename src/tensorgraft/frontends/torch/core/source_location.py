"""The place (file and line) in its own source that a program has reached."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import sys
from pathlib import Path
from types import FrameType

import torch
import typing_extensions

from tensorgraft.compiled import source_location

Place = tuple[str, int]  # file, line

# frames of these are not the program's
_BELOW = [spec.origin for name in ("jax", "jaxlib", "tensorflow") if (spec := importlib.util.find_spec(name))]
_LIBRARIES = (
    source_location.OURS,
    typing_extensions.__file__,  # its decorators are around functions of PyTorch
    *(str(Path(file).parent) + os.sep for file in (torch.__file__, *_BELOW) if file),
)
# by torch.fx, Python and NumPy; "<stdin>" and "<string>" are programs that are typed in
_GENERATED = ("<eval_with_key>", "<frozen ", "<__array_function__")
_STANDARD = str(Path(os.__file__).parent) + os.sep


@functools.cache
def in_library(file: str) -> bool:
    """Return True for files of Python, PyTorch, tensorgraft or a backend's framework, and for code that one of them
    generated."""
    return file.startswith((*_LIBRARIES, *_GENERATED)) or (file.startswith(_STANDARD) and "site-packages" not in file)


def program_frame() -> FrameType | None:
    """The innermost frame that is the program's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and in_library(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def program_place() -> Place | None:
    """Return the file and line of the innermost frame that is the program's; None if there is none."""
    frame = program_frame()
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)


def source_line(location: Place | None) -> str:
    return "" if location is None else linecache.getline(*location).strip()
