"""Programs of the Array API standard, with views and writes through them, on every device; the reference is NumPy."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from tests.fuzz import numpy_reference as ref
from tests.fuzz.program import REFERENCE, Kind, Outcome, Program

import tensorgraft.array_api as xp

LARGEST = 300  # elements of what is computed with further
FLOATS, COMPLEX = ["float32", "float64"], ["complex64", "complex128"]
SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]
DTYPES = FLOATS * 4 + COMPLEX + SIGNED + ["int64", "int32"] + UNSIGNED + ["bool"] * 2


def data(namespace: Any, device: Any, dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    """Small numbers, few of them equal, and every seventh seed has floats that are infinite, NaN and -0.0."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        values = rng.integers(0, 2, shape).astype(bool)
    elif dtype.startswith("uint"):
        values = rng.integers(0, 12, shape)
    elif dtype.startswith("int"):
        values = rng.integers(-8, 9, shape)
    else:
        values = rng.integers(-24, 25, shape) / 8
        if dtype.startswith("complex"):
            values = values + 1j * rng.integers(-24, 25, shape) / 8
        elif seed % 7 == 0:
            special = rng.choice([np.nan, np.inf, -np.inf, -0.0], shape)
            values = np.where(rng.random(shape) < 0.2, special, values)
    return namespace.asarray(values.astype(dtype), device=device, copy=True)


@dataclass
class Seen:
    """An array at the end; of the reference `slack` says how far its values move when it rounds otherwise (None: it
    has another shape then)."""

    value: np.ndarray
    slack: np.ndarray | None


class Drawing:
    """The live arrays of a program, and choices among them."""

    def __init__(self, rng: random.Random, names: dict[str, Any]) -> None:
        self.rng = rng
        self.arrays = {n: x for n, x in names.items() if n[0] == "v" and n[1:].isdigit() and isinstance(x, np.ndarray)}
        taken = [int(n[1:]) for n in names if n[0] in "vs" and n[1:].isdigit()]
        self.next = max(taken, default=-1) + 1

    def one(self, *items: Any) -> Any:
        return self.rng.choice(items)

    def maybe(self, p: float = 0.5) -> bool:
        return self.rng.random() < p

    def shape(self, most: int = 3) -> tuple[int, ...]:
        sizes = [0, 1, 1, 2, 2, 3, 3, 4, 5] if self.maybe(0.15) else [1, 2, 2, 3, 3, 4, 5]
        return tuple(self.rng.choice(sizes) for _ in range(self.one(*[0, 1, 1, 2, 2, 2, 3][: most * 2 + 1])))

    def new(self, dtypes: Any = None, shape: tuple[int, ...] | None = None) -> str:
        dtype = self.rng.choice(dtypes or DTYPES)
        return f'data("{dtype}", {self.shape() if shape is None else shape}, {self.rng.randrange(10**6)})'

    def find(self, kinds: str = "fciub", where: Callable[[Any], bool] = lambda x: True) -> str | None:
        fitting = [
            n for n, x in self.arrays.items() if x.dtype.kind in kinds and x.size <= LARGEST and x.ndim < 6 and where(x)
        ]
        if not fitting:
            return None
        return fitting[-1] if self.maybe(0.3) else self.rng.choice(fitting)  # chains, of what came last

    def array(self, kinds: str = "fciub", where: Callable[[Any], bool] = lambda x: True) -> str:
        found = self.find(kinds, where)
        if found is None:
            raise Retry
        return found

    def dtypes_with(self, dtype: Any) -> list[str]:
        """Those that meet this one in an operation."""
        if dtype.kind in "fc":
            return FLOATS * 3 + COMPLEX if dtype.kind == "f" else COMPLEX + FLOATS
        if dtype.kind == "b":
            return ["bool"]
        if dtype == np.uint64:
            return UNSIGNED
        return SIGNED + UNSIGNED[:3] if dtype.kind == "i" else [*SIGNED, *UNSIGNED][:7]

    def same(self, dtype: Any) -> list[str]:
        return [str(dtype)] * 3 + self.dtypes_with(dtype)

    def partner(self, x: Any, within: bool = False, dtypes: list[str] | None = None) -> str:
        """An array or a number that meets `x` in an operation; `within` it, or of any shape that broadcasts."""
        dtypes = dtypes or self.same(x.dtype)
        if self.maybe(0.25) and (number := self.number(x.dtype)) is not None:
            return number

        def fits(y: Any) -> bool:
            if str(y.dtype) not in dtypes:
                return False
            try:
                shape = np.broadcast_shapes(x.shape, y.shape)
            except ValueError:
                return False
            return (shape == x.shape or not within) and int(np.prod(shape)) <= LARGEST

        found = self.find(where=fits)
        if found is not None and self.maybe(0.7):
            return found
        if self.maybe(0.03):
            return self.new(dtypes)  # of any shape: mostly refused
        shape = tuple(
            n if self.maybe(0.75) else 1 for n in x.shape[self.rng.randint(0, x.ndim) if self.maybe(0.3) else 0 :]
        )
        if not within and self.maybe(0.2):
            shape = tuple(self.one(1, 2, 3) if n == 1 and self.maybe() else n for n in shape)
            if len(shape) == x.ndim and self.maybe(0.3):
                shape = (2, *shape)
        return self.new(dtypes, shape)

    def number(self, dtype: Any) -> str | None:
        if dtype.kind == "b":
            return self.one("True", "False")
        if dtype.kind == "u":
            return str(self.one(1, 2, 3, 7))
        if dtype.kind == "i":
            return str(self.one(-3, -1, 1, 2, 3, 5))
        return (
            self.one("0.5", "-1.25", "2", "3", "-1", "1.5", "0.75")
            if dtype.kind == "f"
            else self.one("2", "0.5", "(1-0.5j)")
        )

    def axis(self, x: Any) -> int:
        if x.ndim == 0:
            raise Retry
        if self.maybe(0.02):
            return int(self.one(x.ndim, -x.ndim - 1))
        return self.rng.randrange(-x.ndim, x.ndim)

    def axes(self, x: Any) -> Any:
        if x.ndim == 0 or self.maybe(0.3):
            return None
        if self.maybe(0.7):
            return self.axis(x)
        chosen = tuple(self.rng.sample(range(x.ndim), self.rng.randint(0, x.ndim)))
        return tuple(a - x.ndim if self.maybe(0.3) else a for a in chosen)

    def slice(self, n: int) -> str:
        if self.maybe(0.2):
            return ":"
        a, b = self.rng.randint(-n - 1, n + 1), self.rng.randint(-n - 1, n + 1)
        step = self.one(1, 1, 1, 2, 3, -1, -1, -2)
        if self.maybe(0.6):
            a, b = sorted((a % (n + 1), b % (n + 1)), reverse=step < 0)
        parts = ["" if self.maybe(0.25) else str(a), "" if self.maybe(0.25) else str(b)]
        if step != 1 or self.maybe(0.1):
            parts.append(str(step))
        return ":".join(parts)

    def key(self, x: Any) -> str:
        """Integers, slices, None and ...; of fewer axes than there are with an ellipsis."""
        items = []
        for n in x.shape:
            if n and self.maybe(0.25):
                items.append(str(self.rng.randrange(-n, n) if not self.maybe(0.02) else n))
            else:
                items.append(self.slice(n))
        if self.maybe(0.4) or not items:
            start = self.rng.randint(0, len(items))
            items[start : self.rng.randint(start, len(items))] = ["..."]
        if self.maybe(0.15):
            items.insert(self.rng.randint(0, len(items)), "None")
        while len(items) > 1 and items[-1] == ":" and self.maybe():
            items.pop()
        return ", ".join(items) if len(items) > 1 or self.maybe(0.8) else f"{items[0]},"

    def points(self, x: Any, unique: bool = False) -> str:
        """A key with index arrays or a mask."""
        if not x.ndim:
            raise Retry
        if self.maybe(0.3):
            found = self.find("b", lambda m: m.ndim > 0 and m.shape == x.shape[: m.ndim])
            if found and self.maybe():
                return found
            return self.new(["bool"], x.shape[: self.rng.randint(1, x.ndim)])
        a = self.rng.randrange(x.ndim)
        n = x.shape[a]
        count = 1 if unique else self.rng.randint(1, min(2, x.ndim - a))
        shape = self.one((), (2,), (3,), (2, 2)) if not unique else (min(n, self.one(1, 2, 3)),)
        items = [":"] * a if self.maybe(0.7) or a == 0 else [self.key_item(m) for m in x.shape[:a]]
        for i in range(count):
            m = x.shape[a + i]
            if m == 0 and 0 not in shape:
                raise Retry
            if unique:
                rows: Any = self.rng.sample(range(m), shape[0])
                rows = [r - m if self.maybe(0.2) else r for r in rows]
            else:
                rows = np.array([self.rng.randrange(-m, m) for _ in range(int(np.prod(shape)))]).reshape(shape).tolist()
            items.append(f"xp.asarray({rows}, dtype=xp.int64, device=D)")
        if a + count < x.ndim and self.maybe(0.2):
            items.append(self.key_item(x.shape[a + count]))
        return ", ".join(items)

    def key_item(self, n: int) -> str:
        return str(self.rng.randrange(n)) if n and self.maybe(0.3) else self.slice(n)


class Retry(Exception):
    """Nothing live fits: another statement is drawn."""


Statement = Callable[[Drawing], str]
STATEMENTS: list[tuple[float, Statement]] = []
DYNAMIC: set[Statement] = set()  # a shape or Python needs the values: not for compiled programs


def statement(weight: float, dynamic: bool = False) -> Callable[[Statement], Statement]:
    def noted(f: Statement) -> Statement:
        STATEMENTS.append((weight, f))
        if dynamic:
            DYNAMIC.add(f)
        return f

    return noted


def result(d: Drawing, text: str) -> str:
    return f"v{d.next} = {text}"


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


@statement(4)
def indexed(d: Drawing) -> str:
    n = d.array()
    return result(d, f"{n}[{d.key(d.arrays[n])}]")


@statement(4)
def viewed(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    kinds = ["reshape", "flip", "expand_dims", "broadcast_to", "reshape"]
    if x.ndim:
        kinds += ["permute_dims", "unstack", "moveaxis", "permute_dims"]
    if x.ndim > 1:
        kinds += ["mT", "diagonal", "matrix_transpose"]
    if x.ndim == 2:
        kinds.append("T")
    if 1 in x.shape:
        kinds += ["squeeze", "squeeze"]
    kind = d.rng.choice(kinds)
    if kind == "reshape":
        return result(d, f"xp.reshape({n}, {reshaped(d, x)})")
    if kind == "flip":
        return result(d, f"xp.flip({n}, axis={d.axes(x)})")
    if kind == "expand_dims":
        return result(d, f"xp.expand_dims({n}, axis={d.rng.randint(-x.ndim - 1, x.ndim)})")
    if kind == "broadcast_to":
        to = tuple(d.one(1, 2, 3) if m == 1 else m for m in x.shape)
        return result(d, f"xp.broadcast_to({n}, {(d.one(1, 2), *to) if d.maybe() else to})")
    if kind == "permute_dims":
        return result(d, f"xp.permute_dims({n}, {tuple(d.rng.sample(range(x.ndim), x.ndim))})")
    if kind == "moveaxis":
        return result(d, f"xp.moveaxis({n}, {d.axis(x)}, {d.axis(x)})")
    if kind == "squeeze":
        return result(d, f"xp.squeeze({n}, axis={d.one(x.shape.index(1), x.shape.index(1) - x.ndim)})")
    if kind == "unstack":
        axis = d.axis(x)
        if not -x.ndim <= axis < x.ndim or not x.shape[axis]:
            raise Retry
        return result(d, f"xp.unstack({n}, axis={axis})[{d.rng.randrange(x.shape[axis])}]")
    if kind == "diagonal":
        return result(d, f"xp.linalg.diagonal({n}, offset={d.one(-1, 0, 0, 1)})")
    return result(d, f"xp.matrix_transpose({n})" if kind == "matrix_transpose" else f"{n}.{kind}")


def reshaped(d: Drawing, x: Any) -> tuple[int, ...]:
    if not x.size:
        return tuple(d.rng.sample(x.shape, x.ndim))
    left, shape = x.size, []
    while left > 1 and d.maybe(0.6):
        shape.append(d.rng.choice([k for k in range(1, left + 1) if left % k == 0]))
        left //= shape[-1]
    shape.append(left)
    if d.maybe(0.2):
        shape[d.rng.randrange(len(shape))] = -1
    if d.maybe(0.02):
        shape.append(2)
    return tuple(shape)


@statement(2)
def picked(d: Drawing) -> str:
    n = d.array()
    return result(d, f"{n}[{d.points(d.arrays[n])}]")


@statement(1)
def taken(d: Drawing) -> str:
    n = d.array(where=lambda x: x.ndim > 0 and x.size > 0)
    x = d.arrays[n]
    axis = d.rng.randrange(x.ndim)
    m = x.shape[axis]
    if d.maybe(0.3):
        shape = tuple(d.one(1, 2, 3) if a == axis else k for a, k in enumerate(x.shape))
        rows = np.random.default_rng(d.rng.randrange(99)).integers(0, m, shape).tolist()
        return result(d, f"xp.take_along_axis({n}, xp.asarray({rows}, dtype=xp.int64, device=D), axis={axis})")
    rows = [d.rng.randrange(m) for _ in range(d.rng.randint(0, 4))]
    return result(d, f"xp.take({n}, xp.asarray({rows}, dtype=xp.int64, device=D), axis={d.one(axis, axis - x.ndim)})")


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


def broadcasts(a: Any, b: Any) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a.shape, b.shape))) <= LARGEST
    except ValueError:
        return False


@statement(0.7)
def clipped(d: Drawing) -> str:
    n = d.array("fiu")
    low, high = ("0", "3") if d.arrays[n].dtype.kind == "u" else d.one(("-1", "2"), ("-2", "None"), ("None", "1"))
    return result(d, f"xp.clip({n}, {low}, {high})")


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


@statement(2)
def joined(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    kind = d.one("concat", "stack", "repeat", "tile", "roll", "triu", "tril", "meshgrid")
    if kind == "concat":
        axis = d.rng.randrange(x.ndim) if x.ndim else None
        shape = tuple(d.one(0, 1, 2) if a == axis else m for a, m in enumerate(x.shape))
        other = d.find(
            where=lambda y: (
                str(y.dtype) in d.dtypes_with(x.dtype)
                and y.ndim == x.ndim
                and y.shape[:axis] == x.shape[:axis]
                and y.shape[(axis or 0) + 1 :] == x.shape[(axis or 0) + 1 :]
            )
        )
        other = other if other and d.maybe() else d.new(d.same(x.dtype), shape)
        return result(d, f"xp.concat([{n}, {other}], axis={axis})")
    if kind == "stack":
        return result(
            d, f"xp.stack([{n}, {d.new(d.same(x.dtype), x.shape)}, {n}], axis={d.rng.randint(-x.ndim - 1, x.ndim)})"
        )
    if kind == "repeat":
        return result(d, f"xp.repeat({n}, {d.one(0, 1, 2, 3)}, axis={d.one(None, d.axis(x)) if x.ndim else None})")
    if kind == "tile":
        return result(d, f"xp.tile({n}, {d.one((2,), (1, 2), (2, 1, 2), ())})")
    if kind == "roll":
        return result(d, f"xp.roll({n}, {d.one(-2, 1, 3)}, axis={d.one(None, d.axis(x)) if x.ndim else None})")
    if kind == "meshgrid":
        one = d.array(where=lambda y: y.ndim == 1 and y.size < 6)
        other = d.array(where=lambda y: y.ndim == 1 and y.dtype == d.arrays[one].dtype and y.size < 6)
        return result(d, f'xp.meshgrid({one}, {other}, indexing="{d.one("xy", "ij")}")[{d.one(0, 1)}]')
    if x.ndim < 2:
        raise Retry
    return result(d, f"xp.{kind}({n}, k={d.one(-1, 0, 1)})")


@statement(1.5)
def multiplied(d: Drawing) -> str:
    n = d.array("fciu", lambda x: x.ndim > 0)
    x = d.arrays[n]
    last = x.shape[-1]
    kind = d.one("@", "matmul", "tensordot", "vecdot", "outer", "@")
    if kind == "outer":
        n = d.array("fciu", lambda y: y.ndim == 1 and y.size < 12)
        return result(d, f"xp.linalg.outer({n}, {d.new(d.same(d.arrays[n].dtype), (d.one(1, 2, 3),))})")
    if kind == "tensordot":
        return result(d, f"xp.tensordot({n}, {d.new(d.same(x.dtype), (last, d.one(1, 2)))}, axes=1)")
    if kind == "vecdot":
        return result(d, f"xp.vecdot({n}, {d.new(d.same(x.dtype), x.shape[d.rng.randint(0, x.ndim - 1) :])})")
    other = d.find(
        "fciu", lambda y: str(y.dtype) in d.dtypes_with(x.dtype) and 0 < y.ndim < 3 and y.shape[-2:][0] == last
    )
    other = other if other and d.maybe() else d.new(d.same(x.dtype), d.one((last,), (last, 2), (last, 3)))
    return result(d, f"{n} @ {other}" if kind == "@" else f"xp.matmul({n}, {other})")


SQUARE = [
    "det({n})", "inv({n})", "slogdet({n}).logabsdet", "matrix_power({n}, 2)", "trace({n}, offset={k})", "matrix_rank({n})",
    "cholesky(xp.matmul(xp.conj({n}).mT if False else {n}, {n}.mT) + 4 * xp.eye({size}, dtype={n}.dtype, device=D))",
    "eigvalsh({n} + {n}.mT)", "solve({n} + 9 * xp.eye({size}, dtype={n}.dtype, device=D), {n})",
]  # fmt: skip
ANY = ["matrix_norm({n})", "svdvals({n})", "pinv({n})", "vector_norm({n}, axis={axis}, ord={ord})", "matrix_norm({n}, ord=1)", "qr({n}).Q @ xp.linalg.qr({n}).R"]  # fmt: skip


@statement(0.8)
def factored(d: Drawing) -> str:
    n = d.array("f", lambda x: x.ndim > 1 and x.size < 50 and bool(np.isfinite(x).all()))
    x = d.arrays[n]
    form = d.rng.choice(SQUARE if x.shape[-1] == x.shape[-2] else ANY)
    said = form.format(n=n, k=d.one(-1, 0, 1), size=x.shape[-1], axis=d.axes(x), ord=d.one("1", "2", "xp.inf", "0"))
    return result(d, f"xp.linalg.{said}")


@statement(0.4)
def transformed(d: Drawing) -> str:
    n = d.array("fc", lambda x: x.ndim > 0 and x.size > 0)
    x = d.arrays[n]
    axis = d.rng.randrange(x.ndim)
    names = ["fftshift", "fft", "ifft"] + (["rfft", "ihfft"] if x.dtype.kind == "f" else ["irfft", "hfft"])
    name = d.rng.choice(names)
    if name == "fftshift":
        return result(d, f"xp.fft.fftshift({n}, axes={d.one(axis, None)})")
    size = f", n={d.one(2, 4)}" if d.maybe(0.3) else ""
    return result(d, f'xp.fft.{name}({n}, axis={axis}, norm="{d.one("backward", "ortho", "forward")}"{size})')


@statement(2)
def converted(d: Drawing) -> str:
    n = d.array()
    x = d.arrays[n]
    kind = d.one("astype", "astype", "asarray", "to_device", "broadcast_arrays")
    if kind == "astype":
        return result(d, f"xp.astype({n}, xp.{d.rng.choice(DTYPES)})")
    if kind == "asarray":
        return result(d, f"xp.asarray({n}, copy={d.one('True', 'None', 'False')})")
    if kind == "to_device":
        return result(d, f"{n}.to_device(D)")
    return result(
        d,
        f"xp.broadcast_arrays({n}, {d.new(None, x.shape)})[0] + {d.number(x.dtype)}"
        if x.dtype.kind != "b"
        else f"+{d.new(FLOATS)}",
    )


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


@statement(0.7, dynamic=True)
def branched(d: Drawing) -> str:
    n = d.array("fiu", writable)
    return f"if bool(xp.{d.one('any', 'all')}({n} > {d.number(d.arrays[n].dtype)})): {in_place(d)}"


@statement(0.5)
def repeated(d: Drawing) -> str:
    n = d.array("fiu", lambda x: x.ndim > 0 and writable(x))
    x = d.arrays[n]
    return f"for row in xp.unstack({n}): row {d.one('+', '*')}= {d.number(x.dtype)}"


class ArrayAPI(Kind):
    name = "array_api"
    shares: ClassVar[dict[str, int]] = {"numpy": 1, "jax": 1, "torch": 1, "tensorflow": 1}
    raising = 0.3
    length = (4, 16)
    everywhere = False  # whether all of the subjects' arithmetic may round otherwise
    dynamic = True

    def names(self, subject: str) -> dict[str, Any]:
        if subject == REFERENCE:
            space, device = ref.Namespace(), None
        else:
            space, device = xp, subject
        return {"xp": space, "D": device, "data": lambda *args: data(space, device, *args)}

    def statement(self, rng: random.Random, names: dict[str, Any]) -> str:
        d = Drawing(rng, names)
        if len(d.arrays) < 2:
            return result(d, d.new())
        choices = [(w, f) for w, f in STATEMENTS if self.dynamic or f not in DYNAMIC]
        while True:
            f = rng.choices([f for _, f in choices], [w for w, _ in choices])[0]
            try:
                return f(d)
            except Retry:
                continue

    def observe(self, names: dict[str, Any]) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for n, x in names.items():
            if n[0] == "v" and n[1:].isdigit():
                seen[n] = np.asarray(x) if hasattr(x, "dtype") else x
            elif n[0] == "s" and n[1:].isdigit():
                seen[n] = x
        return seen

    def play(self, program: Program, subject: str) -> Outcome:
        return self.judged(program, 3) if subject == REFERENCE else self.on(program, subject)

    def excuse(self, program: Program, subject: str, expected: Outcome, found: Outcome) -> str | None:
        return None if self.differences(self.judged(program, 40), found, program) else "rounding decides"

    def judged(self, program: Program, shakes: int) -> Outcome:
        """On the reference, and so many times with other roundings."""
        ref.Reference.everywhere = self.everywhere
        found = super().play(program, REFERENCE)
        others = []
        for seed in range(shakes):
            ref.Reference.rng = np.random.default_rng(seed)
            try:
                others.append(super().play(program, REFERENCE))
            finally:
                ref.Reference.rng = None
        unstable = any(o.raised != found.raised for o in others)
        for n, x in found.observed.items():
            moved = [o.observed.get(n) for o in others]
            if isinstance(x, np.ndarray):
                found.observed[n] = Seen(np.array(x), None if unstable else slack(x, moved))
            elif any(not same_scalar(x, m) for m in moved):
                found.observed[n] = Seen(np.zeros(()), None)
        return found

    def on(self, program: Program, subject: str) -> Outcome:
        return super().play(program, subject)

    def differences(self, expected: Outcome, found: Outcome, program: Program) -> list[str]:
        lines = []
        for i in sorted(expected.raised | found.raised):
            a, b = expected.raised.get(i), found.raised.get(i)
            if a is None or b is None or family(a) != family(b):
                lines.append(f"statement {i}: {b or 'no exception'}, expected {a or 'none'}")
        for n, x in expected.observed.items():
            if n not in found.observed:
                lines.append(f"{n}: missing")
            elif isinstance(x, Seen):
                if x.slack is not None and (line := compared(x, found.observed[n])):
                    lines.append(f"{n}: {line}")
            elif not same_scalar(x, found.observed[n]):
                lines.append(f"{n}: {found.observed[n]!r}, expected {x!r}")
        return lines


def family(name: str) -> str:
    """By the standard's words, and by what a program can catch."""
    if name in ("AxisError", "IndexError"):
        return "index"
    return {
        "ShapeError": "ValueError",
        "UFuncTypeError": "TypeError",
        "_UFuncOutputCastingError": "TypeError",
        "_UFuncNoLoopError": "TypeError",
        "_UFuncInputCastingError": "TypeError",
    }.get(name, name)


def same_scalar(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_scalar, a, b))
    return type(a) is type(b) and bool(a == b)


def slack(x: np.ndarray, moved: list[Any]) -> np.ndarray | None:
    if any(not isinstance(m, np.ndarray) or m.shape != x.shape or m.dtype != x.dtype for m in moved):
        return None
    if x.dtype.kind not in "fc":  # counted or compared: all or nothing
        same = np.logical_and.reduce([m == x for m in moved])
        return np.where(same, 0.0, np.inf)
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    with np.errstate(all="ignore"):
        off = np.maximum.reduce([np.where(alike(m, x), 0.0, np.abs(m - wide)) for m in moved])
    off = np.where(np.isnan(off), np.inf, off)
    if not off.any():
        return np.zeros(x.shape)
    typical = np.finfo(x.dtype).eps * np.abs(wide)  # an element may have been lucky
    largest = np.finfo(x.dtype).eps * np.max(np.abs(wide[np.isfinite(wide)]), initial=0.0)
    return np.where(np.isfinite(wide), 16 * off + 32 * typical + largest, np.where(off == 0, 0.0, np.inf))


def alike(a: Any, b: Any) -> Any:
    return (a == b) | ((a != a) & (b != b))


def compared(expected: Seen, found: Any) -> str | None:
    x, y = expected.value, found
    if not isinstance(y, np.ndarray):
        return f"{type(y).__name__}, expected an array"
    if y.dtype != x.dtype or y.shape != x.shape:
        return f"{y.dtype} {y.shape}, expected {x.dtype} {x.shape}"
    assert expected.slack is not None
    with np.errstate(all="ignore"):
        near = alike(x, y)
        if x.dtype.kind in "fc":
            near = near | (np.abs(y.astype(np.complex128) - x.astype(np.complex128)) <= expected.slack)
            if x.dtype.kind == "c":
                near = near | ~np.isfinite(x)  # special values are the library's
        near = near | np.isinf(expected.slack)
    if near.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~near)[0])
    return f"{y[at]!r} at {at}, expected {x[at]!r} (+- {expected.slack[at]:.2g}); {int((~near).sum())} of {x.size}"


KIND = ArrayAPI()
