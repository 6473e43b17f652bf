"""A watch over a function of arrays while it is recorded: the functions that it calls, and the names of its
variables."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tensorgraft.codegen.recorders.call_recorder import first_sentence, leaves, mapped, watched_functions
from tensorgraft.codegen.recorders.frames import Called
from tensorgraft.codegen.recorders.recording import ScopedRecorder
from tensorgraft.frontends.array_api.core.array import Array
from tensorgraft.hub.recorded.block import Var

_PACKAGES = ("/numpy/", "/tensorgraft/", "/optree/", "/array_api_compat/", "/array_api_extra/", "/jax/", "/torch/")
_OURS = f"{Path(__file__).parents[3]}/"


class FunctionWatch:
    """Follows the user's functions from line to line."""

    def __init__(self, xp: ScopedRecorder) -> None:
        self.xp = xp
        self.program_calls: list[Called] = []
        self.names: dict[Var, dict[int, str]] = {}
        self.arrays: dict[Var, Var] = {}
        self._depth = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        with watched_functions(self._trace_call):
            yield

    def _trace_call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not is_users(code.co_filename):
            return None
        outer_scope = self.xp.at_scope
        named = code.co_name.isidentifier() and not code.co_flags & inspect.CO_GENERATOR
        arguments = list(frame.f_locals.items()) if named else []
        if named and self._depth and any(isinstance(x, Array) for _, tree in arguments for x in leaves(tree)):
            call = Called(code.co_name, place=f"{Path(code.co_filename).name}:{frame.f_lineno}")
            call.arguments = [(name, mapped(self._var, tree)) for name, tree in arguments]
            call.doc = _first_sentence(frame)
            self.program_calls.append(call)
            self.xp.at_scope = (*outer_scope, len(self.program_calls) - 1)
        inner_scope = self.xp.at_scope
        self._depth += 1
        last_ids = {name: id(x) for name, x in frame.f_locals.items()}

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            self.xp.at_place = f"{Path(code.co_filename).name}:{frame.f_lineno}"
            for name, x in frame.f_locals.items():
                if last_ids.get(name) != id(x):
                    last_ids[name] = id(x)
                    self._name(name, x, inner_scope[-1] if inner_scope else -1)
            if event == "return":
                self._depth -= 1
                self.xp.at_scope = outer_scope
            return line

        return line

    def _name(self, name: str, x: Any, call: int) -> None:
        value = self._var(x)
        if type(value) is Var and not name.startswith((".", "__")):
            self.names.setdefault(value, {}).setdefault(call, name)

    def _var(self, x: Any) -> Any:
        """Return the variable that an array is, where it is no view."""
        if isinstance(x, Array) and x._geometry is None:
            value = x._cell.array
            if type(value) is Var:
                self.arrays[value] = value
                return value
        return x


def _first_sentence(frame: FrameType) -> str:
    doc = frame.f_code.co_consts[0] if frame.f_code.co_consts else None
    return first_sentence(doc) if isinstance(doc, str) else ""


@functools.cache
def is_users(path: str) -> bool:
    _, of_packages, rest = path.rpartition("/site-packages")
    if of_packages:
        return not rest.startswith(_PACKAGES)
    return not path.startswith((sysconfig.get_path("stdlib"), "<frozen", "<string>", _OURS))
