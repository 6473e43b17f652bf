"""Loops and branches that depend on values of arrays, with pytrees of arrays as state; they give the same inside and
outside of compiled functions.

Where the values are known, a loop is a Python loop and a branch a Python `if`, whose operations have their usual
derivatives and batching. In a function that is traced (by `tg.jit`, or a transform of JAX or `torch.vmap`) they become
the backend's loop and branch. A step or branch of these must not write an array from outside (ValueError).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """Run `state = body(state)`, starting with `init`, while `condition(state)`, a 0-dimensional bool array, holds.

    Compiled, it has no reverse derivative, its length being unknown: see `scan`, `custom_vjp`.

    Raises TypeError for another condition, and where a step changes the structure, shapes or dtypes of the state.
    """
    from tensorgraft.frontends.array_api.transforms import control_flow

    return control_flow.while_loop(condition, body, init)


def fori_loop(start: Any, stop: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """Run `state = body(i, state)` for i from `start` to `stop` - 1.

    The bounds are ints or 0-dimensional integer arrays. `i` is a 0-dimensional array: int64 if both are ints, otherwise
    of the dtype of `start`, or of `stop` if `start` is an int. With two ints the loop has reverse derivatives, compiled
    too.

    Raises TypeError for other bounds, and where a step changes the structure, shapes or dtypes of the state (with two
    ints, only in a traced function).
    """
    from tensorgraft.frontends.array_api.transforms import control_flow

    return control_flow.fori_loop(start, stop, body, init)


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, length: int | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Run `carry, y = body(carry, x)` along the first axis of the arrays in `xs`; return (carry, the ys stacked).

    Arguments:
        xs: a pytree of arrays.
        length: of that axis; needed where `xs` has no array.
        reverse: from the last to the first.

    Raises ValueError where the axes have different lengths, TypeError where a step changes the structure, shapes or
    dtypes of the carry.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> total, sums = tg.scan(lambda c, x: (c + x, c + x), xp.asarray(0, device="numpy"), xp.arange(4, device="numpy"))
    >>> int(total), sums.tolist()
    (6, [0, 1, 3, 6])
    """
    from tensorgraft.frontends.array_api.transforms import control_flow

    return control_flow.scan(body, init, xs, length, reverse)


def cond(predicate: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any) -> Any:
    """Call `true_fn(*operands)` if the 0-dimensional bool array holds, else `false_fn(*operands)`.

    Raises TypeError for a predicate that is no bool and no such array, and, in a function that is traced, where the
    results have different structures, shapes or dtypes.
    """
    from tensorgraft.frontends.array_api.transforms import control_flow

    return control_flow.cond(predicate, true_fn, false_fn, *operands)
