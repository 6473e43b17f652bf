"""Calls of compiled functions that run as eager code, since a program cannot do at every call what the function
does."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tensorgraft.compiled.function import Flattened, Report, call_of
from tensorgraft.compiled.source_location import OURS, program_frame, quoted
from tensorgraft.errors import CompilationError, FallbackError, MissingNameError

KEEPS_VALUE_OF_BODY = "keeps a value from the body of a loop or branch outside of it"


class RunsUncompiled(Exception):
    """Raised inside a trace for a function that has to run uncompiled; the message follows the function's name."""


def results_flattened(flatten: Callable[[Any], Flattened], results: Any) -> Flattened:
    """Flatten the result of a function. Raises RunsUncompiled for a container that contains itself."""
    try:
        return flatten(results)
    except RecursionError:
        raise RunsUncompiled("returns a container that contains itself") from None


class UncompiledWarning(UserWarning):
    """Shown for a function under `tg.jit` that runs as eager code, since a compiled program cannot do the same at every
    call."""


def warn_uncompiled(name: str, reason: str, instead: str = "It runs uncompiled, operator by operator") -> None:
    """Warn once for a signature, at the program's line, that it runs as eager code, or of another consequence
    (`instead`)."""
    words = f"{name} {reason}. {instead}; do that outside, and pass what comes of it, for a compiled program"
    warn_in_program(lambda line: f"{line}: {words}", UncompiledWarning)


def warn_in_program(words: Callable[[str], str], kind: type[Warning]) -> None:
    """Warn at the program's line; `words` is called with that line."""
    frame = program_frame(sys._getframe(1)) or sys._getframe(1)
    file, line = frame.f_code.co_filename, frame.f_lineno
    registry = frame.f_globals.setdefault("__warningregistry__", {})
    text = words(quoted(file, line))
    warnings.warn_explicit(text, kind, file, line, frame.f_globals.get("__name__"), registry)


def call_traced(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function that is traced: its exceptions have this frame in their traceback."""
    return fn(*args, **kwargs)


def raised_by_the_function(error: Exception) -> bool:
    """Return True for an error that the function itself has raised, as its eager code would, False for one of the trace
    or a backend, or for lack of memory."""
    if isinstance(error, CompilationError | FallbackError | MissingNameError | MemoryError):
        return False
    if type(error).__module__.partition(".")[0] in _OF_BACKENDS:
        return False
    frame_traceback, is_inside, code = error.__traceback__, False, call_traced.__code__
    while frame_traceback is not None:
        code = frame_traceback.tb_frame.f_code
        is_inside = is_inside or code is call_traced.__code__
        if code.co_name == "__torch_dispatch__" and not code.co_filename.startswith(OURS):
            return False  # raised by a mode or a tensor subclass of the program
        frame_traceback = frame_traceback.tb_next
    # raised by tensorgraft for a kernel or a rule that is missing
    missing = isinstance(error, NotImplementedError) and code.co_filename.startswith(OURS)
    return is_inside and not missing


_OF_BACKENDS = {"jax", "jaxlib", "tensorflow"}


def when_traced(error: Exception) -> str:
    """Return the message, after the function's name, for an error that is raised in a trace and not in eager code."""
    return f"raises {type(error).__name__} when it is traced ({error})"


def first_run(
    trace: Any, entry: Any, known: list[Any], leaves: Sequence[Any], uncompiled: Callable[[list[Any], Any, str], Any]
) -> Any:
    """Call a trace for the first time. If its program cannot be compiled, and the function changes objects, these may
    hold a value from the body of a loop: `entry`, the trace in `known`, is removed, and the function runs
    uncompiled."""
    try:
        return trace(leaves)
    except Exception:
        if trace.ran or not trace.changes:
            raise
    known.remove(entry)
    return uncompiled(known, leaves, KEEPS_VALUE_OF_BODY)


class Uncompiled:
    """Calls that run the function itself, in place of a trace. `run`: calls the function."""

    changes = ()

    class guards:
        """Guards of an uncompiled call: nothing has to hold."""

        @staticmethod
        def hold(leaves: Sequence[Any]) -> bool:
            return True

        @staticmethod
        def are_there() -> bool:
            return True

        @staticmethod
        def failure(leaves: Sequence[Any], names: dict[int, str]) -> str:
            return "nothing that has a name"

    def __init__(
        self, fn: Callable[..., Any], report: Report, run: Callable[[Any, Any, Any], Any] | None = None
    ) -> None:
        self._fn, self._report, self._run = fn, report, run

    def __call__(self, leaves: Sequence[Any], first: bool = False) -> Any:
        self._report.cold += 1
        args, kwargs = call_of(leaves)
        return self._fn(*args, **kwargs) if self._run is None else self._run(self._fn, args, kwargs)
