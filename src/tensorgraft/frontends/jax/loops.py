"""Loops in jaxprs."""

from __future__ import annotations

import itertools
from typing import Any

from jax.extend import core

from tensorgraft.frontends.jax import releases

_LONG = 8  # steps, from which on a loop is worth to be looked at
_MANY = 1 << 12  # equations, which take longer to record than most loops to run
_LARGE = 1 << 26  # bytes of constants, of which a recording has copies
_OUTSIDE = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})


def is_replayable(closed: core.ClosedJaxpr) -> bool:
    """Return whether a jaxpr has a loop of more than a few steps, of a size that is worth to be recorded, and neither
    effects nor calls of the host."""
    if closed.effects or sum(getattr(x, "nbytes", 0) for x in closed.consts) > _LARGE:
        return False
    if any(type(n) is not int for aval in (*closed.in_avals, *closed.out_avals) for n in aval.shape):
        return False
    equations = list(itertools.islice(_equations(closed.jaxpr), _MANY))
    if len(equations) == _MANY or not any(map(_is_long, equations)):
        return False
    return all(e.primitive.name not in _OUTSIDE for e in equations)


def _equations(jaxpr: core.Jaxpr) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for inner in releases.jaxprs_in_params(equation.params):
            yield from _equations(getattr(inner, "jaxpr", inner))


def _is_long(equation: Any) -> bool:
    name = equation.primitive.name
    return name == "while" or (name == "scan" and equation.params["length"] >= _LONG)
