"""Loops and branches on values, of pytrees of arrays: the same in a compiled function as outside of it.

Where values are known they are Python's own, and derivatives and batches are those of what is computed. In a function
that is traced (`tg.jit`, and what JAX and `torch.vmap` transform) they are the backend's: there a step or branch writes
no array from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """Run `state = body(state)`, starting with `init`, while `condition(state)`, a 0-dimensional bool array, holds.

    Compiled, it has no reverse derivative, its length being unknown: see `scan`, `custom_vjp`.

    Raises TypeError for another condition, and where a step of a traced loop changes the structure, shapes or dtypes of
    the state.
    """
    from tensorgraft.frontends.array_api.transforms import control_flow

    return control_flow.while_loop(condition, body, init)


def fori_loop(start: Any, stop: Any, body: Callable[[Any, Any], Any], init: Any) -> Any:
    """Run `state = body(i, state)` for i from `start` to `stop` - 1, an int64 array (or of the dtype of `start`).

    With Python ints it has reverse derivatives, compiled too. Raises TypeError where a step of a traced loop changes
    the structure, shapes or dtypes of the state, and for bounds that have dimensions.
    """
    from tensorgraft.frontends.array_api.transforms import control_flow

    return control_flow.fori_loop(start, stop, body, init)


def scan(
    body: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, length: int | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Run `carry, y = body(carry, x)` along the first axis of the arrays in `xs`; return (carry, the ys stacked).

    Arguments:
        length: of that axis; needed where `xs` has no array.
        reverse: from the last to the first.

    Raises ValueError where the axes differ, TypeError where a step changes what the carry looks like.

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
