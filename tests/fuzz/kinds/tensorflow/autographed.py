"""Functions with loops and branches of Python, which AutoGraph converts in a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def auto(f: Callable[..., Any]) -> Callable[..., Any]:
    """Converted by AutoGraph; eagerly it is Python."""
    graphed = tf.function(f)
    FUNCTIONS[f.__name__] = lambda *args: f(*args) if tf.executing_eagerly() else graphed(*args)
    return f


@auto
def shrunk(x: Any) -> Any:
    i = tf.constant(0)
    while tf.reduce_any(tf.abs(x) > 1):
        x = x - tf.sign(x)
        i += 1
        if i > 3:
            break
    return x, i


@auto
def positive(x: Any) -> Any:
    total = tf.zeros_like(x[0])
    for row in x:
        if tf.reduce_sum(row) < 0:
            continue
        total += row
    return total


@auto
def every_other(x: Any) -> Any:
    rows = tf.TensorArray(x.dtype, size=0, dynamic_size=True)
    for i in tf.range(tf.shape(x)[0]):
        if i % 2 == 0:
            rows = rows.write(rows.size(), x[i] * tf.cast(i, x.dtype))
    return rows.stack()


@auto
def grown(x: Any) -> Any:
    y = x[:1]
    for i in tf.range(3):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(y, tf.TensorShape([None, *x.shape[1:]]))])
        if i != 1:
            y = tf.concat([y, y[-1:] * 2], 0)
    return y


@auto
def chosen(x: Any) -> Any:
    if tf.reduce_max(x) > 2 and not tf.reduce_min(x) < -2:
        return x * 2
    if tf.size(x) > 3 or tf.reduce_sum(x) > 0:
        return x - 1
    return -x


@auto
def nested(x: Any) -> Any:
    best, count = x[0], 0
    for i in tf.range(tf.shape(x)[0]):
        for j in range(2):
            if tf.reduce_sum(x[i]) > tf.reduce_sum(best):
                best = x[i]
                count += j
        count += i
    return best, count


@auto
def fibonacci(x: Any) -> Any:
    a, b = tf.zeros_like(x), tf.ones_like(x)
    for _ in tf.range(4):
        a, b = b, a + b * x
    return {"a": a, "b": b}


@auto
def halved(s: Any, x: Any) -> Any:
    """With a variable that the loop writes."""
    steps = 0
    while steps < 3 and tf.reduce_max(s) < 9:
        s.assign_add(tf.ones_like(s))
        if tf.reduce_sum(x) > 0:
            s.assign(-s)
        else:
            s.assign_sub(x)
        steps += 1
    return s * 2, steps
