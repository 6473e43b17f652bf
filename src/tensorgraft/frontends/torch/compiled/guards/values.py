"""Guards of a trace that was told values: they are computed before each use, and are to be the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorgraft.compiled.program import ProgramInputs
from tensorgraft.frontends.torch.compiled.guards.assumptions import Guards
from tensorgraft.frontends.torch.core.values import Values
from tensorgraft.hub.backend import Backend


class ValueGuards:
    """The guards of a trace, and that the answers are still the same."""

    def __init__(self, guards: Guards, values: Values, program: Any, inputs: ProgramInputs, backend: Backend) -> None:
        self._guards, self._inputs, self._backend = guards, inputs, backend
        self._expected = values.answers
        full_program, n = program.compile(), len(values.answers)
        self._run = backend.compile(lambda *arrays: full_program(*arrays)[-n:])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guards, name)

    def hold(self, leaves: Sequence[Any]) -> bool:
        return self._guards.hold(leaves) and all(map(np.array_equal, self.current_values(leaves), self._expected))

    def failure(self, leaves: Sequence[Any], names: dict[int, str]) -> str:
        if not self._guards.hold(leaves):
            return self._guards.failure(leaves, names)
        for value_now, before in zip(self.current_values(leaves), self._expected, strict=True):
            if not np.array_equal(value_now, before):
                return f"a value that Python asks for is {_words(value_now)}, was {_words(before)}"
        return "values that Python asked for were others for a moment"

    def current_values(self, leaves: Sequence[Any]) -> list[np.ndarray]:
        return [self._backend.to_numpy(a) for a in self._run(*self._inputs.current_arrays(leaves))]


def _words(values: np.ndarray) -> str:
    return str(values) if values.size < 9 else f"{str(values.ravel()[:8])[:-1]} ...]"
