"""Calls of the program's own functions (`apply_rotary_pos_emb`, `rotate_half`) as frames.

Python reports each call and return on this thread (`sys.setprofile`). A call becomes a frame if the function is the
program's, and neither a method nor private nor nested, takes and returns tensors, and uses no part of the model.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import torch

from tensorgraft.codegen.trace import Frame
from tensorgraft.frontends.torch.codegen.backend import Scope, SourceBackend
from tensorgraft.frontends.torch.codegen.modules import DROPPED, pairs, tree
from tensorgraft.frontends.torch.codegen.source_expressions import spot_of
from tensorgraft.frontends.torch.core.source_location import in_library
from tensorgraft.frontends.torch.core.tensors import cell_of, geometry_of, to_array
from tensorgraft.hub.recorded.block import Var, leaves, variables

_NO_FUNCTION = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_NESTED
_own: dict[CodeType, bool] = {}


def _is_own(code: CodeType) -> bool:
    name = code.co_qualname
    plain = not code.co_flags & _NO_FUNCTION and "." not in name and not name.startswith(("<", "_"))
    return plain and not in_library(code.co_filename) and bool(code.co_argcount + code.co_kwonlyargcount)


class Calls:
    """The functions that are being called."""

    def __init__(self, xp: SourceBackend, parameters: set[Var]) -> None:
        self.xp, self.parameters = xp, parameters
        self.open: list[tuple[FrameType, Scope]] = []

    def __call__(self, python: FrameType, event: str, result: Any) -> None:
        if event == "call":
            is_own = _own.get(python.f_code)
            if is_own is None:
                is_own = _own[python.f_code] = _is_own(python.f_code)
            if is_own:
                self.begin(python)
        elif event == "return" and self.open and self.open[-1][0] is python:
            self.end(result)

    def begin(self, python: FrameType) -> None:
        if self.xp.in_body:
            return
        code, local_vars = python.f_code, python.f_locals
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        with torch.DisableTorchFunction():
            if not any(True for name in names for _ in pairs(local_vars.get(name))):
                return
            arguments = [(name, value) for name in names if (value := tree(local_vars.get(name))) is not DROPPED]
        doc = " ".join((inspect.cleandoc(_doc(python)) or "").partition("\n\n")[0].split())
        call_spot = spot_of(python.f_back)
        frame = Frame(code.co_name, "", [], arguments, (), call_spot.names, call_spot.place, doc.partition(". ")[0])
        self.open.append((python, self.xp.begin(frame)))

    def end(self, result: Any) -> None:
        _, scope = self.open.pop()
        frame = scope.frame
        assert frame is not None
        with torch.DisableTorchFunction():
            value = tree(result)
            tensors = list(pairs(result))
            if value is DROPPED or not tensors or not self.is_pure(frame):
                self.xp.dissolve(scope)
                return
            frame.result = value
            views = [(cell_of(t).array, geometry_of(t), to_array(t)) for t in tensors]
            self.xp.end(scope)
        result_ids = set(map(id, leaves(frame.result)))
        for array, geometry, view in views:
            if view is not array and id(view) in result_ids:
                self.xp.remember(array, geometry, view)

    def is_pure(self, frame: Frame) -> bool:
        return all(
            self.is_pure(call) and not call.is_module
            if isinstance(call, Frame)
            else call.method != "split_key" and self.parameters.isdisjoint(variables([call.args, call.kwargs]))
            for call in frame.calls
        )

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        if sys.getprofile() is not None:  # there is one place for it, which a profiler has
            yield
            return
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)


def _doc(python: FrameType) -> str:
    first = python.f_code.co_consts[0] if python.f_code.co_consts else None
    return first if isinstance(first, str) else ""
