"""Primitives in terms of others, as JAX itself or a library says: their Python lowerings and implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.interpreters import mlir
from jax.extend import core

from tensorgraft.frontends.jax.releases import expansion, jaxprs_in_params


def without_references(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Return a jaxpr without arrays that are written, which are effects."""
    if not closed.effects:
        return closed
    from tensorgraft.frontends.jax.references import discharged

    with _types((*closed.in_avals, *closed.out_avals)):
        return discharged(closed)


def _types(avals: Sequence[Any]) -> Any:
    """64-bit types where values need them, else as the user has it."""
    wide = any(str(getattr(aval, "dtype", "")) in _WIDE for aval in avals)
    return jax.enable_x64(wide or jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def decomposed(equation: Any) -> core.ClosedJaxpr | None:
    """Return the jaxpr that an equation is equal to, if JAX lowers or implements its primitive by a Python function of
    other primitives; otherwise None."""
    primitive = equation.primitive
    for function in (expansion(primitive), _lowering(primitive), getattr(primitive, "impl", None)):
        if function is None:
            continue
        program = _traced(function, equation)
        if program is not None and not _contains(program.jaxpr, equation):
            return program
    return None


def _contains(jaxpr: core.Jaxpr, equation: Any) -> bool:
    """Return True if the jaxpr contains the same equation again, and so explains nothing."""
    inner = [part for e in jaxpr.eqns for part in jaxprs_in_params(e.params)]
    return any(_is_alike(e, equation) for e in jaxpr.eqns) or any(_contains(part, equation) for part in inner)


def _is_alike(first: Any, other: Any) -> bool:
    if first.primitive is not other.primitive or first.params.keys() != other.params.keys():
        return False
    operands = [[(atom.aval.shape, atom.aval.dtype) for atom in e.invars] for e in (first, other)]
    return operands[0] == operands[1] and all(_is_equal(first.params[k], other.params[k]) for k in first.params)


def _is_equal(x: Any, y: Any) -> bool:
    return x is y or (type(x) is type(y) and bool(np.all(x == y)))


def _traced(function: Callable[..., Any], equation: Any) -> core.ClosedJaxpr | None:
    specs = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in equation.invars]
    with _types([atom.aval for atom in (*equation.invars, *equation.outvars)]):
        closed = jax.make_jaxpr(lambda *operands: function(*operands, **equation.params))(*specs)
    same_dtypes = [atom.aval.dtype for atom in equation.outvars] == [aval.dtype for aval in closed.out_avals]
    return closed if same_dtypes else None


_WIDE = frozenset({"int64", "uint64", "float64", "complex128"})


def _lowering(primitive: core.Primitive) -> Callable[..., Any] | None:
    """Return the function in `mlir.lower_fun(function)`, for the CPU or for every platform."""
    rules = [mlir._platform_specific_lowerings.get("cpu", {}).get(primitive), mlir._lowerings.get(primitive)]
    for entry in rules:
        lowering: Any = getattr(entry, "rule", entry)
        while lowering is not None:
            code = getattr(lowering, "__code__", None)
            if code is not None and code.co_qualname.startswith("lower_fun.") and "fun" in code.co_freevars:
                return lowering.__closure__[code.co_freevars.index("fun")].cell_contents
            lowering = getattr(lowering, "__wrapped__", None) or getattr(lowering, "func", None)
    return None
