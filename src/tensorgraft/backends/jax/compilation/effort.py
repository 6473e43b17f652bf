"""The effort of XLA on a program: the least on small ones whose result has the same bits either way.

On the CPU a program of one operator takes XLA 12 to 170 ms, most of it in LLVM, and a third of that with the older
emitters, which JAX 0.11 has no more, and without LLVM's optimisations. What those may change is the last bit: a product
and the sum that takes it become one rounding (FMA), sums and approximations are put in another order. So only programs
that cannot be changed are compiled so: those that move data, compare, count in integers, or round each value once.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

SIZE = 1024  # elements of the largest array: above, a slower program costs more than compiling it quickly saves
EQUATIONS = 32

_TOO_MANY = 1 << 30
_MOVES = (
    "broadcast_in_dim concatenate convert_element_type copy dynamic_slice dynamic_update_slice expand_dims gather iota"
    " pad reshape rev slice split squeeze transpose"
)
_CHOOSES = (
    "abs and argmax argmin ceil clamp clz eq floor is_finite max min ne neg not or population_count"
    " reduce_and reduce_max reduce_min reduce_or round shift_left shift_right_arithmetic shift_right_logical sign xor"
)
_EXACT = frozenset((_MOVES + " " + _CHOOSES).split())
_ROUNDS = {"add": "sum", "sub": "sum", "mul": "product", "square": "product", "div": "quotient", "sqrt": "root"}
_TOGETHER = {"ge": "order", "gt": "order", "le": "order", "lt": "order", "select_n": "choice"}


@functools.cache
def is_cpu_only() -> bool:
    """Return True if the CPU is the only device: compile options here are the CPU's."""
    return jax.default_backend() == "cpu" and {d.platform for d in jax.devices()} == {"cpu"}


@functools.cache
def options() -> dict[str, Any]:
    """Return the compiler options with which XLA does the least, those of them that the installed release has."""
    candidates = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 0}
    return {name: value for name, value in candidates.items() if _is_option(name, value)}


def _is_option(name: str, value: Any) -> bool:
    """Return True if this XLA knows a compile option. The only way to find out is to compile with it."""
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options={name: value})
    except JaxRuntimeError as error:
        if "No such compile option" not in str(error):
            raise
        return False
    return True


def suits_least_effort(jaxpr: Any) -> bool:
    """Return True if a program may be compiled with the least `options`: it is small, and gives the same bits."""
    kinds: set[str] = set()
    if _walk(jaxpr, kinds) > EQUATIONS:
        return False
    # a product and a sum become one rounding, a comparison and a choice one instruction, which flushes denormal numbers
    return not {"sum", "product"} <= kinds and not {"order", "choice"} <= kinds


def _walk(jaxpr: Any, kinds: set[str]) -> int:
    """Count equations, more than `EQUATIONS` where one forbids the least effort; add those that round to `kinds`."""
    n = len(jaxpr.eqns)
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        avals = [v.aval for v in (*equation.invars, *equation.outvars)]
        if n > EQUATIONS or any(a.size > SIZE for a in avals):
            return _TOO_MANY
        if name == "jit":
            n += _walk(equation.params["jaxpr"].jaxpr, kinds)
        elif name in _TOGETHER:
            kinds.add(_TOGETHER[name])
        elif name not in _EXACT and not all(jax.dtypes.issubdtype(a.dtype, np.integer) for a in avals):
            kind = _ROUNDS.get(name)
            if kind is None or any(a.dtype not in (np.float32, np.float64) for a in avals):
                return _TOO_MANY
            kinds.add(kind)
        elif name not in _EXACT and name not in _ROUNDS:
            return _TOO_MANY
    return n
