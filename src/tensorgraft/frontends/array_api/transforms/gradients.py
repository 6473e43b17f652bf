"""Derivatives and batching of functions of `Array`s, by the backend that their arrays are on. See `tg.grad`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.devices import device_of
from tensorgraft.frontends.array_api.core.exchange import to_device
from tensorgraft.frontends.array_api.transforms.functional import ArrayFunction
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

Argnums = int | Sequence[int]


def value_and_grad(
    fn: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, name: str = "value_and_grad"
) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        positions = _argument_numbers(argnums, args, name)
        run = ArrayFunction(name, functools.partial(fn, **kwargs) if kwargs else fn, args, positions)
        _check_inexact(name, run.inputs)
        xp = run.outer
        results, pullback = xp.vjp(run, *run.values())
        out = run.returned(results[: run.count])
        if has_aux and not (isinstance(out, tuple) and len(out) == 2):
            raise TypeError(f"{name}: with has_aux=True the function must return a pair (value, anything)")
        loss = out[0] if has_aux else out
        if not isinstance(loss, Array) or loss.shape or not dtypes.is_floating(loss.dtype):
            text = f"{loss.dtype}{list(loss.shape)}" if isinstance(loss, Array) else type(loss).__qualname__
            raise TypeError(f"{name}: the function must return a real 0-dimensional floating-point array, got {text}")
        with xp.scope():
            seeds = [xp.zeros_like(r) for r in results]
            seeds[0] = xp.ones_like(results[0])
            gradients = pullback(seeds)
        run.finish(results)
        return out, _like(args, positions, argnums, gradients, xp)

    return wrapped


def grad(fn: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    with_value = value_and_grad(fn, argnums, has_aux=has_aux, name="grad")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        out, gradients = with_value(*args, **kwargs)
        return (gradients, out[1]) if has_aux else gradients

    return wrapped


def vjp(fn: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    run = ArrayFunction("vjp", fn, primals, range(len(primals)))
    _check_inexact("vjp", run.inputs)
    xp = run.outer
    results, pullback = xp.vjp(run, *run.values())
    out = run.finish(results)
    shapes, structure = optree.tree_flatten(out)

    def pulled_back(cotangents: Any) -> tuple[Any, ...]:
        leaves, found_structure = optree.tree_flatten(cotangents)
        if found_structure != structure or any(
            not isinstance(c, Array) or c.shape != r.shape for c, r in zip(leaves, shapes, strict=True)
            if isinstance(r, Array)
        ):  # fmt: skip
            raise ValueError(
                f"vjp: the cotangents must have the shapes of the results, {_show(shapes)}, got {_show(leaves)}"
            )
        with xp.scope():
            seeds = [
                xp.astype(_to_backend_array(c, xp), r.dtype)
                for c, r in zip(leaves, shapes, strict=True)
                if isinstance(r, Array)
            ]
            gradients = pullback([*seeds, *(xp.zeros_like(r) for r in results[run.count :])])
        return _like(primals, range(len(primals)), list(range(len(primals))), gradients, xp)

    return out, pulled_back


def jvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    run = ArrayFunction("jvp", fn, primals, range(len(primals)))
    _check_inexact("jvp", run.inputs)
    moved_by: Any = tuple(tangents)
    directions: list[Any] = optree.tree_leaves(moved_by)
    if [getattr(t, "shape", None) for t in directions] != [x.shape for x in run.inputs]:
        raise ValueError(
            f"jvp: the tangents must have the shapes of the primals, {_show(run.inputs)}, got {_show(directions)}"
        )
    xp = run.outer
    with xp.scope():
        moved = [xp.astype(_to_backend_array(t, xp), x.dtype) for t, x in zip(directions, run.inputs, strict=True)]
    results, out = xp.jvp(run, run.values(), moved)
    return run.finish(results), run.returned(out[: run.count])


def vmap(fn: Callable[..., Any], in_axes: int | Sequence[int | None] = 0, out_axes: int = 0) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapped(*args: Any) -> Any:
        axes = [in_axes] * len(args) if isinstance(in_axes, int) else list(in_axes)
        if len(axes) != len(args):
            raise ValueError(f"vmap: in_axes has {len(axes)} entries for {len(args)} arguments")
        positions = [k for k, axis in enumerate(axes) if axis is not None]
        run = ArrayFunction("vmap", fn, args, positions)
        owners = [axis for k in positions for _ in optree.tree_leaves(args[k]) if (axis := axes[k]) is not None]
        for x, axis in zip(run.inputs, owners, strict=True):
            if not -x.ndim <= axis < x.ndim:
                raise ValueError(f"vmap: an array of shape {x.shape} has no axis {axis}")
        extents = {x.shape[axis] for x, axis in zip(run.inputs, owners, strict=True)}
        if len(extents) != 1:
            raise ValueError(f"vmap: the mapped axes have different extents: {sorted(extents)}")
        if extents == {0}:
            raise ValueError("vmap: the mapped axes have no elements")
        xp = run.outer
        with xp.scope():
            rows = [xp.moveaxis(v, axis, 0) for v, axis in zip(run.values(), owners, strict=True)]
            results = xp.vmap(run, *rows)
            run.raise_failed(results)
            if run.written:
                raise ValueError(
                    "vmap: the function writes an array from outside, which would happen once for every slice"
                )
            if not xp.mutable:
                moved = [xp.moveaxis(v, 0, owners[k]) for k, v in zip(run.rewritten, run.rest(results), strict=True)]
                for k, value in zip(run.rewritten, moved, strict=True):
                    run.inputs[k]._write(value)
            return run.returned([xp.moveaxis(r, 0, out_axes) for r in results[: run.count]])

    return wrapped


def jacobian(fn: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapped(*args: Any) -> Any:
        positions = _argument_numbers(argnums, args, "jacobian")
        run = ArrayFunction("jacobian", fn, args, positions)
        _check_inexact("jacobian", run.inputs)
        xp = run.outer
        results, pullback = xp.vjp(run, *run.values())
        out = run.finish(results)
        leaves, structure = optree.tree_flatten(out)
        rows = []
        with xp.scope():
            for k, r in enumerate(leaves):
                if not isinstance(r, Array) or not dtypes.is_inexact(r.dtype):
                    raise TypeError(f"jacobian: the function must return floating-point arrays, got {_show([r])}")
                n = math.prod(r.shape)
                basis = xp.reshape(xp.eye(n, n, r.dtype), (n, *r.shape))
                zero_seeds = [xp.zeros_like(v) for v in results]

                def row(_: Backend, seed: Any, k: int = k, zero_seeds: list[Any] = zero_seeds) -> tuple[Any, ...]:
                    return pullback([*zero_seeds[:k], seed, *zero_seeds[k + 1 :]])

                gradients = xp.vmap(row, basis) if n else tuple(xp.zeros((0, *x.shape), x.dtype) for x in run.inputs)
                shaped = [xp.reshape(v, (*r.shape, *x.shape)) for v, x in zip(gradients, run.inputs, strict=True)]
                rows.append(_like(args, positions, argnums, shaped, xp))
        return optree.tree_unflatten(structure, rows)

    return wrapped


def hessian(fn: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    return jacobian(grad(fn, argnums), argnums)


def _argument_numbers(argnums: Argnums, args: Sequence[Any], name: str) -> list[int]:
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    for k in numbers:
        if not -len(args) <= k < len(args):
            raise ValueError(f"{name}: argnums is {argnums}, but the function was called with {len(args)} arguments")
    return [k % len(args) for k in numbers]


def _check_inexact(name: str, inputs: Sequence[Array]) -> None:
    for x in inputs:
        if not dtypes.is_inexact(x.dtype):
            raise TypeError(f"{name}: only floating-point arrays have derivatives, got {x.dtype}")


def _like(args: Sequence[Any], positions: Sequence[int], argnums: Argnums, values: Sequence[Any], xp: Backend) -> Any:
    """Values in the structure of the arguments that were named."""
    remaining = iter(values)
    slopes = []
    with xp.scope():
        for k in positions:
            leaves, structure = optree.tree_flatten(args[k])
            slopes.append(optree.tree_unflatten(structure, [new_array(next(remaining), xp) for _ in leaves]))
    return slopes[0] if isinstance(argnums, int) else tuple(slopes)


def _to_backend_array(x: Array, xp: Backend) -> Any:
    """Return the array of the backend for a cotangent or a tangent, which may be where a result of the function is."""
    x = to_device(x, device_of(xp))
    if x._cell.backend is not xp and tracing.now.capture is not None:
        tracing.now.capture.touch(x._cell)
    return x._value()


def _show(leaves: Sequence[Any]) -> str:
    return ", ".join(
        f"{x.dtype}{list(x.shape)}" if isinstance(x, Array | np.ndarray) else type(x).__qualname__ for x in leaves
    )
