"""Programs that another thread compiles (`tg.jit(fn, compile="background")`), while calls run the function itself.

The first call of a signature only runs the function, which creates state such as that of an optimizer. The second one
traces it, undoes the effects of the trace, and starts the compilation in another thread. The call that switches to the
program has a fixed number, and waits for it, so that which calls are compiled does not depend on time. Only
`at="ready"` switches at the first call that finds the program finished.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tensorgraft.compiled import patience
from tensorgraft.compiled.function import Report, call_of, one_at_a_time
from tensorgraft.compiled.program import ProgramInputs
from tensorgraft.compiled.uncompiled import first_run

When = Literal["first", "recurring", "background"]  # a signature of a function of `tg.jit` is compiled
At = int | Literal["ready"]
# The number of the call of a signature that switches. Compiling a training step takes 20 to 60 eager steps.
SWITCH = 32
TRACED = 2  # the number of the call that traces

_AT_ONCE = max(1, (os.cpu_count() or 2) // 2)  # programs that are compiled
_slots = threading.BoundedSemaphore(_AT_ONCE)


def _after_fork() -> None:
    global _slots  # those that were taken are never given back
    _slots = threading.BoundedSemaphore(_AT_ONCE)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def checked(when: str, at: Any) -> At:
    """Return the number of the call of a signature that switches. Raises ValueError for an invalid `at` or `when`."""
    if when != "background":
        if at is not None:
            raise ValueError(f"tg.jit(fn, at=...) is for compile='background', and this is compile={when!r}")
        return SWITCH
    if at is None or at == "ready":
        return at or SWITCH
    if not isinstance(at, int) or at < TRACED:
        raise ValueError(f"tg.jit(fn, at=...): expected the number of a call, from {TRACED} on, or 'ready', got {at!r}")
    return at


def preparation(run: Callable[..., Any], inputs: ProgramInputs, leaves: Sequence[Any]) -> Callable[[], None] | None:
    """Return a function that compiles a program for a call in another thread, or None if the call has to compile it."""
    prepare: Callable[[Sequence[Any]], Callable[[], None]] | None = getattr(run, "prepare", None)
    return None if prepare is None else prepare(inputs.examples(leaves))


class Compilation:
    """A compilation in another thread. At the end of the process a running one is waited for, since it cannot be
    interrupted, and others are skipped."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare: Callable[[], None] | None = prepare
        self._process = os.getpid()
        self._begun = threading.Lock()  # acquired by the thread that compiles, and not released
        self._finished = threading.Event()
        self._error: Exception | None = None
        self.seconds = 0.0
        with contextlib.suppress(RuntimeError):  # no more threads, or the process is about to end: its call compiles it
            threading.Thread(target=self._run, name="tensorgraft-compile").start()

    def _run(self) -> None:
        with _slots:
            if not threading.main_thread().is_alive() or not self._begun.acquire(blocking=False):
                return
            assert self._prepare is not None
            start = time.perf_counter()
            try:
                self._prepare()
            except Exception as error:
                self._error = error
            finally:
                self._prepare, self.seconds = None, time.perf_counter() - start
                self._finished.set()

    @property
    def is_finished(self) -> bool:
        return self._finished.is_set()

    def wait(self) -> Exception | None:
        """Wait for the program, and return the compiler's exception, if any. Return at once if no compilation has
        started or none can end (the process was forked since): the next call compiles."""
        if self._process != os.getpid() or self._begun.acquire(blocking=False):
            return None
        self._finished.wait()
        return self._error


class BackgroundTrace:
    """A trace that is compiled in the background: its calls run the function as eager code until the program is ready.

    Arguments:
        trace: the trace, whose effects have been undone.
        known: the list of traces in which this replaces the trace.
        prepare: compiles the program; None if its first call does.
        run: calls the function as eager code.
        uncompiled: calls a function that cannot be one program, for the reason given.
        deferred: no thread compiles; the next call with this signature does.
    """

    def __init__(
        self,
        trace: Any,
        known: list[Any],
        prepare: Callable[[], None] | None,
        at: At,
        report: Report,
        run: Callable[[Any, Any], Any],
        uncompiled: Callable[[list[Any], Any, str], Any],
        deferred: bool = False,
    ) -> None:
        self.guards, self._trace, self._known = trace.guards, trace, known
        self._deferred = deferred
        self._at, self._report, self._run, self._uncompiled = at, report, run, uncompiled
        self._calls = itertools.count(TRACED)
        which = "the first call that finds it" if at == "ready" else f"call {at} of this signature"
        self.waits = f"{which} switches to the program that another thread compiles"
        if deferred:
            self.waits = "the next call with this signature compiles it"
        is_needed = prepare is not None and at != TRACED
        self._compilation = Compilation(prepare) if prepare is not None and is_needed else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)

    def __call__(self, leaves: Sequence[Any], first: bool = False) -> Any:
        number = next(self._calls)
        if not (self._is_ready() if self._at == "ready" else number >= self._at):
            self._report.cold += 1
            return self._run(*call_of(leaves))
        self._switch()
        return first_run(self._trace, self._trace, self._known, leaves, self._uncompiled)

    def _is_ready(self) -> bool:
        return self._compilation is None or self._compilation.is_finished

    def _switch(self) -> None:
        """Wait for the program, and replace this by the trace. Raises the compiler's exception; the next call compiles
        again."""
        error = None
        if self._compilation is not None:
            with patience.progress_shown(self._report.name):
                error = self._compilation.wait()
        with one_at_a_time:
            if self in self._known:  # another thread may have been here
                self._known[self._known.index(self)] = self._trace
                if not self._deferred:
                    self._report.switched.append(self._report.calls)
                self._report.compile_seconds += 0 if self._compilation is None else self._compilation.seconds
        if error is not None:
            raise error
