"""Loops in jaxprs."""

from __future__ import annotations

import itertools
from typing import Any

from jax.extend import core

from tensorgraft.frontends.jax import releases

_LONG = 8  # steps, from which on a loop is worth to be looked at
_MANY = 1 << 12  # equations, which take longer to record than most loops to run
_LARGE = 1 << 26  # bytes of constants, of which a recording has copies


def is_replayable(closed: core.ClosedJaxpr) -> bool:
    """Return whether a jaxpr has a loop of more than a few steps, is of a size that is worth to be recorded, and has
    no effects."""
    if closed.effects or sum(getattr(x, "nbytes", 0) for x in closed.consts) > _LARGE:
        return False
    if any(type(n) is not int for aval in (*closed.in_avals, *closed.out_avals) for n in aval.shape):
        return False
    equations = list(itertools.islice(_equations(closed.jaxpr), _MANY))
    return len(equations) < _MANY and any(map(_is_long, equations))


def _equations(jaxpr: core.Jaxpr) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for inner in releases.jaxprs_in_params(equation.params):
            yield from _equations(getattr(inner, "jaxpr", inner))


def _is_long(equation: Any) -> bool:
    name = equation.primitive.name
    return name == "while" or (name == "scan" and equation.params["length"] >= _LONG)
