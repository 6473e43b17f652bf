"""`tg.jit(fn, guard_values=True)`: integers and truths that Python asks for are looked at instead of refused.

The function is traced up to where a value is asked for; the program so far computes it; then the function is traced
again, which is given the answer. Each call computes what was asked for before anything else, in a program of its own
that has nothing else in it, and where an answer is another one, the function is traced for that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.guards import Guards
from tensorgraft.frontends.torch.sources import Inputs
from tensorgraft.hub.backend import Backend

Array = Any
_MOST = 64  # in one trace


class Unanswered(BaseException):
    """A value is asked for that is not known yet. Programs do not catch it."""


class Values:
    """What is asked for in one trace."""

    def __init__(self, answers: Sequence[int] = ()) -> None:
        self.answers = list(answers)
        self.arrays: list[Array] = []  # 0-d, in the order in which they are asked for
        self.missing = False  # there was no answer for the last one

    def ask(self, x: torch.Tensor, array: Array) -> int:
        """The answer to `.item()` of an integer or a bool. Raises Unanswered, and TracedValueError for too many."""
        if len(self.arrays) == _MOST:
            raise TracedValueError(f"more than {_MOST} values are asked for: decide outside, or by torch.where")
        xp = state.now.capture.backend  # type: ignore[union-attr]
        self.arrays.append(xp.reshape(array, ()))
        if len(self.arrays) > len(self.answers):
            raise Unanswered
        return self.answers[len(self.arrays) - 1]

    def asking(self, traced: Callable[[], list[Array]]) -> Callable[[], list[Array]]:
        """The function to trace: its results and then what was asked for, or the one that is not known."""

        def run() -> list[Array]:
            try:
                return traced() + self.arrays
            except Unanswered:
                self.missing = True
                return self.arrays[-1:]

        return run


class ValueGuards:
    """The guards of a trace, and that the answers are still the same."""

    def __init__(self, guards: Guards, values: Values, program: Any, inputs: Inputs, backend: Backend) -> None:
        self._guards, self._inputs, self._backend = guards, inputs, backend
        self._answers = values.answers
        whole, n = program.compile(), len(values.answers)
        self._run = backend.compile(lambda *arrays: whole(*arrays)[-n:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guards, name)

    def hold(self, leaves: Sequence[Any]) -> bool:
        return self._guards.hold(leaves) and self._now(leaves) == self._answers

    def broken(self, leaves: Sequence[Any], names: dict[int, str]) -> str:
        if not self._guards.hold(leaves):
            return self._guards.broken(leaves, names)
        return f"values that Python asks for are {self._now(leaves)}, were {self._answers}"

    def _now(self, leaves: Sequence[Any]) -> list[int]:
        return [self._backend.to_numpy(a).item() for a in self._run(*self._inputs.now(leaves))]
