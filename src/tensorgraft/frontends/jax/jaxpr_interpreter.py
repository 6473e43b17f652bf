"""The interpreter of jaxprs that planning, recording and quantised arrays share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend import core

Compute = Callable[[Any, list[Any]], Sequence[Any]]


def interpret(
    jaxpr: core.Jaxpr,
    constants: Sequence[Any],
    operands: Sequence[Any],
    compute: Compute,
    literal: Callable[[Any], Any] = lambda atom: atom.val,
) -> list[Any]:
    """Return the results of a jaxpr, of whose equations `compute(equation, operands)` returns the results, and whose
    literals are what `literal` returns. Values may be anything: arrays, slots of a plan, steps."""
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *operands), strict=True))

    def read(atom: Any) -> Any:
        return literal(atom) if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        results = compute(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def bind(equation: Any, operands: Sequence[Any]) -> list[Any]:
    """Compute an equation by JAX itself."""
    primitive = equation.primitive
    with equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]
