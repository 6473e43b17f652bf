"""Evaluation of jaxprs on a backend of the hub.

A jaxpr is converted to a `JaxprPlan` once: calls are inlined, dead equations dropped, constants converted, and every
primitive is resolved to its rule, to JAX's own decomposition, or to an error that names it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from tensorgraft.compiled.steps import RuleStep, StepsPlan
from tensorgraft.frontends.jax import extents, releases
from tensorgraft.frontends.jax.decomposition import decomposed, without_references
from tensorgraft.frontends.jax.jaxpr_interpreter import interpret
from tensorgraft.frontends.jax.keys import Keys, is_key_dtype
from tensorgraft.frontends.jax.rule import REASONS, RULES, PrimitiveRule
from tensorgraft.hub import registry
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend

# calls that JAX runs equation by equation when nothing is traced
_INLINE = frozenset({"checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call"})


class UnsupportedPrimitiveError(NotImplementedError):
    """A primitive of JAX without a rule."""


class JaxprPlan(StepsPlan):
    """A jaxpr as a list of steps. Constants are host arrays or JAX keys; operands may be `Keys`."""

    def converted(self, xp: Backend, value: Any) -> Array | Keys:
        return constant(xp, value)

    def arrays_in(self, value: Any) -> Sequence[Array]:
        return value.words if isinstance(value, Keys) else (value,)


def constant(xp: Backend, x: Any) -> Array | Keys:
    """Return a value of JAX or NumPy as an array of the backend."""
    if is_key_dtype(getattr(x, "dtype", None) or np.asarray(x).dtype):
        return Keys.of(xp, xp.asarray(np.array(jax.random.key_data(x))))
    return xp.asarray(np.array(x))


def evaluate(xp: Backend, closed: core.ClosedJaxpr, *operands: Array) -> list[Array]:
    """Return the results of a closed jaxpr. Raises UnsupportedPrimitiveError."""
    return plan(closed)(xp, *operands)


def evaluator(xp: Backend, closed: core.ClosedJaxpr) -> Callable[..., list[Array]]:
    """Return the function that evaluates the body of a loop or a branch. A backend may have its own (`codegen`)."""
    backend_evaluator = getattr(xp, "jaxpr_evaluator", None)
    return functools.partial(_inner_plan(closed), xp) if backend_evaluator is None else backend_evaluator(closed)


def plan(closed: core.ClosedJaxpr) -> JaxprPlan:
    """Return the plan of a jaxpr. Raises TypeError for forward mode over a `custom_vjp`."""
    _refuse_forward_mode(closed.jaxpr)
    return _inner_plan(closed)


@functools.lru_cache(maxsize=4096)
def _inner_plan(closed: core.ClosedJaxpr) -> JaxprPlan:
    new = JaxprPlan()
    _Planner(new).top(without_references(closed))
    new.finish()
    return new


@functools.lru_cache(maxsize=4096)
def _refuse_forward_mode(jaxpr: core.Jaxpr) -> None:
    """Raise TypeError for a `custom_vjp` function under forward mode. All equations are checked, as JAX computes each
    when nothing is traced, but only the used ones of compiled functions."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "custom_lin":  # JAX's message at lowering
            raise TypeError("can't apply forward-mode autodiff (jvp) to a custom_vjp function.")
        for inner in releases.jaxprs_in_params(equation.params):
            _refuse_forward_mode(inner if name in _INLINE else used(inner))


def used(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """Return the jaxpr without dead equations."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


class _Planner:
    """Fills a plan with the steps of a jaxpr. Values of the plan are numbered slots."""

    def __init__(self, plan: JaxprPlan) -> None:
        self.plan = plan
        self.literals: dict[Any, int] = {}
        self.values: dict[int, Any] = {}  # {slot: constant}

    def constant(self, value: Any) -> int:
        slot = self.plan.new_slot()
        self.plan.constants.append((slot, value))
        self.values[slot] = value
        return slot

    def top(self, closed: core.ClosedJaxpr) -> None:
        self.plan.parameters = [self.plan.new_slot() for _ in closed.jaxpr.invars]
        self.plan.results = self.inline(closed.jaxpr, closed.consts, self.plan.parameters)

    def inline(self, jaxpr: core.Jaxpr, constants: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        return interpret(used(jaxpr), [*map(self.constant, constants)], inputs, self.equation, self.literal)

    def equation(self, equation: Any, reads: list[int]) -> list[int]:
        """Plan an equation, and return the slots of its results."""
        inner = called_jaxpr(equation)
        if inner is not None:
            return self.inline(inner.jaxpr, inner.consts, reads)
        known = tuple(self.values.get(slot) for slot in reads)
        if extents.is_symbolic(equation):
            run: Callable[..., Any] = functools.partial(_resolved_late, equation, known)
        elif (results := folded(equation, known)) is not None:
            return [self.constant(value) for value in results]
        else:
            run = resolved(equation, known)
        writes = [self.plan.new_slot() for _ in equation.outvars]
        primitive = equation.primitive
        self.plan.steps.append(RuleStep(primitive.name, run, tuple(reads), tuple(writes), primitive.multiple_results))
        return writes

    def literal(self, atom: core.Literal) -> int:
        aval: Any = atom.aval
        value = np.asarray(atom.val, aval.dtype)
        key = (value.dtype, value.shape, value.tobytes())
        if key not in self.literals:
            self.literals[key] = self.constant(value)
        return self.literals[key]


def called_jaxpr(equation: Any) -> core.ClosedJaxpr | None:
    """Return the jaxpr that an equation calls, or None if it is no call, or a rule computes it."""
    name = equation.primitive.name
    if name in releases.CALLS:
        return releases.called_jaxpr(equation)
    if name in RULES or name in REASONS:
        return None
    return decomposed(equation)


_FOLDED_SIZE = 1 << 14


def folded(equation: Any, known: Sequence[Any], numbers: bool = False) -> list[np.ndarray] | None:
    """Return the results of an equation on small constant integers (arithmetic of indices and masks), which are equal
    on every backend; with `numbers` also of an equation on 0-dimensional constants of any dtype. None for any other."""
    avals = [atom.aval for atom in (*equation.invars, *equation.outvars)]
    if any(value is None for value in known) or equation.effects or equation.primitive.name not in RULES:
        return None
    if not (numbers and all(not a.shape and not is_key_dtype(a.dtype) for a in avals)) and any(
        getattr(getattr(a, "dtype", None), "kind", "?") not in "biu" or a.size > _FOLDED_SIZE for a in avals
    ):
        return None
    host = registry.get("numpy")
    with host.scope():
        results = resolved(equation, known)(host, *[constant(host, value) for value in known])
        return [host.to_numpy(x) for x in (results if equation.primitive.multiple_results else [results])]


def resolved(equation: Any, known: Sequence[Any]) -> Callable[..., Any]:
    """Return the function that computes an equation that is no call; `known` has its operands that are constant."""
    name = equation.primitive.name
    rule = RULES.get(name)
    if rule is None:
        raise UnsupportedPrimitiveError(f"the JAX primitive {name} has no rule here" + _because(name))
    avals = tuple(atom.aval for atom in equation.invars)
    out = tuple(atom.aval for atom in equation.outvars)
    params = releases.parameters(equation)
    for request, value in (("out", out), ("given", avals), ("known", tuple(known))):
        if request in rule.asks:
            params[request] = value
    fn = functools.partial(rule.fn, **params)
    if not name.startswith("random_") and any(is_key_dtype(a.dtype) for a in avals if hasattr(a, "dtype")):
        return _by_word(name, rule, params)
    return fn


def _resolved_late(equation: Any, known: Sequence[Any], xp: Backend, *operands: Array) -> Any:
    return resolved(extents.concrete(equation), known)(xp, *operands)


def _by_word(name: str, rule: PrimitiveRule, params: dict[str, Any]) -> Callable[..., Any]:
    """Apply a rule that moves or compares elements to each word of its keys."""
    if rule.fn.__module__.endswith("control"):
        return functools.partial(rule.fn, **params)

    def run(xp: Backend, *operands: Array) -> Any:
        count = next(len(x.words) for x in operands if isinstance(x, Keys))
        words = [
            rule.fn(xp, *[x.words[i] if isinstance(x, Keys) else x for x in operands], **params) for i in range(count)
        ]
        if name in ("eq", "ne"):
            return functools.reduce(xp.logical_and if name == "eq" else xp.logical_or, words)
        if isinstance(words[0], list | tuple):
            return [Keys(tuple(word_of_keys)) for word_of_keys in zip(*words, strict=True)]
        return Keys(tuple(words))

    return run


def _because(name: str) -> str:
    return f": {REASONS[name]}" if name in REASONS else ""
