"""Comparison of two traces of one signature: a trace is used once a second one equals it.

If a function reads something that no guard can watch (an iterator, a clock, the state of a library), the second trace
has another program, constant or side effect.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from tensorgraft.compiled.captured_objects import in_library
from tensorgraft.compiled.source_location import quoted
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.compiler import TracedProgram

Check = Literal["second", "always", "never"]
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_LARGEST = 1 << 24  # bytes of a constant that are compared


def default_check() -> Check:
    """Return how traces are checked where a function does not say: `TENSORGRAFT_JIT_CHECK`, or "never"."""
    choice: Any = os.environ.get("TENSORGRAFT_JIT_CHECK", "never")
    if choice not in ("second", "always", "never"):
        raise ValueError(f"TENSORGRAFT_JIT_CHECK is {choice!r}: expected 'second', 'always' or 'never'")
    return choice


class Record:
    """A traced program as text, an operation a line, with the values of its constants.

    Arguments:
        backend: whose program it is.
        program: the traced program.
        constants: the captured arrays that are the same at every call.
        rest: descriptions of how results, gradients and side effects are made from its results.
        host: descriptions of the host's computations at a call.
    """

    def __init__(
        self,
        backend: Backend,
        program: TracedProgram,
        constants: Sequence[Any],
        rest: Sequence[str],
        host: Sequence[str] = (),
    ) -> None:
        self._program = program
        self._lines = [_ADDRESS.sub("0x", line) for line in program.listing()]
        self._constants = [_values(backend, a) for a in constants]
        self._rest = [_ADDRESS.sub("0x", line) for line in rest]
        self._host = [_ADDRESS.sub("0x", line) for line in host]

    def difference(self, other: Record) -> str | None:
        """Return a description of the first difference from another record, with the program's line if it is known;
        None if they are equal."""
        for k, (a, b) in enumerate(zip(self._lines, other._lines, strict=False)):
            if a != b:
                frames = other._program.frames_of(k)
                where = next((f", in {quoted(*frame)}" for frame in frames if not in_library(frame[0])), "")
                return f"an operation was {_short(a)} in its first trace and is {_short(b)} in another{where}"
        if len(self._lines) != len(other._lines):
            return f"its traces have {len(self._lines)} and {len(other._lines)} operations"
        for x, y in zip(self._constants, other._constants, strict=False):
            if x is not None and y is not None and not _equal(x, y):
                old_value, new_value = _short(str(x.tolist())), _short(str(y.tolist()))
                return f"a constant was {old_value} in its first trace and is {new_value} in another"
        if len(self._constants) != len(other._constants):
            return "its traces take different arrays from outside"
        for a, b in zip(self._host, other._host, strict=False):
            if a != b:
                return f"the CPU computes {_short(a)} in its first trace and {_short(b)} in another"
        if len(self._host) != len(other._host):
            return "its traces compute different things on the CPU"
        for a, b in zip(self._rest, other._rest, strict=False):
            if a != b:
                return f"it leaves {_short(a)} in its first trace and {_short(b)} in another"
        return None if len(self._rest) == len(other._rest) else "its traces change different things outside"


class CheckedTrace:
    """A trace that is traced once more before its second call: `check` raises, or returns the difference."""

    def __init__(
        self,
        trace: Any,
        known: list[Any],
        check: Callable[[Sequence[Any]], str | None],
        checks_always: bool,
        uncompiled: Callable[[list[Any], Any, str], Any],
    ) -> None:
        self._trace, self._known, self._check, self._checks_always = trace, known, check, checks_always
        self._uncompiled = uncompiled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)

    def __call__(self, leaves: Sequence[Any], first: bool = False) -> Any:
        if first:
            return self._trace(leaves, first)
        different = self._check(leaves)
        if different is not None:
            self._known.remove(self)
            return self._uncompiled(self._known, leaves, f"is not the same at each call: {different}")
        if not self._checks_always:
            self._known[self._known.index(self)] = self._trace
        return self._trace(leaves)


def _values(backend: Backend, array: Any) -> np.ndarray | None:
    if not backend.is_array(array) or backend.is_traced(array):
        return None
    size = int(np.prod(backend.shape(array))) * np.dtype(backend.dtype_of(array)).itemsize
    return np.asarray(backend.to_numpy(array)) if size <= _LARGEST else None


def _equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _short(text: str) -> str:
    return text if len(text) < 120 else text[:116] + " ..."
