"""Derivatives of functions of any pytrees: of the arrays of floating-point numbers in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import optree

from tensorgraft.arrays import is_inexact_array
from tensorgraft.transforms.filters import combine, filter
from tensorgraft.transforms.gradients import hessian, jacobian, jvp, value_and_grad, vjp, vmap
from tensorgraft.transforms.module import field
from tensorgraft.transforms.wrapper import WrappedFunction, adopted, describe_leaves, smooth


class _Grad(WrappedFunction):
    has_aux: bool = field(static=True)
    with_value: bool = field(static=True)

    def __call__(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        x, args, kwargs = adopted((x, args, kwargs))
        moving, rest = smooth(x)

        def run(moving: Any) -> Any:
            return self.fn(combine(moving, rest), *args, **kwargs)

        if optree.tree_leaves(moving):
            out, grads = value_and_grad(run, has_aux=self.has_aux)(moving)
        else:
            out, grads = run(moving), moving
        if self.with_value:
            return out, grads
        return (grads, out[1]) if self.has_aux else grads


def filter_value_and_grad(fn: Callable[..., Any] | None = None, *, has_aux: bool = False) -> Any:
    """Return (the result of `fn`, its gradient) with respect to the arrays of floating-point numbers in the first
    argument.

    The gradient is a pytree like that argument, with None in the places of all other leaves. `fn` returns a real
    0-dimensional floating-point array, with `has_aux` a pair of one and anything. Raises TypeError for another
    result, as `tg.value_and_grad` does.
    """
    if fn is None:
        return lambda fn: filter_value_and_grad(fn, has_aux=has_aux)
    return _Grad(fn, has_aux, True)


def filter_grad(fn: Callable[..., Any] | None = None, *, has_aux: bool = False) -> Any:
    """Return the gradient of `fn`, with `has_aux` (gradient, anything); see `filter_value_and_grad`. Raises TypeError
    as it does."""
    if fn is None:
        return lambda fn: filter_grad(fn, has_aux=has_aux)
    return _Grad(fn, has_aux, False)


def filter_vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return (the result of `fn(*primals)`, pullback), with `has_aux` (result, pullback, anything).

    The pullback takes cotangents like the result, None where they are zero or the leaf has no derivative, and gives a
    tuple of cotangents like the primals, None for leaves without. Raises ValueError for others.
    """
    primals = adopted(primals)
    parts = [smooth(p) for p in primals]

    def run(*moving: Any) -> Any:
        out = fn(*(combine(m, rest) for m, (_, rest) in zip(moving, parts, strict=True)))
        if not has_aux:
            return out, None
        if not (isinstance(out, tuple) and len(out) == 2):
            raise TypeError("filter_vjp: with has_aux=True the function must return a pair (result, anything)")
        return out

    (out, aux), pullback = vjp(run, *(m for m, _ in parts))
    leaves, structure = optree.tree_flatten(out)

    def pulled_back(cotangents: Any) -> tuple[Any, ...]:
        seeds = _like(leaves, structure, cotangents, "filter_vjp: the cotangents", "result")
        return pullback((optree.tree_unflatten(structure, seeds), optree.tree_map(_zero, aux)))

    return (out, pulled_back, aux) if has_aux else (out, pulled_back)


def filter_jvp(fn: Callable[..., Any], primals: Any, tangents: Any, **kwargs: Any) -> tuple[Any, Any]:
    """Return (the result of `fn(*primals)`, its tangent), for tangents like the primals: None where they are zero, or
    the leaf has no derivative. So are the tangents that are returned. Raises ValueError for tangents of another
    structure."""
    primals, tangents, kwargs = adopted((tuple(primals), tuple(tangents), kwargs))
    leaves, structure = optree.tree_flatten(primals)
    seeds = _like(leaves, structure, tangents, "filter_jvp: the tangents", "primals")
    where = [k for k, x in enumerate(leaves) if is_inexact_array(x)]

    def run(*moving: Any) -> Any:
        new_leaves = list(leaves)
        for k, x in zip(where, moving, strict=True):
            new_leaves[k] = x
        return fn(*optree.tree_unflatten(structure, new_leaves), **kwargs)

    if not where:
        out = run()
        return out, optree.tree_map(lambda x: None, out)
    out, moved = jvp(run, tuple(leaves[k] for k in where), tuple(seeds[k] for k in where))
    return out, filter(moved, is_inexact_array)


def _like(leaves: list[Any], structure: Any, tree: Any, label: str, owner: str) -> list[Any]:
    """Return for each leaf its cotangent: zeros for None, which may represent a subtree, and for leaves without a
    derivative."""
    matched: list[Any] = []

    def below(v: Any, part: Any) -> None:
        if v is not None and not optree.tree_structure(part).is_leaf():
            raise ValueError(f"expected a pytree like {optree.tree_structure(part)}, got a {type(v).__qualname__}")
        matched.extend([v] * optree.tree_structure(part).num_leaves)

    try:
        optree.tree_map_(below, tree, optree.tree_unflatten(structure, leaves), is_leaf=lambda v: v is None)
    except ValueError as error:
        raise ValueError(
            f"{label} must have the structure of the {owner} ({describe_leaves(leaves)}): {error}"
        ) from None
    for x, v in zip(leaves, matched, strict=True):
        if is_inexact_array(x) and v is not None and getattr(v, "shape", None) != x.shape:
            raise ValueError(
                f"{label} must have the shapes and dtypes of the {owner}: got {describe_leaves(v)} for"
                f" {describe_leaves(x)}"
            )
    return [_zero(x) if v is None or not is_inexact_array(x) else v for x, v in zip(leaves, matched, strict=True)]


def _zero(x: Any) -> Any:
    import tensorgraft.array_api as xp

    return xp.zeros_like(x) if isinstance(x, xp.Array) else x


class _Jacobian(WrappedFunction):
    has_aux: bool = field(static=True)
    name: str = field(static=True)

    def __call__(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        x, args, kwargs = adopted((x, args, kwargs))
        moving, rest = smooth(x)
        if not optree.tree_leaves(moving):
            raise TypeError(f"{self.name}: there is no array of floating-point numbers in the first argument")

        def run(moving: Any) -> Any:
            return self.fn(combine(moving, rest), *args, **kwargs)

        def result(moving: Any) -> Any:
            out = run(moving)[0] if self.has_aux else run(moving)
            return out if self.name == "filter_hessian" else filter(out, is_inexact_array)

        jacobian = _TRANSFORMS[self.name](result)(moving)
        return (jacobian, run(moving)[1]) if self.has_aux else jacobian


def _forward(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Jacobian by tangents, one for each element of the argument."""
    import tensorgraft.array_api as xp

    def wrapped(x: Any) -> Any:
        leaves: list[Any]
        leaves, structure = optree.tree_flatten(x)
        flat = lambda *xs: fn(optree.tree_unflatten(structure, xs))  # noqa: E731
        zeros = [xp.zeros_like(v) for v in leaves]
        columns = []
        for k, v in enumerate(leaves):
            n = math.prod(v.shape)
            basis = xp.reshape(xp.eye(n, dtype=v.dtype, device=v.device), (n, *v.shape))

            def tangent(t: Any, k: int = k) -> Any:
                return jvp(flat, leaves, [*zeros[:k], t, *zeros[k + 1 :]])[1]

            columns.append((v.shape, vmap(tangent, out_axes=-1)(basis)))
        out_structure = optree.tree_structure(columns[0][1])
        rows = []
        for parts in zip(*(optree.tree_leaves(c) for _, c in columns), strict=True):
            shaped = [xp.reshape(p, (*p.shape[:-1], *shape)) for p, (shape, _) in zip(parts, columns, strict=True)]
            rows.append(optree.tree_unflatten(structure, shaped))
        return optree.tree_unflatten(out_structure, rows)

    return wrapped


_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "filter_hessian": hessian,
    "filter_jacfwd": _forward,
    "filter_jacrev": jacobian,
}


def filter_jacrev(fn: Callable[..., Any] | None = None, *, has_aux: bool = False) -> Any:
    """Return the derivative of each array that `fn` returns by each array of floating-point numbers in its first
    argument, by pullbacks: in the structure of the result, then of the argument, arrays of the shape of the one and
    then the other. Leaves without a derivative are None. Raises TypeError for an argument without such an array."""
    if fn is None:
        return lambda fn: filter_jacrev(fn, has_aux=has_aux)
    return _Jacobian(fn, has_aux, "filter_jacrev")


def filter_jacfwd(fn: Callable[..., Any] | None = None, *, has_aux: bool = False) -> Any:
    """Transform a function as `filter_jacrev` does, by tangents: for functions with more results than arguments. Raises
    TypeError as it does."""
    if fn is None:
        return lambda fn: filter_jacfwd(fn, has_aux=has_aux)
    return _Jacobian(fn, has_aux, "filter_jacfwd")


def filter_hessian(fn: Callable[..., Any] | None = None, *, has_aux: bool = False) -> Any:
    """Return the second derivatives of a function that returns a real scalar, by pairs of arrays in the first argument:
    in its structure, twice. Raises TypeError for an argument without such an array, and for another result."""
    if fn is None:
        return lambda fn: filter_hessian(fn, has_aux=has_aux)
    return _Jacobian(fn, has_aux, "filter_hessian")
