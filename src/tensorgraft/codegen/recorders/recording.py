"""A backend that records steps which know where they come from: the line, and the calls of modules around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tensorgraft.codegen.simplification.rewriting import say
from tensorgraft.codegen.trace import SourceStep
from tensorgraft.hub.recorded.block import Call
from tensorgraft.hub.recorded.tracing import ProgramBackend

Scope = tuple[int, ...]  # numbers of the calls around a step, from outside


@dataclass(eq=False)
class ScopedStep(SourceStep):
    scope: Scope = ()


class ScopedRecorder(ProgramBackend):
    """Records steps, and words."""

    def __init__(self) -> None:
        super().__init__()
        self.at_place = ""
        self.at_scope: Scope = ()
        self.notes: list[str] = []

    def _append(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        result_vars = super()._append(method, args, kwargs, result)
        calls: list[Call] = self._local.calls
        calls[-1] = ScopedStep(method, args, kwargs, result_vars, place=self.at_place, scope=self.at_scope)
        return result_vars

    def note(self, sentence: str) -> None:
        """Something for the report, once, with the place."""
        sentence = f"{self.at_place}: {sentence}" if self.at_place else sentence
        if sentence not in self.notes:
            self.notes.append(sentence)

    def word(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Record a word of `tensorgraft.codegen.words`."""
        return say(self, name, *args, **kwargs)
