"""Where in its own source a program is."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path

import torch

import tensorgraft

Place = tuple[str, int]  # file, line

# frames of these are not the program's
_LIBRARIES = tuple(str(Path(file).parent) + os.sep for file in (torch.__file__, tensorgraft.__file__))
_STANDARD = str(Path(os.__file__).parent) + os.sep


def program_place() -> Place | None:
    """The innermost frame that belongs neither to Python, nor to PyTorch, nor to us."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((*_LIBRARIES, "<")) and (not file.startswith(_STANDARD) or "site-packages" in file):
            return file, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None


def source_line(place: Place | None) -> str:
    return "" if place is None else linecache.getline(*place).strip()
