"""Analyses of traced programs by a backend."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Cost:
    """The number of operations of a program, and an estimate of their computations and memory traffic before fusion."""

    operations: int = 0
    flops: float = 0.0
    bytes: float = 0.0

    def add(self, operations: int, flops: float, bytes: float) -> None:
        self.operations += operations
        self.flops += flops
        self.bytes += bytes


@dataclass
class Memory:
    """Bytes that a compiled program needs. `alias`: of outputs that take the memory of donated arguments."""

    arguments: int = 0
    outputs: int = 0
    alias: int = 0
    temporary: int = 0
    peak: int = 0


@dataclass(frozen=True)
class Collective:
    """A step of a compiled program on several devices in which they exchange numbers."""

    kind: str  # "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"
    bytes: int  # bytes of its result on one device
    label: str  # the label of the operation that requires it (`Backend.labelled`); "" if not known
    group: tuple[int, ...] = ()  # devices that exchange with each other, by their places in the mesh: the first of them


@dataclass
class Analysis:
    """The result of `TracedProgram.analyse`. What the backend does not tell is None."""

    primitives: dict[str, int]  # {primitive: number of occurrences in the program, with bodies of loops once}
    costs: dict[str, Cost] = field(default_factory=dict)  # {label (`Backend.labelled`), "" without one: cost}
    first_use: list[str | None] = field(default_factory=list)  # for each captured array, the label of its first reader
    unbounded: int = 0  # loops of unknown length, whose bodies are counted once
    compile_seconds: float | None = None
    compiled_operations: int | None = None  # instructions that are left when the backend has optimised, and
    kernels: int | None = None  # the number of those that run as single kernels (a fusion is one)
    flops: float | None = None
    bytes: float | None = None  # bytes that the compiled program reads and writes
    memory: Memory | None = None
    collectives: list[Collective] = field(default_factory=list)  # those in bodies of loops once
