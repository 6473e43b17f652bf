"""Functions of arrays that have loops, on backends that compute at once: recorded at their first call, and run from then
on as source for the backend (`hub.recorded.native`), without the front end's rules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from tensorgraft.hub.abstract import ShapeDtype
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded import Program, record
from tensorgraft.hub.recorded.native import NativeProgram, is_small

Evaluate = Callable[[Backend, Sequence[Array]], list[Array]]


class Replayed:
    """A function of arrays that always have the same shapes and dtypes."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        self._program: Program | None = None
        self._is_small = False
        self._is_refused = False  # a program cannot say what the function does
        self._on: weakref.WeakKeyDictionary[Backend, NativeProgram] = weakref.WeakKeyDictionary()

    def __call__(self, xp: Backend, arrays: Sequence[Array]) -> list[Array]:
        if self._is_refused or xp.dialect() is None or xp.in_trace():
            return self._evaluate(xp, arrays)
        if any(xp.is_traced(x) or xp.is_differentiated(x) for x in arrays):
            return self._evaluate(xp, arrays)
        if self._program is None:
            specs = [ShapeDtype(tuple(xp.shape(x)), xp.dtype_of(x)) for x in arrays]
            try:
                self._program = record(lambda recorder, *operands: self._evaluate(recorder, operands), specs)
            except Exception:  # the error of the function itself counts, if it raises one
                self._is_refused = True
                return self._evaluate(xp, arrays)
            self._is_small = is_small(self._program)
        host = xp.small_host if self._is_small else None
        if host is not None:
            lent = [xp.lend(x) for x in arrays]
            if all(x is not None for x in lent):
                with host.scope():
                    return [xp.adopt(host.ensure_owned(x)) for x in self._native(self._program, host)(*lent)]
        return self._native(self._program, xp)(*arrays)

    def _native(self, program: Program, xp: Backend) -> NativeProgram:
        native = self._on.get(xp)
        if native is None:
            native = self._on[xp] = NativeProgram(program, xp)
        return native
