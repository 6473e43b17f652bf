"""Statements of one element each: functions, operators, choices."""

from __future__ import annotations

from tests.fuzz.kinds.array_api.drawing import FLOATS, Drawing, broadcasts, result, statement

UNARY = {
    "fciu": ["abs", "negative", "positive", "square"],
    "fiub": ["isfinite", "isinf", "isnan", "logical_not"],
    "f": [
        "floor",
        "ceil",
        "trunc",
        "sign",
        "sqrt",
        "exp",
        "expm1",
        "sin",
        "cos",
        "tan",
        "tanh",
        "sinh",
        "cosh",
        "asinh",
        "atan",
        "log1p",
        "log",
        "log2",
        "log10",
        "signbit",
        "reciprocal",
        "round",
        "acosh",
        "asin",
        "acos",
        "atanh",
    ],
    "iu": ["bitwise_invert", "sign", "floor", "round"],
    "c": ["conj", "real", "imag", "exp", "sin", "cos", "sqrt", "log", "sign", "tanh"],
}


@statement(4)
def elementwise(d: Drawing) -> str:
    n = d.array()
    kind = d.arrays[n].dtype.kind
    names = [name for kinds, some in UNARY.items() if kind in kinds for name in some]
    if not names:
        return result(d, f"~{n}")
    return result(d, f"xp.{d.rng.choice(names)}({n})")


BINARY = {
    "f": "add subtract multiply divide maximum minimum atan2 hypot logaddexp copysign pow less less_equal greater equal not_equal floor_divide remainder nextafter",
    "iu": "add subtract multiply maximum minimum less greater_equal equal bitwise_and bitwise_or bitwise_xor floor_divide remainder",
    "b": "logical_and logical_or logical_xor equal not_equal bitwise_and bitwise_xor",
    "c": "add subtract multiply divide equal not_equal",
}


SIGNS = {
    "f": "+ - * / // % < <= > >= == != **",
    "iu": "+ - * // % < <= > >= == != & | ^ << >>",
    "b": "& | ^ == !=",
    "c": "+ - * / == !=",
}


@statement(6)
def combined(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    kind = next(k for k in BINARY if x.dtype.kind in k)
    if d.maybe():
        name = d.rng.choice(BINARY[kind].split())
        dtypes = d.same(x.dtype)
        if x.dtype.kind == "f" and name not in ("add", "subtract", "multiply", "divide", "equal", "not_equal", "pow"):
            dtypes = [*FLOATS, str(x.dtype)]
        other = d.partner(x, dtypes=dtypes)
        first, second = (n, other) if d.maybe(0.7) else (other, n)
        return result(d, f"xp.{name}({first}, {second})")
    sign = d.rng.choice(SIGNS[kind].split())
    if sign in ("<<", ">>"):
        return result(d, f"{n} {sign} {d.one(0, 1, 3)}")
    dtypes = [*FLOATS, str(x.dtype)] if x.dtype.kind == "f" and sign not in "+-*/==!=" else d.same(x.dtype)
    other = d.partner(x, dtypes=dtypes)
    return result(d, f"{n} {sign} {other}" if d.maybe(0.7) else f"{other} {sign} {n}")


@statement(0.5)
def masked(d: Drawing) -> str:
    n = d.array("fciu")
    return result(d, f"{n} * {d.partner(d.arrays[n], dtypes=['bool'])}")


@statement(1.5)
def chosen(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    condition = d.find("b", lambda m: d.maybe(0.9) and broadcasts(m, x)) or d.new(["bool"], x.shape)
    return result(d, f"xp.where({condition}, {n}, {d.partner(x)})")


@statement(0.7)
def clipped(d: Drawing) -> str:
    n = d.array("fiu")
    low, high = ("0", "3") if d.arrays[n].dtype.kind == "u" else d.one(("-1", "2"), ("-2", "None"), ("None", "1"))
    return result(d, f"xp.clip({n}, {low}, {high})")
