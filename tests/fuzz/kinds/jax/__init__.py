"""Functions of JAX, with control flow, derivatives and batches, grafted onto other frameworks; the reference is JAX.

Statements are drawn on tracers, which cost no compilation, and played as one function of the program's data. XLA compiles
it without optimisations (50 ms; primitive by primitive would cost eight times as much); data is moved by a few eps in
further runs, and what then moves is compared only so far.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from tests.fuzz.kinds.array_api import Retry, Seen
from tests.fuzz.kinds.jax import control, derivatives, forms, functions, indexing  # noqa: F401  (they register)
from tests.fuzz.kinds.jax.drawing import STATEMENTS, Drawing, kind, templates
from tests.fuzz.kinds.jax.observed import differs, flat, host, moved, native, slack, wide
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program, other_values
from tests.fuzz.rounding import Rounding

import jax
import jax.numpy as jnp
import tensorgraft as tg
from jax import flatten_util, lax  # noqa: F401  (programs call both)
from tensorgraft.frontends.jax import rules  # noqa: F401  (they register)
from tensorgraft.frontends.jax.evaluate import plan
from tensorgraft.hub import registry
from tensorgraft.hub.backend import Backend

__all__ = ["KIND", "Drawing", "Jax", "differs", "flat", "host", "kind", "moved", "native", "slack", "templates", "wide"]

INPUT = re.compile(r"(v\d+) = (data|number)\(")


def data(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = jnp.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -5, 6, shape).astype(dtype)
    values = rng.integers(-16, 17, shape) / 8 + 0.03125
    if kind == "c":
        values = values + 1j * rng.integers(-16, 17, shape) / 8
    return np.asarray(values).astype(jnp.dtype(dtype))


def number(value: Any) -> Any:
    return value


@jax.custom_jvp
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


clipped.defjvp(lambda primals, tangents: (clipped(primals[0]), 2 * tangents[0]))


@jax.custom_vjp
def scaled(x: Any) -> Any:
    return 3 * x


scaled.defvjp(lambda x: (3 * x, x), lambda x, g: (g * jnp.cos(x),))


@jax.custom_jvp
def weighed(x: Any, w: Any) -> Any:
    return jnp.sin(x) * w


@weighed.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, w), (dx, dw) = primals, tangents
    return weighed(x, w), 2 * jnp.cos(x) * w * dx + jnp.sin(x) * dw


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def paired(tree: Any, k: int) -> Any:
    return tree["p"] * k, tree["p"] + tree["n"]


paired.defvjp(
    lambda tree, k: (paired(tree, k), tree),
    lambda k, tree, g: ({"p": g[0] * jnp.sin(tree["p"]), "n": jnp.sum(g[1]) * jnp.ones_like(tree["n"])},),
)

MODULES = {
    "jax": jax,
    "jnp": jnp,
    "lax": lax,
    "np": np,
    "clipped": clipped,
    "scaled": scaled,
    "weighed": weighed,
    "paired": paired,
}


def _value(leaf: Any) -> np.ndarray:
    return np.asarray(getattr(leaf, "value", leaf))


class Jax(Kind):
    name = "jax"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "torch": 1, "tensorflow operations": 1, "tensorflow": 20}
    length = (4, 10)

    def names(self, subject: str) -> dict[str, Any]:
        made = lambda *args: jnp.asarray(data(*args))  # noqa: E731
        return {**MODULES, "data": made, "number": number}

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        d = Drawing(rng, names)
        if len(d.arrays) < 2:
            return f"v{d.next} = {d.new()}"
        while True:
            f = rng.choices([f for _, f in STATEMENTS], [w for w, _ in STATEMENTS])[0]
            try:
                return f"v{d.next} = {f(d)}"
            except Retry:
                continue

    def draw(self, seed: int) -> Program:
        drawn: list[Program] = []
        draw = super().draw

        def traced() -> int:
            drawn.append(draw(seed))
            return 0

        with jax.enable_x64(seed % 8 == 0):
            jax.make_jaxpr(traced)()
        program = drawn[0]
        if seed % 8 == 0:
            program = Program(self.name, ("x64 = True", *program.statements), seed)
        return program

    raising = 0.0
    shakes = 3

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        if "JaxRuntimeError" in expected.raised.values():
            return "XLA refuses"
        found_all = [_value(leaf) for leaves in found.observed.values() for leaf in leaves]
        if any(np.any((x != 0) & (np.abs(x) < np.finfo(x.dtype).tiny)) for x in found_all if x.dtype.kind == "f"):
            return "XLA takes subnormal numbers for 0"
        if re.search(r"jnp\.full\([^=]*, -[\d.]+, jnp\.uint", str(program)):
            return "a number below zero as an unsigned one: JAX wraps it where it traces, XLA makes it 0"
        convolves = re.search("conv|polymul|correlate", str(program))
        if convolves and not all(np.isfinite(x).all() for x in found_all if x.dtype.kind in "fc"):
            return "a convolution of what is not finite: some of XLA's kernels multiply by padding, some do not"
        if not self.differences(self.play(program, f"{self.reference(subject)} eagerly"), found, program):
            return "XLA's optimisations decide"
        exact, *others = self.by_other_roundings(program, self.reference(subject), 20)
        loose = Outcome(expected.raised)
        for n, leaves in expected.observed.items():
            moved = [slack(x, [o[n][i] for o in others]) for i, x in enumerate(exact[n])]
            loose.observed[n] = [Seen(seen.value, m) for seen, m in zip(leaves, moved, strict=True)]
        return None if self.differences(loose, found, program) else "rounding decides"

    def by_other_roundings(self, program: Program, judge: str, times: int) -> list[dict[str, list[np.ndarray]]]:
        """As NumPy rounds, and so many times otherwise."""
        with jax.enable_x64(program.statements[0] == "x64 = True"):
            f, given = self.asked(program, judge)
            backends = [registry.get("numpy"), *map(Rounding, range(times))]
            return [self.by_operations(f, given, xp) for xp in backends]

    def asked(self, program: Program, judge: str) -> tuple[Callable[..., Any], list[Any]]:
        """What is asked of a judge: the program itself, or what is derived from it; and its data."""
        return self.function(program)

    @staticmethod
    @functools.lru_cache(maxsize=1)
    def function(program: Program) -> tuple[Callable[..., Any], list[Any]]:
        """The program as a function of its data, and the data."""
        names: dict[str, Any] = {**MODULES}
        inputs, body, results = [], [], []
        given = []
        for text in program.statements:
            target = text.split(" = ")[0]
            if INPUT.match(text):
                inputs.append(target)
                given.append(eval(text.split(" = ", 1)[1], {"data": data, "number": number}))
            elif target != "x64":
                body.append(f"    {text}")
            if target[0] == "v" and " = number(" not in text:
                results.append(target)
        # a name that a shrunken program has lost is not returned
        said = [
            f"def program({', '.join(inputs)}):",
            *body,
            f"    return {{{', '.join(f'{r!r}: {r}' for r in results)}}}",
        ]
        exec(compile("\n".join(said), "<program>", "exec"), names)
        return names["program"], given

    def play(self, program: Program, subject: str) -> Outcome:
        outcome = Outcome()
        with jax.enable_x64(program.statements[0] == "x64 = True"):
            try:
                if not subject.startswith(REFERENCE):
                    outcome.observed = self.on(program, subject)
                    return outcome
                f, given = self.asked(program, subject.removesuffix(" eagerly"))
                with jax.disable_jit(subject.endswith(" eagerly")):
                    runs = self.rounded(f, given, self.shakes)
            except Exception as error:
                outcome.raised[0] = type(error).__name__
                return outcome
        for n, leaves in runs[0].items():
            outcome.observed[n] = [Seen(x, slack(x, [r[n][i] for r in runs[1:]])) for i, x in enumerate(leaves)]
        return outcome

    def on(self, program: Program, subject: str) -> dict[str, list[np.ndarray]]:
        f, given = self.function(program)
        if subject == "tensorflow operations":
            return self.by_operations(f, given, registry.get("tensorflow"))
        grafted = tg.graft(f, onto=subject)
        with contextlib.suppress(Exception):
            for x in jax.tree.leaves(grafted(*[native(x, subject) for x in other_values(given)])):
                x[...] = 0  # as whoever gets it may write it, where the framework's can be written
        found = grafted(*[native(x, subject) for x in given])
        return {n: flat(x) for n, x in found.items()}

    def rounded(self, f: Callable[..., Any], given: list[Any], shakes: int) -> list[dict[str, list[np.ndarray]]]:
        """Of the data, and of what is a few eps off."""
        shaken = [[moved(x, np.random.default_rng(seed)) for x in given] for seed in range(shakes)]
        if jax.config.jax_disable_jit:
            return [{n: flat(x) for n, x in f(*map(jnp.asarray, data)).items()} for data in ([*given], *shaken)]
        options: dict[str, Any] = {"xla_backend_optimization_level": 0, "xla_cpu_parallel_codegen_split_count": 1}
        try:
            lowered = traced(f, *given).lower()
        except TypeError:  # dead equations are refused, which inside of what is compiled JAX does not when asked to run
            f(*map(jnp.asarray, given))
            lowered = jax.jit(f).lower(*given)
        if "stablehlo.reverse" in lowered.as_text():  # a check of XLA's simplifier there ends the process
            options["xla_disable_hlo_passes"] = "algsimp"
        compiled: Callable[..., Any] = lowered.compile(options)
        return [{n: flat(x) for n, x in compiled(*data).items()} for data in ([*given], *shaken)]

    def by_operations(self, f: Callable[..., Any], given: list[Any], xp: Backend) -> dict[str, list[np.ndarray]]:
        """As a grafted function is computed where TensorFlow cannot compile it: without the seconds that XLA takes."""
        seen = traced(f, *given)
        with xp.scope():
            found = plan(seen.jaxpr)(
                xp, *[xp.asarray(np.asarray(x, a.dtype)) for x, a in zip(given, seen.jaxpr.in_avals, strict=True)]
            )
            leaves = [xp.to_numpy(x) for x in found]
        return {n: jax.tree.leaves(x) for n, x in jax.tree.unflatten(seen.out_tree, leaves).items()}

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        if expected.raised or found.raised:
            if expected.raised == found.raised:
                return []
            return [f"{found.raised.get(0) or 'no exception'}, expected {expected.raised.get(0) or 'none'}"]
        lines = []
        for n, leaves in expected.observed.items():
            ours = found.observed[n]
            if len(ours) != len(leaves):
                lines.append(f"{n}: {len(ours)} leaves, expected {len(leaves)}")
                continue
            for seen, x in zip(leaves, ours, strict=True):
                if line := differs(seen, x):
                    lines.append(f"{n}: {line}")
        return lines


def traced(f: Callable[..., Any], *given: Any) -> Any:
    return jax.jit(f, keep_unused=True).trace(*given)  # which JAX keeps for a function


KIND = Jax()
