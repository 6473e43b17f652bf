"""Functions of JAX as recorded programs of the hub, encoded as JSON and read again, against themselves step by step.

The reference is the same backend without a recording, so that every bit is to be equal, and XLA compiles nothing.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import jax
import numpy as np
from tests.fuzz.kinds.jax import Jax, wide
from tests.fuzz.program import REFERENCE, Outcome, Program, other_values

from tensorgraft.frontends.jax.evaluate import plan
from tensorgraft.hub import registry
from tensorgraft.hub.recorded import record
from tensorgraft.hub.recorded.encoding import decode, encode


class Recorded(Jax):
    name = "recorded"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "torch": 2, "jax": 20, "tensorflow": 8}

    def reference(self, subject: str) -> str:
        return f"{REFERENCE} {subject}"

    def play(self, program: Program, subject: str) -> Outcome:
        outcome = Outcome()
        xp = registry.get(subject.removeprefix(REFERENCE).strip())
        with jax.enable_x64(program.statements[0] == "x64 = True"), xp.scope():
            try:
                f, given = self.function(program)
                closed, shape = jax.make_jaxpr(f, return_shape=True)(*given)
                arrays = [np.asarray(x, v.aval.dtype) for x, v in zip(given, closed.jaxpr.invars, strict=True)]
                run: Any = plan(closed)
                if not subject.startswith(REFERENCE):
                    constants: dict[str, np.ndarray] = {}
                    recorded = record(run, other_values(arrays))
                    run = decode(json.loads(json.dumps(encode(recorded, constants))), constants)
                found = [xp.to_numpy(x) for x in run(xp, *map(xp.asarray, arrays))]
            except Exception as error:
                outcome.raised[0] = type(error).__name__
                return outcome
        outcome.observed = dict(jax.tree.unflatten(jax.tree.structure(shape), found))
        return outcome

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        if "TracedValueError" in found.raised.values() or "ShapeError" in found.raised.values():
            return "values that decide"
        if "callback" in str(program) and "TypeError" in found.raised.values():
            return "a function of the host, which no file can have"
        return None

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        if expected.raised or found.raised:
            if expected.raised == found.raised:
                return []
            return [f"{found.raised.get(0) or 'no exception'}, expected {expected.raised.get(0) or 'none'}"]
        return [
            f"{n}: {b}, expected {a}"
            for n, x in expected.observed.items()
            for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(found.observed[n]), strict=True)
            if a.dtype != b.dtype or not np.array_equal(wide(a), wide(b), equal_nan=True)
        ]


KIND = Recorded()
