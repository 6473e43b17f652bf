"""ONNX's programs: files of operators, as plans of hub operations.

`reading` parses a file and checks it; `graph` holds what it contains, without ONNX's messages; `planning` resolves
nodes to rules (`rule`, `rules`), or to the function by which ONNX defines an operator; `models` is what users get.
"""

from __future__ import annotations

from typing import Any

from tensorgraft.hub.backend import Backend
from tensorgraft.importing import required


def source_of_onnx(program: Any) -> Any:
    """Return an ONNX model, or the one in a file, as a program for `tg.source`. Raises as `graft_onnx`."""
    required("onnx", by="tg.source of an ONNX model", extra="onnx")
    from tensorgraft.frontends.onnx.codegen.program import OnnxProgram
    from tensorgraft.frontends.onnx.reading import read

    return OnnxProgram(read(program))


def graft_onnx(program: Any, xp: Backend) -> Any:
    """Graft an ONNX model, or the path of its file, onto a backend (for `tg.graft`).

    Raises ModuleNotFoundError if onnx is not installed, FileNotFoundError, InvalidModelError for a file that is broken
    or contradicts itself, UnsupportedOperatorError for an operator that is not known here.
    """
    required("onnx", by="tg.graft of an ONNX model", extra="onnx")
    from tensorgraft.frontends.onnx.models import graft_model
    from tensorgraft.frontends.onnx.reading import read

    return graft_model(read(program), xp)
