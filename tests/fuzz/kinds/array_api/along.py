"""Statements along axes: reductions, sums so far, orders, searches, sets."""

from __future__ import annotations

from tests.fuzz.kinds.array_api.drawing import Drawing, result, statement


@statement(3)
def reduced(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    kind = x.dtype.kind
    names = ["any", "all", "count_nonzero"]
    if kind in "fciu":
        names += ["sum", "prod", "sum"]
    if kind in "fiu":
        names += ["max", "min", "mean", "std", "var", "max"]
    if kind == "b":
        names += ["sum", "max", "prod"]
    name = d.rng.choice(names)
    options = f"axis={d.axes(x)}"
    if d.maybe(0.3):
        options += ", keepdims=True"
    if name in ("sum", "prod") and d.maybe(0.3):
        to = {"f": "float64", "c": "complex128", "i": "int64", "u": "uint64", "b": "int32"}[kind]
        options += f", dtype=xp.{to}"
    if name in ("std", "var") and d.maybe(0.3):
        options += f", correction={d.one(0, 1, 0.5)}"
    return result(d, f"xp.{name}({n}, {options})")


@statement(1)
def cumulated(d: Drawing) -> str:
    n = d.array("fciu", lambda x: x.ndim > 0)
    x = d.arrays[n]
    kind = d.one("cumulative_sum", "cumulative_prod", "diff")
    axis = d.axis(x)
    if kind == "diff":
        return result(d, f"xp.diff({n}, axis={axis}, n={d.one(1, 1, 2)})")
    initial = ", include_initial=True" if d.maybe(0.3) else ""
    return result(d, f"xp.{kind}({n}, axis={axis}{initial})")


@statement(1.5)
def ordered(d: Drawing) -> str:
    n = d.array("fiub")
    x = d.arrays[n]
    axis = d.axis(x)
    name = d.one("sort", "argsort", "argmax", "argmin")
    if name in ("sort", "argsort"):
        down = ", descending=True" if d.maybe(0.3) else ""
        return result(d, f"xp.{name}({n}, axis={axis}{down})")
    keep = ", keepdims=True" if d.maybe(0.3) else ""
    return result(d, f"xp.{name}({n}, axis={d.one(axis, None)}{keep})")


@statement(0.5)
def searched(d: Drawing) -> str:
    n = d.array("fiu", lambda x: x.ndim == 1 and x.size > 0)
    x = d.arrays[n]
    if d.maybe(0.4):
        return result(d, f"xp.isin({n}, {d.new([str(x.dtype)], (3,))})")
    side = d.one("left", "right")
    return result(d, f'xp.searchsorted(xp.sort({n}), {d.new([str(x.dtype)])}, side="{side}")')


@statement(1, dynamic=True)
def set_of(d: Drawing) -> str:
    n = d.array("fiub", lambda x: x.ndim > 0)
    made = [
        f"xp.sort(xp.unique_values({n}))",
        f"xp.unique_counts({n}).counts",
        f"xp.unique_inverse({n}).inverse_indices",
        f"xp.unique_all({n}).indices",
        f"xp.nonzero({n})[{d.rng.randrange(d.arrays[n].ndim)}]",
    ]
    return result(d, d.rng.choice(made))
