"""Files that `tg.source` writes of functions of JAX, executed in this process, against the functions."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from tests.fuzz.kinds.array_api import Seen
from tests.fuzz.kinds.jax import INPUT, Jax, flat, kind, native, wide
from tests.fuzz.program import REFERENCE, Outcome, Program, other_values

import tensorgraft as tg
from tensorgraft.codegen.recorders.calls import NotExpressibleError

# docs/differences.md: derivatives by rule, random numbers, indices out of range, floats beyond the integers they become
EXCLUDED = re.compile(
    r"number|clipped|scaled|random|array\(\[(\[0, 1\], )?\[?(0, 7|7|9|5)|dynamic_|\.at\[jnp\.array|view\(|bitcast|nan_to_num"
    r"|astype\((jnp\.)?u?int|element_type\([^,]*, jnp\.u?int|asarray\([^,]*, jnp\.u?int|bincount|one_hot|\(u?int\)|astype\(int"
    r"|digitize|top_k|reduce_precision|int8|int16|uint|// |% |div|rem\("
)


class Source(Jax):
    name = "source"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "torch": 1, "jax": 6, "tensorflow": 2, "array_api": 2}
    length = (3, 7)

    def statement(self, rng: Any, names: dict[str, Any]) -> str:
        while True:
            text = super().statement(rng, names)
            given = INPUT.match(text)
            if given and any(t in text for t in ("float16", "int16", "int8", "uint", "complex", ", 0)", "(0,")):
                continue
            if given or not EXCLUDED.search(text):
                return text

    def play(self, program: Program, subject: str) -> Outcome:
        if subject.startswith(REFERENCE):
            return super().play(program, subject)
        outcome = Outcome()
        with jax.enable_x64(program.statements[0] == "x64 = True"):
            try:
                f, given = self.function(program)
                # by arrays of NumPy a function of operators alone would be one of the Array API
                example = [jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in other_values(given)]
                written = tg.source(f, *example, onto=subject, dynamic=False, check=False)
                names: dict[str, Any] = {"__name__": "written"}
                exec(compile(written.text, "<written>", "exec"), names)
                # numbers are the file's own
                arguments = [
                    native(x, subject) if subject != "jax" else jnp.asarray(x)
                    for x in given
                    if isinstance(x, np.ndarray)
                ]
                found = names[written.function](*arguments)
                outcome.observed = {n: flat(x) for n, x in found.items()}
            except NotExpressibleError:
                outcome.raised[0] = "NotExpressibleError"
            except Exception as error:
                outcome.raised[0] = f"{type(error).__name__}: {error}"
        return outcome

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        if found.raised.get(0) == "NotExpressibleError":
            return f"{subject} has no words"
        if "calls a function of the host" in found.raised.get(0, ""):
            return "a function of the host, which no file can have"
        if "'UInt" in found.raised.get(0, ""):
            return "PyTorch has little arithmetic of unsigned integers"  # docs/source.md
        if "Error: " in found.raised.get(0, "") and self.reaches_beyond(program):
            return "an index out of range"
        return super().excuse(program, subject, expected, found)

    def reaches_beyond(self, program: Program) -> bool:
        with jax.enable_x64(program.statements[0] == "x64 = True"):
            f, given = self.function(program)
            error, _ = checkify.checkify(jax.jit(f), errors=checkify.index_checks)(*given)
        return error.get() is not None

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        limited = Outcome(expected.raised, {n: [self._limit(s) for s in x] for n, x in expected.observed.items()})
        return super().differences(limited, found, program)

    @staticmethod
    def _limit(seen: Seen) -> Seen:
        if seen.slack is None or kind(seen.value) not in "fc":
            return seen
        a = wide(seen.value)
        return Seen(seen.value, seen.slack + 1e-5 * np.max(np.abs(a[np.isfinite(a)]), initial=1.0))


KIND = Source()
