"""Functions for JAX's own users, out of functions in hub operations.

The hub computes with the dtypes it is given, 64-bit ones included. A user's own JAX program may run with
`jax_enable_x64` off, where JAX narrows what it traces and lowers. There a program of ours is one primitive: traced,
batched and lowered with 64-bit types, and with only narrow ones at its ends.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from tensorgraft.errors import DerivativeError
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.interchange import Differentiable

Arrays = tuple[Array, ...]

wide_p = Primitive("tensorgraft_program")
wide_p.multiple_results = True

_NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def _has_wide() -> bool:
    return jax.config.jax_enable_x64  # type: ignore[attr-defined]


def narrow(dtype: np.dtype) -> np.dtype:
    """Return the dtype that JAX has in place of `dtype` in the user's configuration."""
    dtype = np.dtype(dtype)
    return dtype if _has_wide() else np.dtype(_NARROW.get(dtype.name, dtype))


class _Programs:
    """The parts of a function, each traced once."""

    def __init__(self) -> None:
        self._programs: dict[str, ClosedJaxpr] = {}

    def __call__(self, part: str, fn: Callable[..., Sequence[Array]], arrays: Sequence[Array]) -> Arrays:
        if part not in self._programs:
            self._programs[part] = _staged(fn, [jax.ShapeDtypeStruct(np.shape(a), a.dtype) for a in arrays])
        return tuple(_call(self._programs[part], arrays))


def native_function(
    primal: Callable[..., Sequence[Array]],
    forward: Callable[..., tuple[Sequence[Array], Sequence[Array]]],
    backward: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array | None]],
) -> Callable[..., Arrays]:
    """See `Backend.native_function`. Each part is traced once: callers keep one function for each signature."""
    staged = _Programs()
    counts: dict[str, Any] = {}

    @jax.custom_vjp
    def function(*arrays: Array) -> Arrays:
        return staged("primal", primal, arrays)

    def fwd(*arrays: Array) -> tuple[Arrays, Arrays]:
        def flat(*arrays: Array) -> list[Array]:
            results, residuals = forward(*arrays)
            counts["results"] = len(results)
            return [*results, *residuals]

        outputs = staged("forward", flat, arrays)
        n = counts["results"]
        return outputs[:n], outputs[n:]

    def bwd(residuals: Arrays, cotangents: tuple[Any, ...]) -> tuple[Array | None, ...]:
        smooth_cotangents = [c for c in cotangents if c.dtype != jax.dtypes.float0]

        def flat(*arrays: Array) -> list[Array]:
            gradients = backward(arrays[: len(residuals)], arrays[len(residuals) :])
            counts["used"] = [g is not None for g in gradients]
            return [g for g in gradients if g is not None]

        remaining = iter(staged("backward", flat, [*residuals, *smooth_cotangents]))
        return tuple(next(remaining) if used else None for used in counts["used"])

    function.defvjp(fwd, bwd)
    return function


def differentiable(xp: Backend, function: Differentiable) -> Callable[..., Arrays]:
    """See `Backend.differentiable`. Reverse mode of any order is supported: each part has its own derivative, the
    function's `pullback`, and JAX does not differentiate its operations."""
    staged = _Programs()
    results: list[bool] = []  # for each result, True if it is inexact

    def smooth_argnums(arrays: Sequence[Array]) -> tuple[int, ...]:
        return tuple(i for i, a in enumerate(arrays) if _is_smooth(a))

    def scattered(arrays: Sequence[Array], gradients: Sequence[Array]) -> tuple[Array | None, ...]:
        remaining = iter(gradients)
        return tuple(next(remaining) if _is_smooth(a) else None for a in arrays)

    @functools.lru_cache(maxsize=1)
    def gradient(argnums: tuple[int, ...]) -> Callable[..., Arrays]:
        """Return the differentiable function from (arguments, cotangents) to the cotangents of arguments `argnums`."""
        return differentiable(xp, function.pullback(argnums))

    @jax.custom_vjp
    def custom_function(*arrays: Array) -> Arrays:
        return staged("primal", lambda *a: function.primal(xp, a), arrays)

    @jax.custom_vjp
    def first(*arrays: Array) -> Arrays:
        def flat(*a: Array) -> list[Array]:
            outputs, residuals = function.forward(xp, a, smooth_argnums(a))
            results[:] = [_is_smooth(x) for x in outputs]
            return [*outputs, *residuals]

        return staged("forward", flat, arrays)

    @jax.custom_vjp
    def second(arrays: Arrays, residuals: Arrays, cotangents: Arrays) -> Arrays:
        n, argnums = len(residuals), smooth_argnums(arrays)
        return staged("backward", lambda *a: function.backward(xp, a[:n], a[n:], argnums), (*residuals, *cotangents))

    def pulled_back(arrays: Arrays, cotangents: Sequence[Array]) -> tuple[Array | None, ...]:
        smooth = [c for c, s in zip(cotangents, results, strict=False) if s]  # without residuals, which come last
        return scattered(arrays, gradient(smooth_argnums(arrays))(*arrays, *smooth))

    def twice(saved: Any, cotangents: Arrays) -> Any:
        arrays, result_cotangents = saved
        _, pull = jax.vjp(gradient(smooth_argnums(arrays)), *arrays, *result_cotangents)
        through = [None if g.dtype == jax.dtypes.float0 else g for g in pull(cotangents)]
        return tuple(through[: len(arrays)]), None, tuple(through[len(arrays) :])

    def forward_rule(*arrays: Array) -> tuple[Arrays, Any]:
        outputs = first(*arrays)
        n = len(results)
        return outputs[:n], (arrays, outputs[n:])

    def backward_rule(saved: Any, cotangents: Arrays) -> tuple[Array | None, ...]:
        arrays, residuals = saved
        smooth = tuple(c for c, s in zip(cotangents, results, strict=True) if s)
        return scattered(arrays, second(arrays, residuals, smooth))

    custom_function.defvjp(forward_rule, backward_rule)
    first.defvjp(lambda *a: (first(*a), a), pulled_back)
    second.defvjp(lambda a, r, c: (second(a, r, c), (a, c)), twice)
    return custom_function


def _is_smooth(x: Array) -> bool:
    return dtypes.is_inexact(np.dtype(x.dtype))


def _staged(fn: Callable[..., Sequence[Array]], avals: Sequence[jax.ShapeDtypeStruct]) -> ClosedJaxpr:
    """Return the jaxpr of a function of arrays, which may use 64-bit types. Its results are narrowed to the user's
    precision."""
    # computed under the user's configuration, used under ours
    results = {name: narrow(np.dtype(name)) for name in _NARROW}

    def ends(*arrays: Array) -> list[Array]:
        return [a.astype(results.get(a.dtype.name, a.dtype)) for a in fn(*arrays)]

    with jax.enable_x64(True):
        return jax.make_jaxpr(ends)(*avals)


def _call(program: ClosedJaxpr, arrays: Sequence[Array]) -> list[Array]:
    """Return the results of a staged program, within any program of the user's."""
    if _has_wide():
        return list(jaxpr_as_fun(program)(*arrays))
    return wide_p.bind(*arrays, program=program)


@functools.lru_cache(maxsize=256)
def _compiled(program: ClosedJaxpr) -> Callable[..., Any]:
    return jax.jit(jaxpr_as_fun(program))


@wide_p.def_impl
def _(*arrays: Array, program: ClosedJaxpr) -> Any:
    with jax.enable_x64(True):
        return _compiled(program)(*arrays)


@wide_p.def_abstract_eval
def _(*avals: Any, program: ClosedJaxpr) -> Any:
    return program.out_avals


def _batch(arrays: Sequence[Array], dims: Sequence[int | None], *, program: ClosedJaxpr) -> Any:
    with jax.enable_x64(True):
        mapped = jax.vmap(jaxpr_as_fun(program), in_axes=tuple(dims))
        batched = jax.make_jaxpr(mapped)(*[jax.ShapeDtypeStruct(np.shape(a), a.dtype) for a in arrays])
    return wide_p.bind(*arrays, program=batched), (0,) * len(batched.out_avals)


def _lower(ctx: Any, *operands: Any, program: ClosedJaxpr) -> Any:
    with jax.enable_x64(True):
        return mlir.lower_fun(jaxpr_as_fun(program), multiple_results=True)(ctx, *operands)


def _refuse_derivative(*_: Any, **__: Any) -> Any:
    raise DerivativeError(
        "a grafted program on JAX has a derivative in reverse mode (jax.grad, jax.vjp, jax.jacrev), but this is a"
        " derivative in forward mode, or one of the backward pass of a PyTorch module, which is a compiled program.\n"
        "  in PyTorch:  torch.func.hessian, torch.func.jvp of the module on tg.device('jax')\n"
        "  in JAX:      tg.source(module, ..., onto='jax'), which JAX differentiates to any order"
    )


ad.primitive_jvps[wide_p] = _refuse_derivative
batching.primitive_batchers[wide_p] = _batch
mlir.register_lowering(wide_p, _lower)
