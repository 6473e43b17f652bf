"""A program of another framework as a list of steps in operations of the hub, which can be run as one compiled program.

Front ends that read programs (jaxprs, graphs of TensorFlow) create these lists; each step runs one of their rules.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorgraft.compiled.replayed_loops import ReplayedLoops
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


@dataclass
class RuleStep:
    """One operation of the program. Slots are positions in the environment."""

    name: str
    run: Callable[..., Any]  # (xp, *operands) -> the result or results
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    is_list: bool
    frees: tuple[int, ...] = ()  # slots that are not read again


@dataclass
class StepsPlan:
    """Steps over numbered slots. A front end defines how its constants become values (`converted`)."""

    size: int = 0
    parameters: list[int] = field(default_factory=list)
    constants: list[tuple[int, Any]] = field(default_factory=list)  # slot -> a value of the host
    steps: list[RuleStep] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    _on: weakref.WeakKeyDictionary[Backend, list[Any]] = field(default_factory=weakref.WeakKeyDictionary)  # constants

    def __call__(self, xp: Backend, *operands: Any) -> list[Any]:
        """Run the steps. Operands are arrays of `xp`, or other values that the rules accept."""
        slots: list[Any] = [None] * self.size
        constants = self._converted(xp)
        for (slot, _), value in zip(self.constants, constants, strict=True):
            slots[slot] = value
        for slot, value in zip(self.parameters, operands, strict=True):
            slots[slot] = value
        for step in self.steps:
            results = step.run(xp, *[slots[i] for i in step.reads])
            if step.is_list:
                for slot, value in zip(step.writes, results, strict=True):
                    slots[slot] = value
            else:
                slots[step.writes[0]] = results
            for slot in step.frees:
                slots[slot] = None
        outputs = [slots[i] for i in self.results]
        if constants and xp.mutable and not xp.in_trace():
            # a result may be a constant, which a branch has passed on: writes to it must not change the next call
            constant_ids = {id(a) for value in constants for a in self.arrays_in(value)}
            outputs = [xp.copy(x) if id(x) in constant_ids and xp.is_array(x) else x for x in outputs]
        return outputs

    def converted(self, xp: Backend, value: Any) -> Any:
        """Return the form of a constant that the steps take on a backend."""
        return value

    def arrays_in(self, value: Any) -> Sequence[Array]:
        """Return the arrays of the backend in a converted constant."""
        return (value,)

    def new_slot(self) -> int:
        self.size += 1
        return self.size - 1

    def _converted(self, xp: Backend) -> list[Any]:
        constants = None if xp.in_trace() else self._on.get(xp)
        if constants is None:
            values = [self.converted(xp, x) for _, x in self.constants]
            if xp.in_trace() or any(xp.is_array(a) and xp.is_traced(a) for v in values for a in self.arrays_in(v)):
                return values  # constants of a trace, which may not be used outside of it
            constants = self._on[xp] = values
        return constants

    def finish(self) -> None:
        """Drop constants that no step reads, and say after which step each slot is read no more."""
        read = {*self.results, *(slot for step in self.steps for slot in step.reads)}
        self.constants = [(slot, value) for slot, value in self.constants if slot in read]
        live_slots = {*self.results, *self.parameters, *(slot for slot, _ in self.constants)}
        for step in reversed(self.steps):
            frees = {*step.reads, *step.writes} - live_slots
            step.frees = tuple(frees)
            live_slots |= frees


class CompiledPart:
    """A function `evaluate(xp, arrays) -> arrays`, run operation by operation, or as one program of each backend."""

    def __init__(
        self, evaluate: Callable[[Backend, Sequence[Array]], list[Array]], compiled: bool, has_loops: bool = False
    ) -> None:
        self.is_compiled = compiled
        self._evaluate = evaluate
        self._replayed = ReplayedLoops(evaluate) if has_loops else None
        self._programs: weakref.WeakKeyDictionary[Backend, Callable[..., list[Array]]] = weakref.WeakKeyDictionary()

    def __call__(self, xp: Backend, arrays: Sequence[Array]) -> list[Array]:
        is_compiled = self.is_compiled and xp.traces and not any(map(xp.is_traced, arrays))
        if self._replayed is not None:
            results = self._replayed(xp, arrays, is_compiled)
            if results is not None:
                return results
        if not is_compiled:
            return self._evaluate(xp, arrays)
        program = self._programs.get(xp)
        if program is None:
            program = self._programs[xp] = self._compile(xp, arrays)
        return program(arrays)

    def _compile(self, xp: Backend, arrays: Sequence[Array]) -> Callable[[Sequence[Array]], list[Array]]:
        stand_ins = [xp.stand_in(a) for a in arrays]
        program = xp.trace(lambda: self._evaluate(xp, self._operands(xp, stand_ins)))
        argument = {id(a): i for i, a in enumerate(stand_ins)}
        sources = [argument.get(id(a), a) for a in program.captured]
        run = program.compile()
        return lambda arrays: list(run(*[arrays[s] if isinstance(s, int) else s for s in sources]))

    def _operands(self, xp: Backend, stand_ins: Sequence[Array]) -> Sequence[Array]:
        """Return the operands of `evaluate` in the trace: the stand-ins, as it does not ask for values."""
        return stand_ins
