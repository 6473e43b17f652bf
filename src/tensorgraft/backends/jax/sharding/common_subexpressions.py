"""Common subexpression elimination for programs on several devices.

XLA eliminates common subexpressions only after its partitioner has inserted the communication between devices, which it
does not merge: two equal slices of a sharded value are exchanged twice. The views that a forward pass reads are read
again by its backward pass, so every training step has such pairs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var
from jax.sharding import NamedSharding


def is_spread(arrays: Sequence[Any], jaxpr: Jaxpr) -> bool:
    """Return True if a program with these captured arrays runs on several devices."""
    shardings = [getattr(x, "sharding", None) for x in arrays]
    shardings += [e.params["sharding"] for e in jaxpr.eqns if e.primitive.name == "sharding_constraint"]
    return any(isinstance(s, NamedSharding) and s.mesh.size > 1 for s in shardings)


def merged(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program with each computation done once. Values behind a barrier (`torch.utils.checkpoint`) count as
    different; each result of the program is computed separately, because results must not share memory."""
    known: dict[Hashable, JaxprEqn] = {}
    equal: dict[Var, Var] = {}
    outputs = {v for v in jaxpr.outvars if isinstance(v, Var)}
    equations = []
    for equation in jaxpr.eqns:
        if any(v in equal for v in equation.invars if isinstance(v, Var)):
            equation = equation.replace(invars=[equal.get(v, v) if isinstance(v, Var) else v for v in equation.invars])
        key = None if outputs.intersection(equation.outvars) else _key(equation)
        before = known.setdefault(key, equation) if key is not None else equation
        if before is equation:
            equations.append(equation)
        else:
            equal.update(zip(equation.outvars, before.outvars, strict=True))
    return jaxpr.replace(eqns=equations) if equal else jaxpr


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
