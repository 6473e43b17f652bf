"""Loops in jaxprs."""

from __future__ import annotations

from typing import Any

from jax.extend import core

from tensorgraft.frontends.jax import releases

_LONG = 8  # steps, from which on a loop is worth to be looked at
_OUTSIDE = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})


def is_replayable(closed: core.ClosedJaxpr) -> bool:
    """Return whether a jaxpr has a loop of more than a few steps, and neither effects nor calls of the host."""
    shapes = [atom.aval.shape for atom in (*closed.jaxpr.invars, *closed.jaxpr.outvars)]
    if closed.effects or any(type(n) is not int for shape in shapes for n in shape):
        return False
    equations = list(_equations(closed.jaxpr))
    return any(map(_is_long, equations)) and all(e.primitive.name not in _OUTSIDE for e in equations)


def _equations(jaxpr: core.Jaxpr) -> Any:
    for equation in jaxpr.eqns:
        yield equation
        for inner in releases.jaxprs_in_params(equation.params):
            yield from _equations(getattr(inner, "jaxpr", inner))


def _is_long(equation: Any) -> bool:
    name = equation.primitive.name
    return name == "while" or (name == "scan" and equation.params["length"] >= _LONG)
