"""The choice between the tiers of eager computation: an operation is computed without a compiler, or compiled once that
is worth its cost.

A backend that compiles may have a cold tier: another way to compute on the same memory that needs no compiler
(`Backend.cold`). There are two cold tiers. If the front end's framework has a kernel for an operator (of a PyTorch
program, on the host's memory), that kernel always computes it: it is as fast as a compiled program of one operation,
and gives the framework's own bits. Elsewhere the hub's operations run one by one on the cold backend, until the work
that a signature (an operation with its shapes, dtypes and static arguments) has done, counted in calls and elements and
never in time, would have paid for a compilation; so a program that is run again takes the same ways, and gives the same
bits.

The last bits of operations that round more than once (sums, products of matrices, transcendental functions, a
multiplication and an addition that a compiler fuses) can differ between a tier and a compiled program, since each
orders and approximates them in its own way. Operations that move data or round once have the same bits.

On a device whose memory the host cannot read (`Backend.host_visible`), the cold tier computes on copies, for the first
calls of every signature: results stay on the host until a program of the device needs them. There the work of CPU
PyTorch's kernels is counted, too, and so are the copies. `TENSORGRAFT_TIER=none` treats every device as such a one.
"""

from __future__ import annotations

import os
from typing import Literal, get_args

Mode = Literal["tiered", "compiled"]
When = Literal["first", "recurring"]  # a signature of a function of `tg.jit` is compiled

# Calls of one signature whose operations, one by one, take about as long as compiling them (60 ms; some 15 us a call).
CALLS = 4096
# Elements of operands and results that NumPy passes over, operation by operation, in the time of a compilation.
ELEMENTS = 1 << 24
COPY = 4  # calls that take as long as a copy from a device


def _checked(mode: str) -> Mode:
    if mode not in get_args(Mode):
        raise ValueError(f"expected the eager mode 'tiered' or 'compiled', got {mode!r}")
    return mode  # type: ignore[return-value]


def _reads_memory(tier: str) -> bool:
    if tier not in ("host", "none"):
        raise ValueError(f"expected TENSORGRAFT_TIER to be 'host' or 'none', got {tier!r}")
    return tier == "host"


# the host reads the memory of devices where it can
READS_MEMORY = _reads_memory(os.environ.get("TENSORGRAFT_TIER", "host"))


class _State:
    mode: Mode = _checked(os.environ.get("TENSORGRAFT_EAGER", "tiered"))


_state = _State()


def mode() -> Mode:
    """Return the mode in which eager operations are computed now."""
    return _state.mode


def tiered() -> bool:
    """Return True if the backend computes new signatures without a compiler at first."""
    return _state.mode == "tiered"


def set_mode(mode: str) -> None:
    """Raises ValueError for anything but "tiered" (the default; `$TENSORGRAFT_EAGER`) and "compiled"."""
    _state.mode = _checked(mode)


class eager:
    """Set the mode in which eager operations are computed from here on, or inside `with`: "tiered" (the default; also
    by `$TENSORGRAFT_EAGER`), where signatures are computed without a compiler until they have recurred often, or
    "compiled", where they are compiled at their first call. Results are the same.

    Raises ValueError for another mode.

    >>> import tensorgraft as tg
    >>> with tg.eager("compiled"):
    ...     pass  # programs that are timed from their second call on
    """

    def __init__(self, mode: str) -> None:
        self._before = _state.mode
        set_mode(mode)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        set_mode(self._before)


class Heat:
    """The work that one signature has done cold."""

    __slots__ = ("calls", "elements")

    def __init__(self) -> None:
        self.calls = self.elements = 0

    def spent(self, elements: int, copies: int = 0) -> bool:
        """Count one more call on so many elements, for which arrays were copied, and return True once compiling is
        worth it."""
        self.calls += 1 + COPY * copies
        self.elements += elements
        return self.calls > CALLS or self.elements > ELEMENTS
