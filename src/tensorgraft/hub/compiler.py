"""Programs that a backend compiles, traces and records."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from tensorgraft.hub.analysis import Analysis
from tensorgraft.hub.array import Array
from tensorgraft.hub.placement import Placement
from tensorgraft.hub.primitive import primitive


class TracedProgram(Protocol):
    """A program that `Backend.trace` has recorded."""

    @property
    def captured(self) -> Sequence[Array]:
        """The arrays from outside that the program reads, each once."""

    @property
    def size(self) -> int:
        """The number of operations of the program."""

    def listing(self) -> list[str]:
        """Return the program as text, a line for each operation: the same for the same program."""

    def frames_of(self, line: int) -> Sequence[tuple[str, int]]:
        """Return the files and lines, innermost first, that a line of the listing comes from, where they are known."""

    def compile(self, donate: Sequence[int] = ()) -> Callable[..., tuple[Array, ...]]:
        """Return a compiled function from the captured arrays (in order, or others of their shapes and dtypes) to the
        results.

        `donate`: positions whose memory may be reused. If donation requires that the arrays have no other references,
        the function has `takes`, these positions, and `take(list of arrays)`, which removes them from the list, and
        restores them on an exception. If another thread may compile, the function has `prepare(arrays)`, which returns
        a function that compiles for such arrays without running; it keeps no reference to them.
        """

    def analyse(self, donate: Sequence[int] = ()) -> Analysis:
        """Return the operations of the program, and its requirements when it is compiled (which is done here)."""


class Compiler:
    """The part of a backend for compiled functions, traces, and recorded operations."""

    name: str
    compiles = False  # `compile` makes something faster than the function itself
    records = False  # operations are recorded and compiled together: see `hub.recorded.backend`
    dynamo: str | None = None  # the backend of `torch.compile` that computes on this framework's own arrays

    def dialect(self) -> Any | None:
        """Return new words for programs that compute at once (`hub.recorded.native.Dialect`); None for a backend whose
        operations are compiled."""
        return None

    @primitive
    def compile(self, fn: Callable[..., Any], /, donate: Sequence[int] = ()) -> Callable[..., Any]:
        """Compile `fn` (arrays and Python scalars in flat positional arguments -> a flat tuple of arrays) once per
        shapes and dtypes. `donate`: positions whose memory may be reused. Returns `fn` itself if nothing compiles."""
        raise NotImplementedError

    def is_tracing(self) -> bool:
        """Return True if a program is being traced: new results belong to it, even if the operands have values."""
        return False

    # ---- backends that trace only ----------------------------------------------------------------------------------

    @property
    def traces(self) -> bool:
        """Return True if `trace` compiles programs of functions. Backends that compile do, and some that compile
        nothing smaller."""
        return self.compiles

    def trace(self, fn: Callable[[], Sequence[Array]], /) -> TracedProgram:
        """Run `fn` once on stand-ins; the arrays that it captures become inputs of the program."""
        raise TypeError(f"the backend {self.name} cannot trace programs")

    def eagerly(self) -> contextlib.AbstractContextManager[None]:
        """Inside `trace`: the context in which operations on known values are computed at once."""
        raise TypeError(f"the backend {self.name} cannot trace programs")

    def labelled(self, label: str, /) -> contextlib.AbstractContextManager[None]:
        """Inside `trace`: the context whose operations `TracedProgram.analyse` counts under this label, where it counts
        so finely."""
        return contextlib.nullcontext()

    def abstract(self, shape: tuple[int, ...], dtype: np.dtype, placement: Placement | None = None, /) -> Array:
        """Return an array with a placement and without memory. A trace accepts it like any other array; the program can
        be analysed, but not run."""
        raise TypeError(f"the backend {self.name} has no abstract arrays")

    def stand_in(self, x: Array, /) -> Array:
        """Another object for the same array, without a copy: `trace` tells captured arrays apart by identity."""
        raise TypeError(f"the backend {self.name} cannot trace programs")

    def as_traced(self, x: Array, /) -> Array:
        """Return the array of `x` in a trace (`is_traced`), also for a stand-in that has a value while it is traced."""
        return x

    def eval_shape(self, fn: Callable[..., Any], /, *operands: Any) -> tuple[tuple[tuple[int, ...], np.dtype], ...]:
        """Return the shapes and dtypes of the results of `fn`, a `compile`d function, for operands given as (shape,
        dtype) or Python scalars. Raises the errors of `fn` while it is traced."""
        raise TypeError(f"the backend {self.name} cannot trace programs")

    # ---- backends that record only ---------------------------------------------------------------------------------

    def is_hot(self, operation: Any, /) -> bool:
        """Count an operation (a hashable description). Return True if a backend with a cold tier is to record it, since
        the piece of the program that it belongs to has recurred; False if it is to be computed cold."""
        raise NotImplementedError

    def flush(self) -> None:
        """Tell a backend that records operations that a value is read."""
        return None
