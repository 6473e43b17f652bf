"""Control flow: Python's own where values are known, `tf.cond` and `tf.while_loop` in graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.backends.tensorflow.elementwise import astype
from tensorgraft.backends.tensorflow.framework import EagerTensor, tf
from tensorgraft.backends.tensorflow.graph import lift_captures, mark_effect
from tensorgraft.backends.tensorflow.operation import TF, dtype_of, is_weak, shape_of, weak_input
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend


class TensorFlowControlFlow:
    def cond(
        self, predicate: Array, true_fn: Callable[..., Any], false_fn: Callable[..., Any], /, *operands: Any
    ) -> Any:
        if isinstance(predicate, EagerTensor):
            return true_fn(*operands) if bool(predicate) else false_fn(*operands)
        trees: list[Any] = []
        described: list[str] = []

        def flat(fn: Callable[..., Any]) -> Callable[[], list[Array]]:
            def branch() -> list[Array]:
                lift_captures()
                out, tree = optree.tree_flatten(fn(*operands))
                trees.append(tree)
                out = [tf.identity(x) for x in out]
                described.append(", ".join(f"{dtype_of(x)}{list(shape_of(x))}" for x in out))
                return out

            return branch

        out = tf.cond(predicate, flat(true_fn), flat(false_fn))
        if trees[0] != trees[-1]:
            raise TypeError(f"cond: the branches return different structures: {trees[0]} and {trees[-1]}")
        if described[0] != described[-1]:
            raise TypeError(f"cond: the branches return {described[0]} and {described[-1]}")
        return optree.tree_unflatten(trees[0], _listed(out, trees[0].num_leaves))

    def while_loop(self, condition: Callable[[Any], Array], body: Callable[[Any], Any], init: Any, /) -> Any:
        leaves, tree = _carry_leaves(init)
        if tf.executing_eagerly():
            state = optree.tree_unflatten(tree, leaves)
            while bool(condition(state)):
                state = body(state)
                _leaves("while_loop", tree, state)
            return state

        def go_on(*leaves: Array) -> Array:
            lift_captures()
            return tf.identity(condition(optree.tree_unflatten(tree, leaves)))

        def step(*leaves: Array) -> list[Array]:
            lift_captures()
            new_leaves = _leaves("while_loop", tree, body(optree.tree_unflatten(tree, leaves)))
            return _like_before("while_loop", leaves, new_leaves)

        out = tf.while_loop(go_on, step, leaves, parallel_iterations=1)
        return optree.tree_unflatten(tree, _listed(out, len(leaves)))

    def scan(
        self, body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, /, length: int, reverse: bool = False
    ) -> tuple[Any, Any]:
        leaves, tree = _carry_leaves(init)
        x_leaves, x_tree = optree.tree_flatten(xs)
        if not length:  # the structure of the results is that of a step that is not taken
            first = [tf.zeros(shape_of(x)[1:], x.dtype) for x in x_leaves]
            _, y = body(optree.tree_unflatten(tree, leaves), optree.tree_unflatten(x_tree, first))
            return init, optree.tree_map(lambda y: tf.zeros((0, *shape_of(y)), y.dtype), y)
        order = range(length - 1, -1, -1) if reverse else range(length)
        if tf.executing_eagerly():
            return _scan_eagerly(body, optree.tree_unflatten(tree, leaves), x_leaves, x_tree, order)
        sources = [
            tf.TensorArray(x.dtype, length, element_shape=shape_of(x)[1:], clear_after_read=False).unstack(x)
            for x in x_leaves
        ]
        y_tree: Any = None
        shapes: list[Any] = []

        def run_step(carry: list[Array], at: Array) -> tuple[list[Array], list[Array]]:
            nonlocal y_tree
            rows = [source.read(at) for source in sources]
            new_carry, y = body(optree.tree_unflatten(tree, carry), optree.tree_unflatten(x_tree, rows))
            y_leaves, y_tree = optree.tree_flatten(y)
            y_leaves = [tf.convert_to_tensor(y) for y in y_leaves]
            shapes[:] = [(y.dtype, shape_of(y)) for y in y_leaves]
            return _like_before("scan", carry, _leaves("scan", tree, new_carry)), y_leaves

        # the first step outside of the loop says what the loop will stack
        made_first, y_first = run_step(leaves, tf.constant(order[0]))
        stacks = [
            tf.TensorArray(dtype, length, element_shape=shape).write(order[0], y)
            for (dtype, shape), y in zip(list(shapes), y_first, strict=True)
        ]

        def step(k: Array, carry: list[Array], stacks: list[Any]) -> tuple[Array, list[Array], list[Any]]:
            lift_captures()
            at = (length - 1) - k if reverse else k
            new_carry, ys = run_step(list(carry), at)
            return k + 1, new_carry, [s.write(at, y) for s, y in zip(stacks, ys, strict=True)]

        _, carry, stacks = tf.while_loop(
            lambda k, *_: k < length,
            step,
            (tf.constant(1), made_first, stacks),
            parallel_iterations=1,
            maximum_iterations=length - 1,
        )
        ys = []
        for stack, (_, shape) in zip(stacks, shapes, strict=True):
            y = stack.stack()
            y.set_shape((length, *shape))
            ys.append(y)
        return optree.tree_unflatten(tree, list(carry)), optree.tree_unflatten(y_tree, ys)

    def host_call(
        self, fn: Callable[..., Sequence[np.ndarray]], operands: Sequence[Array], results: Sequence[Any], /
    ) -> list[Array]:
        if tf.executing_eagerly():
            return Backend.host_call(self, fn, operands, results)  # type: ignore[arg-type]
        outputs = tf.numpy_function(lambda *values: list(fn(*values)), list(operands), [TF[r.dtype] for r in results])
        if not results:  # an operation
            mark_effect()
            return []
        for x, r in zip(outputs, results, strict=True):
            x.set_shape(r.shape)
        return list(outputs)


def _scan_eagerly(body: Any, carry: Any, x_leaves: list[Array], x_tree: Any, order: range) -> tuple[Any, Any]:
    columns: dict[int, list[Array]] = {}
    y_tree: Any = None
    for i in order:
        carry, y = body(carry, optree.tree_unflatten(x_tree, [x[i] for x in x_leaves]))
        columns[i], y_tree = optree.tree_flatten(y)
    stacked = [tf.stack(ys) for ys in zip(*(columns[i] for i in sorted(columns)), strict=True)]
    return carry, optree.tree_unflatten(y_tree, stacked)


def _carry_leaves(init: Any) -> tuple[list[Array], Any]:
    """Return the leaves of a loop's initial values; Python scalars become tensors."""
    leaves, tree = optree.tree_flatten(init)
    leaves = [x if isinstance(x, tf.Tensor) else weak_input(x) for x in leaves]
    return [tf.identity(x) if is_weak(x) else x for x in leaves], tree


def _listed(out: Any, n: int) -> list[Array]:
    return list(out) if isinstance(out, list | tuple) else [out][:n]


def _leaves(name: str, tree: Any, carry: Any) -> list[Array]:
    leaves, new_tree = optree.tree_flatten(carry)
    if new_tree != tree:
        raise TypeError(f"{name}: the body returns the structure {new_tree}, but the loop started with {tree}")
    return leaves


def _like_before(name: str, before: Any, new_leaves: list[Any]) -> list[Array]:
    """Return the carry after a step, of the shapes and dtypes before it. Raises TypeError where they differ."""
    out = []
    for x, y in zip(before, new_leaves, strict=True):
        y = astype(y, dtype_of(x)) if is_weak(y) else y
        if not isinstance(y, tf.Tensor) or y.dtype != x.dtype or shape_of(y) != shape_of(x):
            raise TypeError(f"{name}: the body turns {dtype_of(x)}{list(shape_of(x))} into {y}")
        out.append(y)
    return out
