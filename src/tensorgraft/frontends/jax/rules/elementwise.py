"""Primitives that work element by element. Their operands have one shape, or none at all."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.jax.rule import rule
from tensorgraft.hub.backend import Backend

Array = Any

# JAX's name -> the hub's, where the operation is the same
SAME = {
    "add": "add",
    "add_any": "add",
    "sub": "subtract",
    "mul": "multiply",
    "max": "maximum",
    "neg": "negative",
    "exp": "exp",
    "log": "log",
    "tanh": "tanh",
    "abs": "abs",
    "sign": "sign",
    "gt": "greater",
    "eq": "equal",
}


def _same(name: str) -> Any:
    def run(xp: Backend, *operands: Array, **_: Any) -> Array:
        return getattr(xp, name)(*operands)

    return run


for _name, _hub in SAME.items():
    rule(_name)(_same(_hub))


@rule("convert_element_type")
def convert_element_type(xp: Backend, x: Array, *, new_dtype: Any, **_: Any) -> Array:
    return xp.astype(x, np.dtype(new_dtype))


@rule("select_n")
def select_n(xp: Backend, which: Array, *cases: Array, **_: Any) -> Array:
    if len(cases) == 1:
        return cases[0]
    if xp.dtype_of(which) == np.bool_:
        return xp.where(which, cases[1], cases[0])
    found = cases[0]
    for i, case in enumerate(cases[1:], start=1):
        found = xp.where(xp.equal(which, i), case, found)
    return found
