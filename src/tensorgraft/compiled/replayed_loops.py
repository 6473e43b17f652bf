"""Functions of arrays that have loops, on backends that compute at once: recorded at their first call, and run from
then on as source for the backend (`hub.recorded.native`), without the front end's rules. Compiled functions of small
arrays are C++ (`hub.recorded.c_program`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence

from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded import Program, record
from tensorgraft.hub.recorded.c_program import CProgram
from tensorgraft.hub.recorded.c_source import NoWordError
from tensorgraft.hub.recorded.native import NativeProgram, is_small

Evaluate = Callable[[Backend, Sequence[Array]], list[Array]]


class ReplayedLoops:
    """A function of arrays that always have the same shapes and dtypes."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._program: Program | None = None
        self._is_small = False
        self._is_refused = False  # a program cannot say what the function does
        self._natives: weakref.WeakKeyDictionary[Backend, NativeProgram] = weakref.WeakKeyDictionary()

    def __call__(self, xp: Backend, arrays: Sequence[Array], compiled: bool = False) -> list[Array] | None:
        """Return the results, or None if `xp` has to evaluate the function, or to compile it (`compiled`): in traces
        and derivatives of its framework, and if a recorded program cannot represent the function."""
        if self._is_refused or xp.dialect() is None or xp.in_trace():
            return None
        if any(xp.is_traced(x) or xp.is_differentiated(x) for x in arrays):
            return None
        if self._program is None:
            specs = [ShapeDtype(tuple(xp.shape(x)), xp.dtype_of(x)) for x in arrays]
            try:
                self._program = record(lambda recorder, *operands: self._evaluate(recorder, operands), specs, True)
            except Exception:  # the error of the function itself counts, if it raises one
                self._is_refused = True
                return None
            self._is_small = is_small(self._program)
        host = xp.small_host if self._is_small else None
        lent = [] if host is None else [y for x in arrays if (y := xp.lend(x)) is not None]
        if host is None or len(lent) < len(arrays):
            native = None if compiled else self._on(xp)
            return None if native is None else native(*arrays)
        program = (compiled and xp.dynamo == "inductor" and self._compiled) or self._on(host)
        if program is None:
            return None
        with host.scope():
            return [xp.adopt(host.ensure_owned(x)) for x in program(*lent)]

    def _on(self, xp: Backend) -> NativeProgram | None:
        native = self._natives.get(xp)
        if native is None:
            assert self._program is not None
            try:
                native = self._natives[xp] = NativeProgram(self._program, xp)
            except SyntaxError:  # Python's compiler refuses more than twenty nested blocks
                self._is_refused = True
        return native

    @functools.cached_property
    def _compiled(self) -> CProgram | None:
        assert self._program is not None
        try:
            return CProgram(self._program)
        except (NoWordError, OSError):
            return None
