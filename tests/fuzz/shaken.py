"""Kinds that play a program as one function of its data; the reference runs it also on data that is a few eps off."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from tests.fuzz.kinds.array_api import Retry, Seen
from tests.fuzz.kinds.jax import differs, slack
from tests.fuzz.program import Kind, Outcome, Program


class Shaken(Kind):
    length: ClassVar[tuple[int, int]] = (4, 10)
    raising: ClassVar[float] = 0.0
    shakes = 3

    @abstractmethod
    def drawn(self, rng: random.Random, names: dict[str, Any]) -> str:
        """A statement; raises Retry where there is nothing to draw it from."""

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        while True:
            try:
                return self.drawn(rng, names)
            except Retry:
                continue

    def shaken(self, run: Callable[[np.random.Generator | None], dict[str, np.ndarray]]) -> dict[str, Seen]:
        """What `run` gives, and how far that moves with its data, which a generator shakes."""
        first, *others = [run(np.random.default_rng(seed) if seed else None) for seed in range(self.shakes + 1)]
        return {n: Seen(x, slack(x, [o[n] for o in others if n in o])) for n, x in first.items()}

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        self.shakes = 40
        try:
            again = self.play(program, self.reference(subject))
        finally:
            self.shakes = 3
        return None if self.differences(again, found, program) else "rounding decides"

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        if expected.raised or found.raised:
            if expected.raised and found.raised:
                return []
            return [f"{found.raised.get(0) or 'no exception'}, expected {expected.raised.get(0) or 'none'}"]
        lines = []
        for n, seen in expected.observed.items():
            if n not in found.observed:
                lines.append(f"{n}: missing")
            elif line := differs(seen, found.observed[n]):
                lines.append(f"{n}: {line}")
        return lines
