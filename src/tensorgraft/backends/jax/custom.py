"""Functions with derivatives by rule, as two primitives of JAX. See `hub.transforms.Transforms.custom_vjp`.

`jax.custom_vjp` has no forward mode, the tangents of a `jax.custom_jvp` that is not made of JAX's own operations no
transpose, and `linear_call` no batching. `custom_p` is the function; its tangents are `linear_p`, which is linear in
its last arguments, and whose transpose is `linear_p` by the other rule. Outside of traces both call the function
itself: loops in it are Python's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import float0
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import DynamicJaxprTracer

from tensorgraft.hub.array import NativeArray as Array


class DerivativeRule:
    """A function, (arguments, results, tangents) -> tangents, and (arguments, results, cotangents) -> cotangents; of
    inexact arguments and results alone."""

    def __init__(self, fn: Callable[..., Any], forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        self.fn = fn
        self.forward = forward
        self.backward = backward
        self.programs: dict[Any, ClosedJaxpr] = {}
        self.batched: dict[Any, DerivativeRule] = {}

    def staged(self, key: str, fn: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
        """Trace a function where it is used: it is lowered later, when values that it reads from outside may have
        changed."""
        cache_key = (key, *[(a.shape, a.dtype) for a in avals])
        if cache_key not in self.programs:
            self.programs[cache_key] = jax.make_jaxpr(lambda *xs: tuple(fn(*xs)))(
                *[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
            )
        return self.programs[cache_key]


def bind(xp: Any, fn: Any, backward: Any, forward: Any, arrays: Sequence[Array]) -> tuple[Array, ...]:
    def run(*arrays: Array) -> list[Array]:
        return [jnp.asarray(r) for r in fn(xp, *arrays)]

    def forwards(arguments: Sequence[Array], results: Sequence[Array], moving: Sequence[Array]) -> list[Array]:
        rest = iter(moving)
        tangents = [next(rest) if _smooth(x) else jnp.zeros_like(x) for x in arguments]
        moved = forward(xp, arguments, results, tangents)
        return [jnp.asarray(t, r.dtype) for t, r in zip(moved, results, strict=True) if _smooth(r)]

    def backwards(arguments: Sequence[Array], results: Sequence[Array], cotangents_in: Sequence[Array]) -> list[Array]:
        rest = iter(cotangents_in)
        cotangents = [next(rest) if _smooth(r) else jnp.zeros_like(r) for r in results]
        gradients = backward(xp, arguments, results, cotangents)
        return [
            jnp.zeros_like(x) if g is None else jnp.asarray(g, x.dtype)
            for g, x in zip(gradients, arguments, strict=True)
            if _smooth(x)
        ]

    return tuple(custom_p.bind(*arrays, rule=DerivativeRule(run, forwards, backwards)))


def _smooth(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


# ---- the function ----------------------------------------------------------------------------------------------------

custom_p = Primitive("tensorgraft_custom")
custom_p.multiple_results = True
custom_p.def_impl(lambda *xs, rule: rule.fn(*xs))
custom_p.def_abstract_eval(lambda *avals, rule: rule.staged("fn", rule.fn, avals).out_avals)


def _lowered(ctx: Any, *xs: Any, rule: DerivativeRule) -> Any:
    program = rule.staged("fn", rule.fn, ctx.avals_in)
    return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *xs)


def _jvp(primals: Sequence[Array], tangents: Sequence[Any], *, rule: DerivativeRule) -> tuple[list[Array], list[Any]]:
    results = custom_p.bind(*primals, rule=rule)
    zeros: list[Any] = [ad.Zero(jax.typeof(r).to_tangent_aval()) for r in results]
    if all(type(t) is ad.Zero for t in tangents):
        return results, zeros
    moving = [
        jnp.zeros(x.shape, x.dtype) if type(t) is ad.Zero else t
        for t, x in zip(tangents, primals, strict=True)
        if _smooth(x)
    ]
    moved = iter(
        _bind_linear(
            *primals,
            *results,
            *moving,
            rule=rule,
            arguments=len(primals),
            known=len(primals) + len(results),
            transposed=False,
            outs=tuple([(r.shape, r.dtype) for r in results if _smooth(r)]),
        )
    )
    return results, [next(moved) if _smooth(r) else z for r, z in zip(results, zeros, strict=True)]


Axes = tuple[int | None, ...]


def _first(args: Sequence[Array], dims: Sequence[Any]) -> tuple[list[Array], Axes]:
    """Return arrays with the axis of the batch first, and where they have it."""
    moved = [x if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)]
    return moved, tuple(None if d is None else 0 for d in dims)


def _batch(args: Sequence[Array], dims: Sequence[Any], *, rule: DerivativeRule) -> tuple[list[Array], list[int]]:
    """Batch the function. Arguments that are not batched stay so: the function may ask for their values."""
    moved, axes = _first(args, dims)
    if axes not in rule.batched:
        smooth = [a for a, x in zip(axes, moved, strict=True) if _smooth(x)]

        def forward(arguments: Any, results: Any, moving: Any) -> list[Array]:
            return jax.vmap(rule.forward, in_axes=(list(axes), 0, smooth))(arguments, results, moving)

        def backward(arguments: Any, results: Any, seeds: Any) -> list[Array]:
            gradients = jax.vmap(rule.backward, in_axes=(list(axes), 0, 0))(arguments, results, seeds)
            return [jnp.sum(g, axis=0) if a is None else g for g, a in zip(gradients, smooth, strict=True)]

        rule.batched[axes] = DerivativeRule(jax.vmap(rule.fn, in_axes=axes), forward, backward)
    out = custom_p.bind(*moved, rule=rule.batched[axes])
    return out, [0] * len(out)


mlir.register_lowering(custom_p, _lowered)
ad.primitive_jvps[custom_p] = _jvp
batching.primitive_batchers[custom_p] = _batch


# ---- its tangents, and their transpose -------------------------------------------------------------------------------

linear_p = Primitive("tensorgraft_custom_linear")
linear_p.multiple_results = True


def _linear(rule: DerivativeRule, arguments: int, known: int, transposed: bool, *xs: Array) -> list[Array]:
    f = rule.backward if transposed else rule.forward
    return f(list(xs[:arguments]), list(xs[arguments:known]), list(xs[known:]))


@linear_p.def_impl
def _linear_impl(
    *xs: Array, rule: DerivativeRule, arguments: int, known: int, transposed: bool, outs: Any
) -> list[Array]:
    return _linear(rule, arguments, known, transposed, *xs)


def _linear_program(
    rule: DerivativeRule, avals: Sequence[Any], arguments: int, known: int, transposed: bool, outs: Any
) -> ClosedJaxpr:
    fn = functools.partial(_linear, rule, arguments, known, transposed)
    return rule.staged("backward" if transposed else "forward", fn, avals)


def _bind_linear(*xs: Array, **params: Any) -> list[Array]:
    if any(isinstance(x, DynamicJaxprTracer) for x in xs[params["known"] :]):  # to be lowered later, but read now
        _linear_program(avals=[jax.typeof(x) for x in xs], **params)
    return list(linear_p.bind(*xs, **params))


@linear_p.def_abstract_eval
def _linear_avals(*avals: Any, outs: Any, **params: Any) -> Any:
    return [jax.core.ShapedArray(shape, dtype) for shape, dtype in outs]


def _linear_lowered(ctx: Any, *xs: Any, **params: Any) -> Any:
    program = _linear_program(avals=ctx.avals_in, **params)
    return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *xs)


def _linear_jvp(primals: Sequence[Array], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    known = params["known"]
    if any(type(t) is not ad.Zero for t in tangents[:known]):  # the rule's own tangents
        moving = [
            (jnp.zeros(x.shape, x.dtype) if type(t) is ad.Zero else t) if _smooth(x) else np.zeros(x.shape, float0)
            for t, x in zip(tangents, primals, strict=True)
        ]
        return jax.jvp(lambda *xs: _linear(params["rule"], params["arguments"], known, params["transposed"], *xs),
                       tuple(primals), tuple(moving))  # fmt: skip
    out = linear_p.bind(*primals, **params)
    rest = [
        jnp.zeros(x.shape, x.dtype) if type(t) is ad.Zero else t
        for t, x in zip(tangents[known:], primals[known:], strict=True)
    ]
    return out, _bind_linear(*primals[:known], *rest, **params)


def _linear_transpose(cotangents: Sequence[Any], *xs: Any, transposed: bool, outs: Any, **params: Any) -> list[Any]:
    known = params["known"]
    avals: list[Any] = [getattr(c, "aval", None) for c in cotangents]
    seeds = [jnp.zeros(a.shape, a.dtype) if type(c) is ad.Zero else c for c, a in zip(cotangents, avals, strict=True)]
    backs = tuple([(x.aval.shape, x.aval.dtype) for x in xs[known:]])
    return [None] * known + _bind_linear(*xs[:known], *seeds, transposed=not transposed, outs=backs, **params)


def _linear_batch(
    args: Sequence[Array],
    dims: Sequence[Any],
    *,
    rule: DerivativeRule,
    arguments: int,
    known: int,
    outs: Any,
    **params: Any,
) -> tuple[Any, Any]:
    moved, axes = _first(args, dims)
    size = next(x.shape[0] for x, a in zip(moved, axes, strict=True) if a == 0)
    # results are batched, and so are what the transpose gives back
    moved[known:] = [
        jnp.broadcast_to(x, (size, *x.shape)) if a is None else x
        for x, a in zip(moved[known:], axes[known:], strict=True)
    ]
    key = (arguments, axes[:known])
    if key not in rule.batched:
        in_axes = (list(axes[:arguments]), list(axes[arguments:known]), 0)
        forward, backward = jax.vmap(rule.forward, in_axes=in_axes), jax.vmap(rule.backward, in_axes=in_axes)
        rule.batched[key] = DerivativeRule(rule.fn, forward, backward)
    rows = tuple([((size, *shape), dtype) for shape, dtype in outs])
    out = linear_p.bind(*moved, rule=rule.batched[key], arguments=arguments, known=known, outs=rows, **params)
    return out, [0] * len(out)


mlir.register_lowering(linear_p, _linear_lowered)
ad.primitive_jvps[linear_p] = _linear_jvp
ad.primitive_transposes[linear_p] = _linear_transpose
batching.primitive_batchers[linear_p] = _linear_batch
