"""Python numbers among themselves: of ints the functions of the standard make ints, of floats floats, of truths truths.

The standard says nothing of calls without an array. A program that computes a shape with the functions that it uses for
arrays (`xp.minimum(k, n)`) so gets what a shape is made of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tensorgraft.frontends.array_api.core.traced_numbers import plain_number

Function = Callable[..., Any]


def _greater_of(a: Any, b: Any) -> Any:
    """NaN wins, as it does in arrays."""
    return a if a != a or a >= b else b


def _less_of(a: Any, b: Any) -> Any:
    return a if a != a or a <= b else b


def _sign(a: Any) -> Any:
    return a if a != a else type(a)((a > 0) - (a < 0))


def _to_whole(rule: Callable[[float], Any]) -> Function:
    return lambda a: a if isinstance(a, int) else float(rule(a))


def clip(x: Any, low: Any, high: Any) -> Any:
    if low is not None:
        x = _greater_of(x, low)
    return x if high is None else _less_of(x, high)


_NUMBERS: dict[str, Function] = {
    "abs": operator.abs,
    "negative": operator.neg,
    "positive": operator.pos,
    "sign": _sign,
    "square": lambda a: a * a,
    "ceil": _to_whole(np.ceil),
    "floor": _to_whole(np.floor),
    "round": _to_whole(np.round),  # halves to even
    "trunc": _to_whole(np.trunc),
    "isnan": lambda a: a != a,
    "isinf": lambda a: a in (math.inf, -math.inf),
    "isfinite": lambda a: a - a == 0,
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "maximum": _greater_of,
    "minimum": _less_of,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "clip": clip,
}
_INTS: dict[str, Function] = {
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "bitwise_invert": operator.invert,
    "bitwise_left_shift": operator.lshift,
    "bitwise_right_shift": operator.rshift,
}
_TRUTHS: dict[str, Function] = {
    "logical_and": operator.and_,
    "logical_or": operator.or_,
    "logical_xor": operator.xor,
    "logical_not": operator.not_,
}


def function(name: str, *operands: Any) -> Function | None:
    """Return the function of Python's ints, floats or truths of this name; None where operands are others, or it has
    none."""
    scalars = [x for x in operands if x is not None]
    if all(isinstance(x, bool) for x in scalars):
        fn = _TRUTHS.get(name)
    elif any(isinstance(x, bool) or not isinstance(x, int | float) for x in scalars):
        return None
    else:
        fn = _NUMBERS.get(name)
        if fn is None and all(isinstance(x, int) for x in scalars):
            fn = _INTS.get(name)
    return fn and (lambda *values: fn(*map(plain_number, values)))
