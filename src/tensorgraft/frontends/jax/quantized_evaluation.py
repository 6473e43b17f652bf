"""Functions of JAX on quantised arrays.

A function is traced as if these were dense. JAX evaluates equations without quantised operands, with its own
derivatives; for quantised operands, products, views and look-ups follow the rules for codes, and all other operations
receive dense numbers, which is counted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from tensorgraft.frontends.jax import (
    releases,
    rules,  # noqa: F401  (they register themselves)
)
from tensorgraft.frontends.jax.codes import Codes, backend, dense_of, quantized
from tensorgraft.frontends.jax.evaluate import resolved
from tensorgraft.frontends.jax.jaxpr_interpreter import bind, interpret
from tensorgraft.frontends.jax.program import Spec, traced
from tensorgraft.frontends.jax.staging import computed_early
from tensorgraft.hub import settings
from tensorgraft.quantization import policy
from tensorgraft.quantization.backend import quantizing
from tensorgraft.quantization.quantized import Quantized

_VIEWS = frozenset({"reshape", "squeeze", "transpose", "broadcast_in_dim", "rev", "slice", "split"})
# Primitives that have a rule for codes
_RULED = _VIEWS | {
    *("dot_general", "gather", "concatenate", "stack", "unstack", "tile", "convert_element_type"),
    *("copy", "copy_p", "stop_gradient", "name", "dynamic_slice", "optimization_barrier", "device_put"),
}
# Lookups at unknown indices: their results are no weights, and are dense, since a loop may carry them
_LOOK_UPS = frozenset({"gather", "dynamic_slice"})
_INLINED = frozenset({"jit", "pjit", "closed_call", "core_call", "call", "eval_jaxpr"})


class ByRules:
    """A function, or a callable pytree that holds quantised arrays, in which these are computed with by their rules."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Everything that is no array is static. Raises TypeError for static arguments that are not hashable."""
        return evaluated(self.fn, args, kwargs)


jax.tree_util.register_pytree_node(ByRules, lambda f: ((f.fn,), None), lambda _, children: ByRules(*children))


def evaluated(fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Evaluate `fn(*args, **kwargs)` by the rules for quantised arrays."""
    leaves, structure = jax.tree.flatten((fn, tuple(args), kwargs), is_leaf=is_codes)
    if not any(map(is_codes, leaves)):
        return fn(*args, **kwargs)
    specs = tuple([_spec(x) for x in leaves])
    fixed = tuple([x if s is None else None for x, s in zip(leaves, specs, strict=True)])
    key = (structure, specs, tuple(map(type, fixed)), fixed, settings.current())
    try:
        program = _known.get(key)
    except TypeError:
        odd = next(x for x in fixed if getattr(type(x), "__hash__", None) is None)
        raise TypeError(
            f"{getattr(fn, '__name__', type(fn).__name__)} got a {type(odd).__qualname__}, which is neither an"
            " array nor hashable: pass arrays, numbers, strings, or containers of them"
        ) from None
    if program is None:
        program = _Program(structure, specs, fixed)
        if not program.outer:
            if len(_known) >= _MOST:
                _known.clear()
            _known[key] = program
    return program([x for x, s in zip(leaves, specs, strict=True) if s is not None])


def is_codes(x: Any) -> bool:
    return isinstance(x, Codes)


def _spec(x: Any) -> Any:
    """Return the properties of an operand that a program depends on; None for a static one."""
    if isinstance(x, Codes):
        return type(x), x.form
    if isinstance(x, jax.Array):
        return x.shape, x.dtype, x.aval.weak_type
    return (x.shape, x.dtype, False) if isinstance(x, np.ndarray | np.generic) else None


_MOST = 4096
_known: dict[Any, _Program] = {}


class _Program:
    """A function for arguments of the same kinds."""

    def __init__(self, structure: Any, specs: Sequence[Any], fixed: Sequence[Any]) -> None:
        self.forms = [s[1] if isinstance(s[0], type) else None for s in specs if s is not None]
        self.kind = next(s[0] for s in specs if s is not None and isinstance(s[0], type))
        self.notes: policy.Notes = []
        self.made: list[Any] = []  # forms of the results
        attributes = self.__dict__

        def flat(*arrays: Any) -> list[Any]:
            varying = iter(arrays)
            filled = [x if s is None else next(varying) for x, s in zip(fixed, specs, strict=True)]
            fn, args, kwargs = jax.tree.unflatten(structure, filled)
            results, attributes["results"] = jax.tree.flatten(fn(*args, **kwargs))
            attributes["static"] = [None if _is_arraylike(x) else (x,) for x in results]
            return [x for x in results if _is_arraylike(x)]

        self.results: Any = None  # their structure
        self.static: list[Any] = []  # arguments that are no arrays
        closed = traced(flat, [_dense_spec(s) for s in specs if s is not None])
        self.jaxpr, self.constants = closed.jaxpr, closed.consts
        # tracers of an enclosing trace, closed over
        self.outer = [x for x in closed.consts if isinstance(x, jax.core.Tracer)]
        self.moves = not self.outer and _only_moves(closed.jaxpr)
        self.run = jax.jit(self._run, inline=True)

    def __call__(self, leaves: Sequence[Any]) -> Any:
        operands = [x.parts if isinstance(x, Codes) else x for x in leaves]
        parts = self._run(operands, []) if self.moves else self.run(operands, self.outer)
        policy.counted(self.notes)
        results = iter([x if form is None else self.kind(x, form) for x, form in zip(parts, self.made, strict=True)])
        return jax.tree.unflatten(self.results, [next(results) if x is None else x[0] for x in self.static])

    def _run(self, parts: Sequence[Any], outer: Sequence[Any]) -> list[Any]:
        """Run the jaxpr on parts of quantised arrays, which `self.forms` says how to put together."""
        rest = iter(outer)
        constants = [next(rest) if isinstance(x, jax.core.Tracer) else x for x in self.constants]
        operands = [x if f is None else self.kind(x, f) for x, f in zip(parts, self.forms, strict=True)]
        with policy.counting_later() as self.notes, computed_early():  # places that are constant are known
            results = interpreted(self.jaxpr, constants, operands)
        self.made = [x.form if isinstance(x, Codes) else None for x in results]
        return [x.parts if isinstance(x, Codes) else x for x in results]


def _dense_spec(s: Any) -> Any:
    if isinstance(s[0], type):
        return Spec(s[1][1].shape, s[1][1].dtype)
    return jax.ShapeDtypeStruct(s[0], s[1], weak_type=s[2])


def _is_arraylike(x: Any) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic | bool | int | float | complex)


def _only_moves(jaxpr: core.Jaxpr) -> bool:
    """Return whether nothing is computed, so that another jaxpr is not worth compiling."""
    return all(
        _only_moves(releases.called_jaxpr(e).jaxpr)
        if e.primitive.name in ("jit", "pjit")
        else e.primitive.name in _VIEWS
        for e in jaxpr.eqns
    )


# ---- the interpreter -------------------------------------------------------------------------------------------------


def interpreted(jaxpr: core.Jaxpr, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Return the results of a jaxpr, of whose operands some are `Codes`."""

    def compute(equation: Any, values: list[Any]) -> Sequence[Any]:
        if not any(map(is_codes, values)):
            return bind(equation, values)
        results = _applied(equation, values)
        return results if equation.primitive.multiple_results else [results]

    return interpret(jaxpr, constants, operands, compute)


def _applied(equation: Any, values: Sequence[Any]) -> Any:
    name = equation.primitive.name
    if name in _INLINED:
        return _body(releases.called_jaxpr(equation))(*values)
    if name in _STRUCTURED:
        return _STRUCTURED[name](values, **releases.parameters(equation))
    if name in _RULED:
        return _ruled(equation, values)
    policy.missing(name, ", ".join(x.label for x in values if is_codes(x)))
    results = bind(equation, [dense_of(x) if is_codes(x) else x for x in values])
    return results if equation.primitive.multiple_results else results[0]


def _ruled(equation: Any, values: Sequence[Any]) -> Any:
    """Compute an equation by the rule of its primitive in operations of the hub."""
    xp = backend()
    kind = next(type(x) for x in values if is_codes(x))
    constants = tuple([_constant(x) for x in values])
    with xp.scope():
        operands = [quantized(x) if is_codes(x) else jax.numpy.asarray(x) for x in values]
        results = resolved(equation, constants)(quantizing(xp), *operands)
        if equation.primitive.name in _LOOK_UPS and not all(x is not None for x in constants[1:]):
            return quantizing(xp).dense(results)
        if equation.primitive.multiple_results:
            return [kind.of(x) if isinstance(x, Quantized) else x for x in results]
        return kind.of(results) if isinstance(results, Quantized) else results


def _constant(x: Any) -> Any:
    """Return the value of a small operand that has one: corners of slices."""
    if is_codes(x) or isinstance(x, jax.core.Tracer) or np.size(x) > 64:
        return None
    return np.asarray(x)


# ---- control flow: quantised arrays are pytrees ----------------------------------------------------------------------


def _body(closed: core.ClosedJaxpr) -> Callable[..., list[Any]]:
    return lambda *operands: interpreted(closed.jaxpr, closed.consts, operands)


def _all_dense(values: Sequence[Any], reason: str) -> list[Any]:
    """Dequantise the carry of a loop, because it must have the same form in every step, and the form of the first value
    may differ from that of the next."""
    for x in values:
        if is_codes(x):
            policy.missing(reason, x.label)
    return [dense_of(x) if is_codes(x) else x for x in values]


def _scan(values: Sequence[Any], *, jaxpr: Any, num_consts: int, num_carry: int, length: int, reverse: bool,
          unroll: Any, **_: Any) -> list[Any]:  # fmt: skip
    split = num_consts + num_carry
    used, init, xs = values[:num_consts], _all_dense(values[num_consts:split], "carry of scan"), values[split:]
    body = _body(jaxpr)

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        results = body(*used, *carry, *x)
        return _all_dense(results[:num_carry], "carry of scan"), results[num_carry:]

    carry, ys = jax.lax.scan(step, init, list(xs), length=length, reverse=reverse, unroll=unroll)
    return [*carry, *ys]


def _while(values: Sequence[Any], *, cond_nconsts: int, cond_jaxpr: Any, body_nconsts: int, body_jaxpr: Any,
           **_: Any) -> list[Any]:  # fmt: skip
    split = cond_nconsts + body_nconsts
    condition_consts, used = values[:cond_nconsts], values[cond_nconsts:split]
    condition, body = _body(cond_jaxpr), _body(body_jaxpr)
    return jax.lax.while_loop(
        lambda state: condition(*condition_consts, *state)[0],
        lambda state: _all_dense(body(*used, *state), "carry of while_loop"),
        _all_dense(values[split:], "carry of while_loop"),
    )


def _cond(values: Sequence[Any], *, branches: Sequence[Any], **_: Any) -> list[Any]:
    index, *operands = values

    def branch(closed: Any) -> Callable[..., list[Any]]:
        body = _body(closed)
        return lambda *operands: _all_dense(body(*operands), "result of cond")

    return jax.lax.switch(jax.numpy.asarray(index, np.int32), [branch(b) for b in branches], *operands)


def _checkpoint(values: Sequence[Any], *, jaxpr: Any, prevent_cse: Any, policy: Any, **_: Any) -> list[Any]:
    body = _body(releases.closed(jaxpr))
    return jax.checkpoint(lambda *operands: body(*operands), prevent_cse=prevent_cse, policy=policy)(*values)


_STRUCTURED: dict[str, Callable[..., list[Any]]] = {
    "scan": _scan, "while": _while, "cond": _cond, "checkpoint": _checkpoint, "remat2": _checkpoint,
}  # fmt: skip
