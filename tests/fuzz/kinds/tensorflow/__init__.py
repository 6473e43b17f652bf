"""Functions of TensorFlow with variables, tapes, loops, layers and optimizers, grafted onto other frameworks.

Statements are drawn eagerly, and played as one `tf.function` of the program's data; `s...` are its variables, layers,
optimizers and generators, which the function writes and which are compared behind it. TensorFlow runs it eagerly, also
on data that is a few eps off. On "... grad" what is compared is the gradient, of the target's own kind, by the data.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from tests.fuzz.kinds.array_api import Seen
from tests.fuzz.kinds.jax import moved, slack
from tests.fuzz.kinds.tensorflow.called import HELPERS, data, layer
from tests.fuzz.kinds.tensorflow.drawing import Drawing
from tests.fuzz.kinds.tensorflow.observed import leaves, own_gradient, states, tape_gradient
from tests.fuzz.kinds.tensorflow.statements import drawn
from tests.fuzz.program import REFERENCE, Outcome, Program, other_values
from tests.fuzz.shaken import Shaken

import tensorflow as tf
import tensorgraft as tg
from tensorgraft.errors import DerivativeError, ShapeError, TracedValueError

tf.get_logger().setLevel("ERROR")
tf.autograph.set_verbosity(0)
INPUT = re.compile(r"(v\d+) = data\(")
NARROWER = re.compile(r"\btf\.(bfloat16|float16|float32|complex64)\b")
VARIABLE = re.compile(r"(s\d+) = (tf\.Variable|layer|optimizer|tf\.random\.Generator)\b")


class TensorFlow(Shaken):
    name = "tensorflow"
    shares: ClassVar[dict[str, int]] = {
        "numpy": 1,
        "torch": 1,
        "jax": 8,
        "numpy jit": 3,
        "torch jit": 6,
        "jax jit": 20,
        "torch grad": 4,
        "jax grad": 20,
    }

    def names(self, subject: str) -> dict[str, Any]:
        return {
            **HELPERS,
            "data": lambda *args: tf.constant(data(*args)),
            "layer": functools.partial(layer, data),
        }

    def reference(self, subject: str) -> str:
        return f"{REFERENCE} grad" if subject.endswith("grad") else REFERENCE

    def drawn(self, rng: random.Random, names: dict[str, Any]) -> str:
        return drawn(Drawing(rng, names))

    def function(
        self, program: Program, rng: np.random.Generator | None = None
    ) -> tuple[Any, list[Any], dict[str, Any]]:
        """(the program as a function of its data, the data, its variables); shaken by the generator."""

        def made(*args: Any) -> np.ndarray:
            x = data(*args)
            return x if rng is None else moved(x, rng)

        names: dict[str, Any] = {**HELPERS, "data": made, "layer": functools.partial(layer, made)}
        inputs, body, given, variables, results = [], [], [], {}, []
        for text in program.statements:
            target = text.split(" = ")[0]
            if INPUT.match(text):
                inputs.append(target)
                given.append(tf.constant(made(*eval(text.split(" = data")[1]))))
                results.append(target)
            elif VARIABLE.match(text):
                exec(text, names)
                variables[target] = names[target]
            else:
                body.append(f"    {text}")
                if target[0] == "v" and " = " in text:
                    results.append(target)
        said = [
            f"def program({', '.join(inputs)}):",
            *body,
            f"    return {{{', '.join(f'{r!r}: {r}' for r in results)}}}",
        ]
        exec(compile("\n".join(said), "<program>", "exec"), names)
        return names["program"], given, variables

    def play(self, program: Program, subject: str) -> Outcome:
        outcome = Outcome()
        onto, _, way = subject.partition(" ")
        try:
            if onto != REFERENCE:
                f, given, variables = self.function(program)
                run: Any = tg.graft(tf.function(f, autograph=False), onto=onto)
                if way == "grad":
                    outcome.observed = leaves(own_gradient(run, given, onto))
                    return outcome
                run = tg.jit(run) if way == "jit" else run
                if all(isinstance(x, tf.Variable) for x in variables.values()):  # what others keep they make in a call
                    before = [x.value() for x in variables.values()]
                    with contextlib.suppress(Exception):
                        for x in tf.nest.flatten(run(*map(tf.constant, other_values(x.numpy() for x in given)))):
                            x[...] = 0  # as whoever gets it may write it, where the framework's can be written
                    for x, value in zip(variables.values(), before, strict=True):
                        x.assign(value)
                found = run(*given)
                outcome.observed = {**leaves(found), **states(variables)}
                return outcome
            outcome.observed = self.shaken(lambda rng: self.by_tensorflow(program, way, rng))
        except Exception as error:
            outcome.raised[0] = type(error).__name__
        return outcome

    def by_tensorflow(self, program: Program, way: str, rng: np.random.Generator | None) -> dict[str, np.ndarray]:
        f, given, variables = self.function(program, rng)
        if way == "traced":
            tf.function(f, autograph=False).get_concrete_function(*given)
            return {}
        if way == "traced grad":
            return leaves(tape_gradient(tf.function(f, autograph=False), given))
        if way == "grad":
            return leaves(tape_gradient(f, given))
        return {**leaves(f(*given)), **states(variables)}

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        traced = subject.endswith("jit") or subject == "jax grad"
        if traced and found.raised.get(0) in (TracedValueError.__name__, ShapeError.__name__):
            return "values that decide"
        if found.raised and self.play(program, f"{REFERENCE} traced").raised == found.raised:
            return "TensorFlow cannot trace it"  # a shape that Python asks for is known to eager code alone
        if found.raised.get(0) == DerivativeError.__name__ and self.play(program, f"{REFERENCE} traced grad").raised:
            return "TensorFlow has no derivative of its graph"  # of recompute_grad twice: eager code has one
        if subject.endswith("grad") and not self.differences(by_casts(program, expected), found, program):
            return "rounding in a narrower dtype decides"  # the gradient of a cast has passed through it
        return super().excuse(program, subject, expected, found)


def by_casts(program: Program, expected: Outcome) -> Outcome:
    """Float64 that is a cast of what was computed in the narrowest dtype that the program casts to is as near as that."""
    names = NARROWER.findall(str(program))
    if not names:
        return expected
    narrowest = max((tf.as_dtype(n).as_numpy_dtype for n in names), key=lambda t: float(jnp.finfo(t).eps))
    loose = Outcome(expected.raised)
    for n, seen in expected.observed.items():
        if seen.value.dtype == np.float64 and seen.slack is not None:
            x = seen.value.astype(narrowest)
            seen = Seen(seen.value, seen.slack + slack(x, [x]))
        loose.observed[n] = seen
    return loose


KIND = TensorFlow()
