"""A statement of each sort."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fuzz.kinds.tensorflow.drawing import Drawing, fits
from tests.fuzz.kinds.tensorflow.forms import FORMS, LAYERS, OPTIMIZERS, WRITES

import tensorflow as tf


def drawn(d: Drawing) -> str:
    if len(d.arrays) < 2:
        return f"v{d.next} = {d.new()}"
    variables = {n: x for n, x in d.arrays.items() if n[0] == "s"}
    what = d.rng.choices(
        ["new", "variable", "write", "binary", "form", "index", "layer", "call", "optimizer", "train", "generator"],
        [2, 1.5, 3, 4, 20, 3, 0.8, 1.5, 0.6, 1.5, 0.7],
    )[0]
    if what == "new":
        return f"v{d.next} = {d.new()}"
    if what == "variable":
        return f"s{d.next} = tf.Variable({d.new(d.one('float32', 'float32', 'int32', 'float64'))})"
    if what == "write":
        d.some(variables)
        return write(d, variables)
    if what == "index":
        n = d.find()
        return f"v{d.next} = {n}[{d.index(d.arrays[n])}]"
    if what == "layer":
        n = d.find("f", where=lambda x: x.dtype == np.float32 and x.ndim in (2, 3) and x.size > 0)
        return f"s{d.next} = layer({d.some(LAYERS)!r}, {d.arrays[n].shape}, {d.rng.randrange(1000)})"
    if what in ("call", "train"):
        o = d.some(d.optimizers) if what == "train" else ""
        of = d.optimizers[o].of if o else []
        if o and isinstance(of[0], tf.Variable):
            s = next(n for n, x in d.names.items() if x is of[0])
            x = d.find("f", where=lambda y: y.dtype == variables[s].dtype and fits(y, variables[s]))
            return f"v{d.next} = trained({o}, lambda: {d.one(f'{s} * {x}', f'tf.sin({s}) - {x}', f'tf.gather({s}, [0, 0])')})"
        layers = {
            n: x for n, x in d.layers.items() if not o or (x.trainable_variables and x.trainable_variables[0] is of[0])
        }
        m = d.some(layers)
        x = d.find("f", where=lambda y: y.dtype == np.float32 and str(y.shape) == layers[m].fits)
        called = f"{m}({x}{d.one('', ', training=True', ', training=False') if 'Dropout' in type(layers[m]).__name__ or 'BatchNorm' in type(layers[m]).__name__ else ''})"
        if o:
            return f"v{d.next} = trained({o}, lambda: {called})"
        if layers[m].trainable_variables and d.maybe(0.3):
            return f"v{d.next} = gradients(lambda: {called}, {x}, *{m}.trainable_variables)[0]"
        return f"v{d.next} = {d.one(called, called, f'gradient({m}, {x})')}"
    if what == "optimizer":
        floats = [n for n, x in variables.items() if x.dtype.kind == "f" and x.size]
        return f"s{d.next} = optimizer({d.some(OPTIMIZERS)!r}, {d.some([*floats, *(n for n, x in d.layers.items() if x.trainable_variables)])})"
    if what == "generator":
        if d.maybe(0.3):
            return f"s{d.next} = tf.random.Generator.from_seed({d.rng.randrange(100)}, alg={d.one('philox', 'threefry', 'philox')!r})"
        form = d.one("normal([2])", "uniform([3])", "uniform([2], 0, 9, tf.int32)", "uniform_full_int([2])", "truncated_normal([2], dtype=tf.float64)", "binomial([2], 5.0, 0.5)", "make_seeds(2)", "split(2)[1].normal([2])", "skip(2)", "key")  # fmt: skip
        return f"v{d.next} = {d.some(d.generators)}.{form}"
    if what == "binary":
        n = d.find("fiuc")
        x = d.arrays[n]
        m = d.find(where=lambda y: y.dtype == x.dtype and fits(x, y)) if d.maybe(0.7) else "2"
        sign = d.one(
            *(["+", "-", "*", "=="] if x.dtype.kind == "c" else ["+", "-", "*", "/", "//", "%", "<", ">=", "!="])
        )
        return f"v{d.next} = {n} {sign} {m}"
    f = d.rng.choices([f for _, f in FORMS], [w for w, _ in FORMS])[0]
    return f"v{d.next} = {f(d)}"


def write(d: Drawing, variables: dict[str, Any]) -> str:
    if d.maybe(0.3):
        n = d.some(variables)
        at = f"{n}[{d.index(variables[n])}]"
        return (
            f"{at}.{d.one('assign', 'assign_add', 'assign_sub')}(tf.ones_like({at}) * {d.num(variables[n].dtype.kind)})"
        )
    written = d.arrays
    d.arrays = variables
    text = WRITES(d)
    d.arrays = written
    if d.maybe(0.3) and ".assign" in text and "tf." not in text:
        return f"v{d.next} = {text} + 0"
    return text
