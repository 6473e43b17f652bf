"""Control flow of `lax` on pytrees of optree, whose node types differ from JAX's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import optree
from jax import lax

from tensorgraft.backends.jax.tracing import is_tracing
from tensorgraft.hub import Backend
from tensorgraft.hub.array import NativeArray as Array


class JaxControlFlow:
    barriers = 0  # the number of barriers so far: programs with a barrier are compiled with other options

    def cond(
        self, predicate: Array, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any
    ) -> Any:
        leaves: list[Any]
        leaves, tree = optree.tree_flatten(operands)  # type: ignore[arg-type]
        trees: list[Any] = []

        def flat(fn: Callable[..., Any]) -> Callable[..., Any]:
            def branch(*leaves: Array) -> list[Array]:
                out, out_tree = optree.tree_flatten(fn(*optree.tree_unflatten(tree, leaves)))
                trees.append(out_tree)
                return out

            return branch

        out = lax.cond(predicate, flat(true_fn), flat(false_fn), *leaves)
        if trees[0] != trees[-1]:
            raise TypeError(f"cond: the branches return different structures: {trees[0]} and {trees[-1]}")
        return optree.tree_unflatten(trees[0], out)

    def host_call(
        self, fn: Callable[..., Sequence[np.ndarray]], operands: Sequence[Array], results: Sequence[Any], /
    ) -> list[Array]:
        """Call the host. In a trace, calls without results run in the order of the program; calls with results run if
        these are used."""
        if not is_tracing() and not any(isinstance(x, jax.core.Tracer) for x in operands):
            return Backend.host_call(self, fn, operands, results)  # type: ignore[arg-type]
        dtypes = [np.dtype(x.dtype) for x in operands]
        words = [_words(lax.stop_gradient(x)) for x in operands]

        def on_host(*values: Any) -> list[np.ndarray]:
            host_operands = [_of_words(np.asarray(x), dtype) for x, dtype in zip(values, dtypes, strict=True)]
            return [_host_words(np.asarray(x)) for x in fn(*host_operands)]

        if not results:
            host_callback(on_host, ordered=True)(*words)
            return []
        specs = [jax.eval_shape(_words, jax.ShapeDtypeStruct(tuple(r.shape), r.dtype)) for r in results]
        outputs = jax.pure_callback(on_host, specs, *words, vmap_method="sequential")
        return [_arrays(x, np.dtype(r.dtype)) for x, r in zip(outputs, results, strict=True)]

    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        leaves, tree = optree.tree_flatten(init)

        def step(leaves: list[Array]) -> list[Array]:
            return _leaves("while_loop", tree, body(optree.tree_unflatten(tree, leaves)))

        out = lax.while_loop(lambda leaves: condition(optree.tree_unflatten(tree, leaves)), step, leaves)
        return optree.tree_unflatten(tree, out)

    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        leaves, tree = optree.tree_flatten(init)
        x_leaves, x_tree = optree.tree_flatten(xs)
        y_trees: list[Any] = []

        def step(carry: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
            new_carry, y = body(optree.tree_unflatten(tree, carry), optree.tree_unflatten(x_tree, x))
            y_leaves, y_tree = optree.tree_flatten(y)
            y_trees.append(y_tree)
            return _leaves("scan", tree, new_carry), y_leaves

        carry, ys = lax.scan(step, leaves, x_leaves, length=length, reverse=reverse)
        return optree.tree_unflatten(tree, carry), optree.tree_unflatten(y_trees[0], ys)

    def optimization_barrier(self, x: Array, after: Array, /) -> Array:
        self.barriers += 1
        return (
            ordered_after(x, after)
            if jax.numpy.issubdtype(x.dtype, np.inexact)
            else lax.optimization_barrier((x, after))[0]
        )


@jax.custom_jvp
def ordered_after(x: Array, after: Array) -> Array:
    """Return `x` as a value that is not computed before `after`. Tangents have no such order: JAX 0.12 cannot transpose
    a barrier with operands of which some are linear."""
    return lax.optimization_barrier((x, after))[0]


@ordered_after.defjvp
def _(primals: Sequence[Array], tangents: Sequence[Array]) -> tuple[Array, Array]:
    return ordered_after(*primals), lax.optimization_barrier(tangents[0])


def _leaves(name: str, tree: Any, carry: Any) -> list[Array]:
    leaves, new_tree = optree.tree_flatten(carry)
    if new_tree != tree:
        raise TypeError(f"{name}: the body returns the structure {new_tree}, but the loop started with {tree}")
    return leaves


def host_callback(fn: Callable[..., Any], ordered: bool) -> Callable[..., tuple[()]]:
    """Return a function that calls the host with values of a program. Under `jax.vmap` it is called once for the whole
    batch, whose axis is the first."""

    @jax.custom_batching.custom_vmap
    def call_host(*xs: Array) -> tuple[()]:
        jax.debug.callback(lambda *values: (fn(*map(np.asarray, values)), None)[1], *xs, ordered=ordered)
        return ()

    call_host.def_vmap(lambda size, batched, *xs: (call_host(*xs), ()))
    return call_host


# Values wider than 32 bits are passed as words of 32 bits: the thread that calls the host may have x64 disabled.


def _is_wide(dtype: np.dtype) -> bool:
    return dtype.itemsize > (8 if dtype.kind == "c" else 4)


def _words(x: Array) -> Array:
    if not _is_wide(np.dtype(x.dtype)):
        return x
    if np.dtype(x.dtype).kind == "c":
        x = jax.numpy.stack([lax.real(x), lax.imag(x)], axis=-1)
    return lax.bitcast_convert_type(x, np.uint32)


def _arrays(words: Array, dtype: np.dtype) -> Array:
    if not _is_wide(dtype):
        return words
    if dtype.kind == "c":
        parts = lax.bitcast_convert_type(words, np.float64)
        return lax.complex(parts[..., 0], parts[..., 1])
    return lax.bitcast_convert_type(words, dtype)


def _host_words(x: np.ndarray) -> np.ndarray:
    if not _is_wide(x.dtype):
        return x
    parts = (*x.shape, 2, 2) if x.dtype.kind == "c" else (*x.shape, 2)
    return np.ascontiguousarray(x).reshape(-1).view(np.uint32).reshape(parts)


def _of_words(words: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if not _is_wide(dtype):
        return words
    shape = words.shape[: -2 if dtype.kind == "c" else -1]
    return np.ascontiguousarray(words).reshape(-1).view(dtype).reshape(shape)
