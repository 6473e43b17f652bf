"""Loops and branches on values: Python's own where values are known, the backend's where a program is traced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from tensorgraft.frontends.array_api.core import tracing
from tensorgraft.frontends.array_api.core.array import Array, new_array
from tensorgraft.frontends.array_api.core.calls import SCALARS
from tensorgraft.frontends.array_api.core.checks import Repeated
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.frontends.array_api.standard import creation, manipulation
from tensorgraft.frontends.array_api.transforms.custom import _array, _capturing, _value
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend

_INT = np.dtype("int64")


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    leaves, tree = _arrays("while_loop", init)
    state = optree.tree_unflatten(tree, _writable_copies(leaves))
    while True:
        goes_on = _predicate("while_loop", condition(state))
        if isinstance(goes_on, Array):
            if _is_traced(goes_on):
                return _traced_while(condition, body, optree.tree_leaves(state), tree)
            goes_on = bool(goes_on)
        if not goes_on:
            return state
        state = optree.tree_unflatten(tree, _check_state("while_loop", leaves, tree, body(state)))


def _traced_while(condition: Any, body: Any, leaves: list[Array], tree: Any) -> Any:
    xp, n, checks = _level(leaves), len(leaves), Repeated()

    def test(values: list[Any]) -> Any:
        with _capturing(xp) as capture:
            state = optree.tree_unflatten(tree, _to_inner_level(values[:n], leaves, capture))
            goes_on = _predicate("while_loop", condition(state))
            if capture.checks:
                raise ValueError(
                    "error_if cannot be used in the condition of a while_loop that is being traced: move it into the"
                    " body"
                )
            return _value(goes_on if isinstance(goes_on, Array) else creation.asarray(goes_on))

    def step(values: list[Any]) -> list[Any]:
        with _capturing(xp) as capture:
            inner_state = _to_inner_level(values[:n], leaves, capture)
            new_state = _check_state("while_loop", leaves, tree, body(optree.tree_unflatten(tree, inner_state)))
            return _results("while_loop", new_state, capture) + checks.along(xp, capture.checks, values[n:])

    with xp.scope():
        values = [_value(x) for x in leaves]
        out = xp.while_loop(test, step, values)
        if checks.numbers:
            *out, code = xp.while_loop(test, step, [*values, checks.begin(xp)])
            checks.verify(xp, code)
        return optree.tree_unflatten(tree, _to_arrays(out, xp, [x.device for x in leaves]))


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, length: int | None, reverse: bool
) -> tuple[Any, Any]:
    leaves, tree = _arrays("scan", init)
    columns, x_tree = _arrays("scan", xs)
    lengths = {x.shape[0] if x.ndim else None for x in columns} | ({length} if length is not None else set())
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(x.shape) for x in columns)
        raise ValueError(
            "scan: expected arrays in xs that have a first axis of the same length"
            f" ({length=}), got shapes {shapes or 'none'}"
        )
    n = lengths.pop()
    assert n is not None
    if not n:  # the structure of the results is that of a step that is not taken
        step = [creation.zeros(x.shape[1:], dtype=x.dtype, device=x.device) for x in columns]
        _, y = _pair(body(optree.tree_unflatten(tree, _writable_copies(leaves)), optree.tree_unflatten(x_tree, step)))
        empty = optree.tree_map(lambda v: creation.zeros((0, *v.shape), dtype=v.dtype, device=v.device), y)
        return optree.tree_unflatten(tree, _writable_copies(leaves)), empty
    if any(map(_is_traced, (*leaves, *columns))):
        return _traced_scan(body, leaves, tree, columns, x_tree, n, reverse)
    carry = optree.tree_unflatten(tree, _writable_copies(leaves))
    rows: list[Any] = [None] * n
    for i in reversed(range(n)) if reverse else range(n):
        new_carry, rows[i] = _pair(body(carry, optree.tree_unflatten(x_tree, [x[i, ...] for x in columns])))
        carry = optree.tree_unflatten(tree, _check_state("scan", leaves, tree, new_carry))
    return carry, optree.tree_map(lambda *ys: manipulation.stack(ys), *rows)


def _traced_scan(
    body: Any, leaves: list[Array], tree: Any, columns: list[Array], x_tree: Any, n: int, reverse: bool
) -> tuple[Any, Any]:
    xp, checks = _level([*leaves, *columns]), Repeated()
    y_trees: list[Any] = []
    y_devices: list[Device] = []

    def step(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        with _capturing(xp) as capture:
            before = optree.tree_unflatten(tree, _to_inner_level(carry[: len(leaves)], leaves, capture))
            x_rows = optree.tree_unflatten(x_tree, _to_inner_level(x, columns, capture))
            new_carry, y = _pair(body(before, x_rows))
            y_leaves, y_tree = optree.tree_flatten(y)
            y_trees.append(y_tree)
            y_devices[:] = [y.device for y in y_leaves]
            out = _results("scan", [*_check_state("scan", leaves, tree, new_carry), *y_leaves], capture)
            code = checks.along(xp, capture.checks, carry[len(leaves) :])
            return [*out[: len(leaves)], *code], out[len(leaves) :]

    with xp.scope():
        init, rows = [_value(x) for x in leaves], [_value(x) for x in columns]
        carry, ys = xp.scan(step, init, rows, length=n, reverse=reverse)
        if checks.numbers:
            (*carry, code), ys = xp.scan(step, [*init, checks.begin(xp)], rows, length=n, reverse=reverse)
            checks.verify(xp, code)
        final_carry = optree.tree_unflatten(tree, _to_arrays(carry, xp, [x.device for x in leaves]))
        return final_carry, optree.tree_unflatten(y_trees[0], _to_arrays(ys, xp, y_devices))


def cond(predicate: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any) -> Any:
    predicate = _predicate("cond", predicate)
    if not isinstance(predicate, Array) or not _is_traced(predicate):
        return (true_fn if predicate else false_fn)(*operands)
    operands_: Any = operands
    leaves: list[Any]
    leaves, tree = optree.tree_flatten(operands_)
    arrays = [x for x in leaves if isinstance(x, Array)]
    xp, checks = _level([predicate, *arrays]), Repeated()
    trees: list[Any] = []
    devices: list[list[Device]] = []

    def branch(fn: Callable[..., Any]) -> Callable[..., list[Any]]:
        def run(*values: Any) -> list[Any]:
            with _capturing(xp) as capture:
                rest = iter(_to_inner_level(values[: len(arrays)], arrays, capture))
                traced_leaves = [next(rest) if isinstance(x, Array) else x for x in leaves]
                results, structure = _arrays("cond", fn(*optree.tree_unflatten(tree, traced_leaves)), predicate)
                trees.append(structure)
                devices.append([x.device for x in results])
                code = checks.along(xp, capture.checks, values[len(arrays) :])
                return _results("cond", results, capture) + code

        return run

    with xp.scope():
        values, holds = [_value(x) for x in arrays], _value(predicate)
        out = xp.cond(holds, branch(true_fn), branch(false_fn), *values)
        if checks.numbers and trees[0] == trees[-1]:
            *out, code = xp.cond(holds, branch(true_fn), branch(false_fn), *values, checks.begin(xp))
            checks.verify(xp, code)
        if trees[0] != trees[-1]:
            raise TypeError(f"cond: the branches return different structures: {trees[0]} and {trees[-1]}")
        if devices[0] != devices[-1]:
            raise TypeError(f"cond: the branches return arrays on different devices: {devices[0]} and {devices[-1]}")
        return optree.tree_unflatten(trees[0], _to_arrays(out, xp, devices[0]))


def fori_loop(start: Any, stop: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    if isinstance(start, int) and isinstance(stop, int):
        n = max(stop - start, 0)
        leaves, tree = _arrays("fori_loop", init)
        where = leaves[0].device if leaves else None
        if not any(map(_is_traced, leaves)):
            state = init
            for i in range(start, start + n):
                state = body(creation.asarray(i, dtype=_INT, device=where), state)
            return state

        def counted(pair: tuple[Array, Any], _: Any) -> tuple[Any, Any]:
            following = pair[0] + 1  # the body may write its counter
            return (following, optree.tree_unflatten(tree, _check_state("fori_loop", leaves, tree, body(*pair)))), ()

        # carried, because XLA would read the elements of an `arange` from memory
        first = creation.asarray(start, dtype=_INT, device=where)
        return scan(counted, (first, init), (), n, False)[0][1]

    def step(pair: tuple[Array, Any]) -> tuple[Array, Any]:
        return pair[0] + 1, body(*pair)

    for bound in (start, stop):
        integer = isinstance(bound, Array) and bound.ndim == 0 and dtypes.is_integer(bound.dtype)
        if not integer and not isinstance(bound, int):
            description = f"{bound.dtype}{list(bound.shape)}" if isinstance(bound, Array) else repr(bound)
            raise TypeError(f"fori_loop: bounds must be ints or 0-dimensional integer arrays, got {description}")
    if not isinstance(stop, Array):
        stop = creation.asarray(stop, dtype=start.dtype, device=start.device)
    first = start if isinstance(start, Array) else creation.asarray(start, dtype=stop.dtype, device=stop.device)
    return while_loop(lambda pair: pair[0] < stop, step, (first, init))[1]


# ---- states ----------------------------------------------------------------------------------------------------------


def _arrays(name: str, state: Any, like: Array | None = None) -> tuple[list[Array], Any]:
    """Return the leaves of a pytree, numbers as arrays."""
    leaves: list[Any]
    leaves, tree = optree.tree_flatten(state)
    first = next((x for x in leaves if isinstance(x, Array)), like)
    device = None if first is None else first.device
    for x in leaves:
        if not isinstance(x, (Array, *SCALARS)):
            raise TypeError(f"{name}: expected arrays and numbers, got a {type(x).__module__}.{type(x).__qualname__}")
    return [x if isinstance(x, Array) else creation.asarray(x, device=device) for x in leaves], tree


def _writable_copies(leaves: Sequence[Array]) -> list[Array]:
    """Return the arrays a loop begins with, which its body may write."""
    owned = []
    for x in leaves:
        xp = x._cell.backend
        with xp.scope():
            owned.append(new_array(xp.copy(x._value()) if xp.mutable else x._value(), xp))
    return owned


def _check_state(name: str, before: Sequence[Array], tree: Any, new_state: Any) -> list[Array]:
    leaves, structure = _arrays(name, new_state, before[0] if before else None)
    on_several = len({x.device for x in (*before, *leaves)}) > 1
    described = [
        ", ".join(f"{x.dtype}{list(x.shape)}{f' on {x.device}' if on_several else ''}" for x in xs)
        for xs in (before, leaves)
    ]
    if structure != tree or described[0] != described[1]:
        raise TypeError(
            f"{name}: a step must return the structure, shapes and dtypes of its state, {tree} of {described[0]}, got"
            f" {structure} of {described[1]}"
        )
    return leaves


def _pair(result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"scan: a step must return a pair (carry, y), got a {type(result).__qualname__}")
    return result


def _predicate(name: str, value: Any) -> Array | bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if not isinstance(value, Array) or value.shape or value.dtype != np.dtype(bool):
        description = f"{value.dtype}{list(value.shape)}" if isinstance(value, Array) else type(value).__qualname__
        raise TypeError(f"{name}: a condition must be a 0-dimensional bool array, got {description}")
    return value


def _is_traced(x: Array) -> bool:
    if tracing.now.capture is not None and tracing.now.capture.is_input(x._cell):
        return True  # an argument of a program that is being traced, though it has not been used yet
    xp = x._cell.backend
    with xp.scope():
        return xp.is_traced(x._value())


def _level(arrays: Sequence[Array]) -> Backend:
    """Return the backend of the transform that is going on, to which the arrays are brought."""
    capture = tracing.now.capture
    if capture is None:
        return arrays[0]._cell.backend
    for x in arrays:
        if x._cell.backend is not capture.inner:
            capture.take(x._cell)
    return capture.inner


def _to_inner_level(values: Sequence[Any], like: Sequence[Array], capture: tracing.ArrayCapture) -> list[Array]:
    """Return arrays of the level of a step or a branch, on the devices of those outside."""
    return [_array(v, capture.on(x.device), capture) for v, x in zip(values, like, strict=True)]


def _to_arrays(values: Sequence[Any], xp: Backend, devices: Sequence[Device]) -> list[Array]:
    """Return arrays of the level that is going on, on their devices."""
    capture = tracing.now.capture
    return [
        new_array(v, xp if capture is None else capture.on(device)) for v, device in zip(values, devices, strict=True)
    ]


def _results(name: str, arrays: Sequence[Any], capture: tracing.ArrayCapture) -> list[Any]:
    values = [_value(x) for x in arrays]
    if capture.written():
        raise ValueError(
            f"{name}: a step or a branch writes an array from outside while a program is being traced: carry the"
            " array and return it"
        )
    return values
