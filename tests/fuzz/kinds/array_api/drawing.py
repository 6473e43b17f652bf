"""What statements are drawn from: the live arrays of a program, and choices among them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

LARGEST = 300  # elements of what is computed with further


FLOATS, COMPLEX = ["float32", "float64"], ["complex64", "complex128"]


SIGNED, UNSIGNED = ["int8", "int16", "int32", "int64"], ["uint8", "uint16", "uint32", "uint64"]


DTYPES = ["float16"] + FLOATS * 4 + COMPLEX + SIGNED + ["int64", "int32"] + UNSIGNED + ["bool"] * 2


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


class Drawing:
    """The live arrays of a program, and choices among them."""

    def __init__(self, rng: random.Random, names: dict[str, Any]) -> None:
        self.rng, self.names = rng, names
        self.arrays = {n: x for n, x in names.items() if n[0] == "v" and n[1:].isdigit() and isinstance(x, np.ndarray)}
        taken = [int(n[1:]) for n in names if n[0] in "vsf" and n[1:].isdigit()]
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
            return FLOATS * 3 + COMPLEX + ["float16"] if dtype.kind == "f" else COMPLEX + FLOATS
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


def broadcasts(a: Any, b: Any) -> bool:
    try:
        return int(np.prod(np.broadcast_shapes(a.shape, b.shape))) <= LARGEST
    except ValueError:
        return False
