"""Statements that write: into elements, into views, in place, in branches and loops."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.fuzz.kinds.array_api.drawing import COMPLEX, FLOATS, SIGNED, UNSIGNED, Drawing, statement


def writable(x: Any) -> bool:
    return bool(x.flags.writeable)


def overlaps(x: Any) -> bool:
    return x.size > 0 and any(s == 0 and n > 1 for s, n in zip(x.strides, x.shape, strict=True))


def to_write(d: Drawing) -> str:
    # what was broadcast is refused; a part of it, where nothing overlaps, is left open
    return d.array(where=lambda x: writable(x) or (overlaps(x) and d.maybe(0.02)))


def of_the_kind(x: Any) -> list[str]:
    """Dtypes whose values may be written into `x`."""
    own = [str(x.dtype)] * 4
    return (
        own
        + {
            "b": [],
            "u": [*UNSIGNED, "bool"],
            "i": [*SIGNED, "bool"],
            "f": [*FLOATS, "int32", "bool"],
            "c": [*COMPLEX, "float32", "int16"],
        }[x.dtype.kind]
    )


@statement(4)
def written(d: Drawing) -> str:
    n = to_write(d)
    x = d.arrays[n]
    if d.maybe(0.3):
        key = d.points(x, unique=True)
        if d.maybe(0.3) and "bool" not in key and x.ndim == 1:
            key = d.one(f"{n} != {n}", f"xp.isfinite({n})") if x.dtype.kind != "b" else n
        value: Any = d.number(x.dtype)
        if d.maybe(0.2) and x.dtype.kind in "iuf":
            return f"{n}[{key}] {d.one('+', '*', '-')}= {value}"
        return f"{n}[{key}] = {value}"
    key = d.key(x)
    try:
        target = eval(f"x[{key}]", {"x": x})
    except Exception:
        return f"{n}[{key}] = {d.number(x.dtype)}"
    if d.maybe(0.4) and x.dtype.kind != "b":
        return f"{n}[{key}] {operator(d, x)}= {d.partner(target, within=True, dtypes=into(d, x))}"
    return f"{n}[{key}] = {d.partner(target, within=True, dtypes=of_the_kind(x))}"


def operator(d: Drawing, x: Any) -> str:
    if x.dtype.kind == "b":
        return str(d.one("&", "|", "^"))
    if x.dtype.kind in "iu":
        return str(d.one("+", "-", "*", "&", "|", "^"))
    return str(d.one("+", "-", "*", "*", "/"))


def into(d: Drawing, x: Any) -> list[str]:
    """Dtypes that `x` keeps its own with."""
    return [t for t in d.dtypes_with(x.dtype) if np.result_type(np.dtype(t), x.dtype) == x.dtype] or [str(x.dtype)]


@statement(3)
def in_place(d: Drawing) -> str:
    n = to_write(d)
    x = d.arrays[n]
    return f"{n} {operator(d, x)}= {d.partner(x, within=True, dtypes=into(d, x))}"


@statement(0.7, dynamic=True)
def branched(d: Drawing) -> str:
    n = d.array("fiu", writable)
    return f"if bool(xp.{d.one('any', 'all')}({n} > {d.number(d.arrays[n].dtype)})): {in_place(d)}"


@statement(0.5)
def repeated(d: Drawing) -> str:
    n = d.array("fiu", lambda x: x.ndim > 0 and writable(x))
    x = d.arrays[n]
    return f"for row in xp.unstack({n}): row {d.one('+', '*')}= {d.number(x.dtype)}"
