"""Programs of the Array API standard, with views and writes through them, on every device; the reference is NumPy."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np
from tests.fuzz.kinds.array_api import along, derivatives, elementwise, made, matrices, views, writes  # noqa: F401  (they register)
from tests.fuzz.kinds.array_api.drawing import DYNAMIC, STATEMENTS, Drawing, Retry, data, result
from tests.fuzz.kinds.array_api.namespace import Namespace
from tests.fuzz.kinds.array_api.observed import Seen, compared, family, same_scalar, slack
from tests.fuzz.kinds.array_api.reference import Reference
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program

import tensorgraft.array_api as xp

__all__ = ["KIND", "ArrayAPI", "Retry", "Seen", "compared"]


class ArrayAPI(Kind):
    name = "array_api"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "jax": 1, "torch": 1, "tensorflow": 1}
    raising = 0.3
    length = (4, 16)
    everywhere = False  # whether all of the subjects' arithmetic may round otherwise
    dynamic = True

    def names(self, subject: str) -> dict[str, Any]:
        if subject == REFERENCE:
            space, device, ways = Namespace(), None, derivatives.NUMERICAL
        else:
            space, device, ways = xp, subject, derivatives.OURS
        return {"xp": space, "D": device, "data": lambda *args: data(space, device, *args), **ways}

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        d = Drawing(rng, names)
        if len(d.arrays) < 2:
            return result(d, d.new())
        choices = [(w, f) for w, f in STATEMENTS if self.dynamic or f not in DYNAMIC]
        while True:
            f = rng.choices([f for _, f in choices], [w for w, _ in choices])[0]
            try:
                return f(d)
            except Retry:
                continue

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for n, x in names.items():
            if n[0] == "v" and n[1:].isdigit():
                seen[n] = np.asarray(x) if hasattr(x, "dtype") else x
            elif n[0] == "s" and n[1:].isdigit():
                seen[n] = x
        return seen

    def play(self, program: Program, subject: str) -> Outcome:
        return self.judged(program, 3) if subject == REFERENCE else self.on(program, subject)

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        return None if self.differences(self.judged(program, 40), found, program) else "rounding decides"

    def judged(self, program: Program, shakes: int) -> Outcome:
        """On the reference, and so many times with other roundings."""
        Reference.everywhere = self.everywhere
        found = super().play(program, REFERENCE)
        others = []
        for seed in range(shakes):
            Reference.rng = np.random.default_rng(seed)
            try:
                others.append(super().play(program, REFERENCE))
            finally:
                Reference.rng = None
        unstable = any(o.raised != found.raised for o in others)
        for n, x in found.observed.items():
            moved = [o.observed.get(n) for o in others]
            if isinstance(x, np.ndarray):
                found.observed[n] = Seen(np.array(x), None if unstable else slack(x, moved))
            elif any(not same_scalar(x, m) for m in moved):
                found.observed[n] = Seen(np.zeros(()), None)
        return found

    def on(self, program: Program, subject: str) -> Outcome:
        return super().play(program, subject)

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        lines = []
        for i in sorted(expected.raised | found.raised):
            a, b = expected.raised.get(i), found.raised.get(i)
            if a is None or b is None or family(a) != family(b):
                lines.append(f"statement {i}: {b or 'no exception'}, expected {a or 'none'}")
        for n, x in expected.observed.items():
            if n not in found.observed:
                lines.append(f"{n}: missing")
            elif isinstance(x, Seen):
                if x.slack is not None and (line := compared(x, found.observed[n])):
                    lines.append(f"{n}: {line}")
            elif not same_scalar(x, found.observed[n]):
                lines.append(f"{n}: {found.observed[n]!r}, expected {x!r}")
        return lines


KIND = ArrayAPI()
