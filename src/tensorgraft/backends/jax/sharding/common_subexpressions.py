"""Equal computations of a program that is spread over devices, made once.

XLA merges what is computed twice only after its partitioner has put in what devices exchange, and exchanges it does not
merge: two equal slices of a value that is split become two exchanges. A backward pass reads views as the forward pass
did, so that every step has such pairs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import NamedSharding


def is_spread(arrays: Sequence[Any], jaxpr: Jaxpr) -> bool:
    """Return True for a program on arrays from outside that runs on several devices."""
    shardings = [getattr(x, "sharding", None) for x in arrays]
    shardings += [e.params["sharding"] for e in jaxpr.eqns if e.primitive.name == "sharding_constraint"]
    return any(isinstance(s, NamedSharding) and s.mesh.size > 1 for s in shardings)


def merged(jaxpr: Jaxpr) -> Jaxpr:
    """The same program without a second computation of what it has. Behind a barrier (`torch.utils.checkpoint`) values
    are others; what leaves the program has a computation of its own, as its memory is its own."""
    known: dict[Hashable, JaxprEqn] = {}
    replacements: dict[Var, Var] = {}
    outputs = {v for v in jaxpr.outvars if isinstance(v, Var)}
    equations = []
    for equation in jaxpr.eqns:
        if any(v in replacements for v in equation.invars if isinstance(v, Var)):
            equation = equation.replace(
                invars=[replacements.get(v, v) if isinstance(v, Var) else v for v in equation.invars]
            )
        key = None if outputs.intersection(equation.outvars) else _key(equation)
        before = known.setdefault(key, equation) if key is not None else equation
        if before is equation:
            equations.append(equation)
        else:
            replacements.update(zip(equation.outvars, before.outvars, strict=True))
    return jaxpr.replace(eqns=equations) if replacements else jaxpr


def _key(equation: JaxprEqn) -> Hashable | None:
    if equation.effects or equation.primitive.name == "optimization_barrier":
        return None
    operands = [(v.aval, repr(v.val)) if isinstance(v, Literal) else v for v in equation.invars]
    key = (equation.primitive, *operands, *sorted(equation.params.items(), key=lambda item: item[0]))
    try:
        hash(key)
    except TypeError:  # a parameter that is an array, or holds one
        return None
    return key
