"""The data of an explanation."""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorgraft.hub.analysis import Analysis, Collective


@dataclass
class Input:
    """An array that the compiled program is given at every call."""

    kind: str  # argument, parameter, buffer, gradient, optimizer state, captured, host, constant
    name: str  # the name in the program
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    written: bool = False
    donated: bool = False  # its memory is used again
    bytes_each: int = 0  # on each device, where it is spread over several


@dataclass
class OperatorUse:
    """Calls of an operator of the program in one of its lines."""

    name: str
    place: str  # file:line
    source: str  # the line
    backward: bool  # in the backward pass of that line
    calls: int = 0
    flops: float = 0.0
    bytes: float = 0.0
    label: str = ""  # in the program


@dataclass
class Fallback:
    """An operator without a kernel: eagerly it runs on the CPU, `tg.jit` refuses it."""

    name: str
    place: str
    calls: int = 0


@dataclass
class Traced:
    """One trace of a compiled function, and the properties of its call that were new."""

    reasons: list[str]  # [] for the first
    operations: int


@dataclass
class ExplainedCall:
    """The numbers and names that describe how `tg.jit` compiles one call."""

    name: str
    backend: str
    program: Analysis
    inputs: list[Input]
    operators: list[OperatorUse]  # the most expensive first
    results: int
    kept_for_backward: tuple[int, int]  # tensors and bytes, where a result can be differentiated
    trace_seconds: float
    gradients: int = 0  # bytes of those that parameters have afterwards and had not before, on each device
    fallbacks: list[Fallback] = field(default_factory=list)
    traces: list[Traced] = field(default_factory=list)  # the traces of a function compiled by `tg.jit`
    calls: int = 0
    cold: int = 0  # the number of calls that ran uncompiled, because their signatures had not recurred
    switched: list[int] = field(default_factory=list)  # the calls from which on it ran what another thread compiled
    waits: str = ""  # the reason for which this call runs the function itself
    # what is new in this call; [] if it would run a compiled program
    this_call: list[str] = field(default_factory=list)

    def exchanges(self) -> list[tuple[Collective, OperatorUse | None]]:
        """Return the communication between devices, each with the operator that causes it, if known."""
        by_label = {o.label: o for o in self.operators if o.label}
        return [(collective, by_label.get(collective.label)) for collective in self.program.collectives]
