"""Functions of scalars that primitives have as parameters (the combiner of a reduction), applied to whole arrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core

from tensorgraft.frontends.jax import evaluate as evaluation
from tensorgraft.frontends.jax import releases
from tensorgraft.frontends.jax.rule import RULES
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# primitive -> the name of its reduction
MONOIDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min", "and": "and", "or": "or", "xor": "xor"}


class ScalarFunction:
    """A jaxpr of scalars."""

    def __init__(self, closed: core.ClosedJaxpr) -> None:
        self.closed = closed
        self._batched: dict[tuple[int, ...], Any] = {}

    @functools.cached_property
    def _plan(self) -> Any:
        return evaluation.plan(self.closed)

    @functools.cached_property
    def monoid(self) -> str | None:
        """The reduction that combines by this function, of two scalars, where it has a name."""
        plan = self._plan
        if len(plan.steps) != 1 or len(plan.parameters) != 2:
            return None
        (step,) = plan.steps
        straight = sorted(step.reads) == sorted(plan.parameters) and list(step.writes) == plan.results
        return MONOIDS.get(step.name) if straight else None

    @functools.cached_property
    def _is_elementwise(self) -> bool:
        """Return True if every step works on arrays of any shape as it does on scalars."""
        rules = [RULES.get(step.name) for step in self._plan.steps]
        return all(r is not None and not r.asks and r.fn.__module__.endswith(".elementwise") for r in rules)

    def __call__(self, xp: Backend, *arrays: Array) -> list[Array]:
        """Return the results for each element of arrays of one shape."""
        shape = xp.shape(arrays[0])
        if self._is_elementwise:
            outputs = self._plan(xp, *arrays)
        else:
            if shape not in self._batched:
                self._batched[shape] = self._mapped(shape)
            outputs = self._batched[shape](xp, *arrays)
        return [x if xp.shape(x) == shape else xp.broadcast_to(x, shape) for x in outputs]

    def _mapped(self, shape: tuple[int, ...]) -> Any:
        fn = core.jaxpr_as_fun(self.closed)
        for _ in shape:
            fn = jax.vmap(fn)
        with jax.enable_x64(True):  # or 64-bit operands would be narrowed
            specs = [jax.ShapeDtypeStruct(shape, a.dtype) for a in self.closed.in_avals]
            return evaluation.plan(jax.make_jaxpr(fn)(*specs))

    def combine(self, xp: Backend, a: Sequence[Array], b: Sequence[Array]) -> Sequence[Array]:
        """Combine two elements, as a `folding.Combine`."""
        return self(xp, *a, *b)


@functools.lru_cache(maxsize=1024)
def _of(jaxpr: Any) -> ScalarFunction:
    return ScalarFunction(releases.closed(jaxpr))


def scalar_function(jaxpr: Any, constants: Sequence[Any] = ()) -> ScalarFunction:
    """Return the function of a closed jaxpr, or of a jaxpr and its constants."""
    return ScalarFunction(releases.closed(jaxpr, constants)) if constants else _of(jaxpr)
