"""Statements that make arrays: from nothing, from other arrays, of another dtype; and what is asked of one."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fuzz.kinds.array_api.drawing import DTYPES, FLOATS, Drawing, result, statement


@statement(1.5)
def created(d: Drawing) -> str:
    dtype = d.rng.choice(DTYPES)
    shape = d.shape()
    n = d.one(0, 1, 3, 4)
    like = d.find()
    fill = d.number(np.dtype(dtype))
    choices = [
        d.new(),
        d.new(),
        f"xp.full({shape}, {fill}, dtype=xp.{dtype}, device=D)",
        f"xp.zeros({shape}, dtype=xp.{dtype}, device=D)",
        f"xp.ones({shape}, dtype=xp.{dtype}, device=D)",
        f"xp.eye({n}, {d.one(2, 3, 'None')}, k={d.one(-1, 0, 1, 2)}, dtype=xp.{dtype}, device=D)",
        f"xp.arange({d.one(0, -3, 2)}, {d.one(5, 7, 1)}, {d.one(1, 2, 3)}, device=D)",
        f"xp.arange({d.one(0.0, -1.5)}, {d.one(3.0, 4.5)}, {d.one(0.5, 1.0)}, dtype=xp.{d.rng.choice(FLOATS)}, device=D)",
        f"xp.linspace({d.one(0, -1)}, {d.one(2, 3.5)}, {d.one(1, 4, 5)}, dtype=xp.{d.rng.choice(FLOATS)}, device=D)",
        f"xp.asarray({d.one([1, 2], [[1.5, 2], [3, 4]], [True, False], 3.5, 7, [])}, device=D)",
    ]
    if like:
        choices += [f"xp.{d.one('zeros', 'ones')}_like({like})", f"xp.full_like({like}, 1)"]
    return result(d, d.rng.choice(choices))


@statement(2)
def joined(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    axis = d.rng.randrange(x.ndim) if x.ndim else None
    forms = [
        f"xp.concat([{n}, {beside(d, x, axis)}], axis={axis})",
        f"xp.stack([{n}, {d.new(d.same(x.dtype), x.shape)}, {n}], axis={d.rng.randint(-x.ndim - 1, x.ndim)})",
        f"xp.repeat({n}, {d.one(0, 1, 2, 3)}, axis={d.one(None, d.axis(x)) if x.ndim else None})",
        f"xp.tile({n}, {d.one((2,), (1, 2), (2, 1, 2), ())})",
        f"xp.roll({n}, {d.one(-2, 1, 3)}, axis={d.one(None, d.axis(x)) if x.ndim else None})",
    ]
    if x.ndim > 1:
        forms.append(f"xp.{d.one('triu', 'tril')}({n}, k={d.one(-1, 0, 1)})")
    if x.ndim == 1 and x.size < 6:
        other = d.array(where=lambda y: y.ndim == 1 and y.dtype == x.dtype and y.size < 6)
        forms.append(f'xp.meshgrid({n}, {other}, indexing="{d.one("xy", "ij")}")[{d.one(0, 1)}]')
    return result(d, d.rng.choice(forms))


def beside(d: Drawing, x: Any, axis: int | None) -> str:
    """An array that `x` is joined with along an axis."""

    def others(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(m for a, m in enumerate(shape) if a != axis)

    known = d.find(
        where=lambda y: (
            str(y.dtype) in d.dtypes_with(x.dtype) and y.ndim == x.ndim and others(y.shape) == others(x.shape)
        )
    )
    if known and d.maybe():
        return known
    return d.new(d.same(x.dtype), tuple(d.one(0, 1, 2) if a == axis else m for a, m in enumerate(x.shape)))


@statement(2)
def converted(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    forms = [
        *2 * [f"xp.astype({n}, xp.{d.rng.choice(DTYPES)})"],
        f"xp.asarray({n}, copy={d.one('True', 'None', 'False')})",
        f"{n}.to_device(D)",
        f"+{d.new(FLOATS)}",
    ]
    if x.dtype.kind != "b":
        forms.append(f"xp.broadcast_arrays({n}, {d.new(None, x.shape)})[0] + {d.number(x.dtype)}")
    return result(d, d.rng.choice(forms))


@statement(0.6)
def inspected(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    made = [
        f"{n}.shape",
        f"({n}.ndim, {n}.size)",
        f"str({n}.dtype)",
        f'xp.isdtype({n}.dtype, "{d.one("bool", "signed integer", "integral", "real floating", "numeric", "complex floating")}")',
        f"str(xp.result_type({n}, {d.partner(x)}))",
        f"str(xp.result_type({n}.dtype, xp.{d.rng.choice(d.dtypes_with(x.dtype))}))",
        f"xp.can_cast({n}.dtype, xp.{d.rng.choice(d.same(x.dtype))})",
    ]
    if x.dtype.kind in "fc":
        made.append(f"float(xp.finfo({n}.dtype).{d.one('eps', 'max', 'smallest_normal')})")
    if x.dtype.kind in "iu":
        made.append(f"int(xp.iinfo({n}.dtype).{d.one('min', 'max', 'bits')})")
    return f"s{d.next} = {d.rng.choice(made)}"


@statement(0.6, dynamic=True)
def asked(d: Drawing) -> str:
    n = d.array("fiub", lambda x: x.size == 1 or d.maybe(0.1))
    x = d.arrays[n]
    made = [f"{n}.tolist()", f"len({n})"]
    if x.ndim == 0:
        made += [f"bool({n})", f"float({n})", f"float({n})", f"({n}).item()"]
        if x.dtype.kind in "iub":
            made.append(f"int({n})")
    if x.ndim:
        made.append(f"{d.number(x.dtype)} in {n}")
    return f"s{d.next} = {d.rng.choice(made)}"
