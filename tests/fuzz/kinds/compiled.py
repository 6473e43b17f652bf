"""Programs of the Array API as one function under `tg.jit`: views and writes of arguments, without a look at values."""

from __future__ import annotations

import contextlib
import re
from typing import Any, ClassVar

from tests.fuzz.kinds.array_api import ArrayAPI
from tests.fuzz.program import Outcome, Program

import tensorgraft as tg
import tensorgraft.array_api as xp

INPUT = re.compile(r"v\d+ = data\(.*\)$")
# shapes by values
DYNAMIC = re.compile(
    r"unique|nonzero\(|matrix_rank|if bool|\[[^\]]*data\(\"bool\"|\[v\d+\]|isfinite\(v\d+\)\]|!= v\d+\]"
)


class Compiled(ArrayAPI):
    name = "compiled"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "torch": 1, "jax": 1, "tensorflow": 4}
    length = (4, 10)
    raising = 0.0
    everywhere = True  # compilers contract products and sums
    dynamic = False

    def statement(self, rng: Any, names: dict[str, Any]) -> str:
        while True:
            text = super().statement(rng, names)
            if not DYNAMIC.search(text) and text[0] != "s":
                return text

    def on(self, program: Program, subject: str) -> Outcome:
        names, outcome = self.names(subject), Outcome()
        given = [text for text in program.statements if INPUT.match(text)]
        body = [text for text in program.statements if not INPUT.match(text)]
        inputs = [text.split(" = ")[0] for text in given]
        for text in given:
            exec(text, names)
        results = [t for t in dict.fromkeys(re.findall(r"^v\d+(?= = )", "\n".join(body), re.M)) if t not in inputs]
        said = [f"def program({', '.join(inputs)}):", *(f"    {t}" for t in body)]
        said.append(f"    return {{{', '.join(f'{r!r}: {r}' for r in results)}}}")
        exec("\n".join(said), names)
        compiled = tg.jit(names["program"])
        with contextlib.suppress(Exception):
            for x in compiled(*self._others(given, subject)).values():  # which whoever gets it may write
                x[...] = xp.zeros_like(x)
        try:
            found = compiled(*(names[n] for n in inputs))
            outcome.observed = self.observe({**found, **{n: names[n] for n in inputs}})
        except Exception as error:
            outcome.raised[0] = type(error).__name__
        return outcome

    def _others(self, given: list[str], subject: str) -> list[Any]:
        """Arguments with other values, none of which may be left in the program."""
        names = self.names(subject)
        for text in given:
            exec(text, names)
        others = [names[text.split(" = ")[0]] for text in given]
        for x in others:
            x[...] = xp.flip(xp.asarray(x, copy=True)) if x.ndim else x + xp.ones_like(x)
        return others


KIND = Compiled()
