"""Expressions: how an array of the target is made of arrays of the source, in NumPy's words.

`View` moves elements of one array, `Concatenation` puts arrays together, `Sum` adds them, `Constant` is one number.
They are written as NumPy, stored as JSON, and computed one array at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

Ints = tuple[int, ...]


@dataclass(frozen=True)
class View:
    """`source.reshape(split)[index].transpose(order)`, repeated along axes whose order is -1, then reshaped."""

    source: str
    source_shape: Ints
    split: Ints
    index: tuple[tuple[int, int, int], ...]  # (start, count, step) of each axis
    order: Ints  # of the split's axes; -1: an axis of the result along which elements repeat
    repeats: Ints  # how often, for each of those
    shape: Ints

    def __call__(self, arrays: Callable[[str], np.ndarray]) -> np.ndarray:
        return self.unshaped(arrays).reshape(self.shape)

    def unshaped(self, arrays: Callable[[str], np.ndarray]) -> np.ndarray:
        """The elements in order, in the shape before the last step: a view of the source's memory."""
        x = arrays(self.source)
        if tuple(x.shape) != self.source_shape:
            raise ValueError(
                f"{self.source} has shape {tuple(x.shape)}, and {self.source_shape} in the network that was ported"
            )
        x = x.reshape(self.split)[tuple(_slice(*i) for i in self.index)]
        x = x.transpose(tuple(a for a in self.order if a >= 0))
        if self.repeats:
            wide, counts = [], iter(self.repeats)
            for at, a in enumerate(self.order):
                if a < 0:
                    x = np.expand_dims(x, at)
                wide.append(next(counts) if a < 0 else x.shape[at])
            x = np.broadcast_to(x, wide)
        return x

    def code(self, name: Callable[[str], str]) -> str:
        text = name(self.source)
        if self.split != self.source_shape:
            text += f".reshape({_ints(self.split)})"
        if any(i != (0, n, 1) for i, n in zip(self.index, self.split, strict=True)):
            cuts = [_cut(*i, n) for i, n in zip(self.index, self.split, strict=True)]
            while cuts[-1] == ":":
                cuts.pop()
            text += f"[{', '.join(cuts)}]"
        shape = tuple(count for _, count, _ in self.index)
        axes = tuple(a for a in self.order if a >= 0)
        if axes != tuple(range(len(axes))):
            text += ".T" if axes == (1, 0) else f".transpose({_ints(axes)})"
            shape = tuple(shape[a] for a in axes)
        if self.repeats:
            counts = iter(self.repeats)
            wide = [next(counts) if a < 0 else self.index[a][1] for a in self.order]
            new = "[" + ", ".join("None" if a < 0 else ":" for a in self.order) + "]"
            text = f"np.broadcast_to({text}{new}, ({_ints(wide)}{',' if len(wide) == 1 else ''}))"
            shape = tuple(wide)
        if shape != self.shape:
            text += f".reshape({_ints(self.shape) or '()'})"
        return text

    def sources(self) -> Iterator[str]:
        yield self.source

    @property
    def is_whole(self) -> bool:
        """It is the array as it is."""
        axes = tuple(range(len(self.split)))
        whole = tuple((0, n, 1) for n in self.split)
        return self.split == self.source_shape == self.shape and self.index == whole and self.order == axes

    def json(self) -> dict[str, Any]:
        fields = ("source", "source_shape", "split", "index", "order", "repeats", "shape")
        return {"op": "view", **{f: getattr(self, f) for f in fields}}


@dataclass(frozen=True)
class Concatenation:
    """Parts one after the other along an axis, reshaped."""

    parts: tuple[Expression, ...]
    axis: int
    shape: Ints

    def __call__(self, arrays: Callable[[str], np.ndarray]) -> np.ndarray:
        return np.concatenate([p(arrays) for p in self.parts], self.axis).reshape(self.shape)

    def code(self, name: Callable[[str], str]) -> str:
        text = f"np.concatenate([{', '.join(p.code(name) for p in self.parts)}], {self.axis})"
        joined = list(self.parts[0].shape)
        joined[self.axis] = sum(p.shape[self.axis] for p in self.parts)
        return text if tuple(joined) == self.shape else f"{text}.reshape({_ints(self.shape)})"

    def sources(self) -> Iterator[str]:
        for p in self.parts:
            yield from p.sources()

    def json(self) -> dict[str, Any]:
        return {"op": "concatenate", "parts": [p.json() for p in self.parts], "axis": self.axis, "shape": self.shape}


@dataclass(frozen=True)
class Sum:
    """The sum of terms of one shape."""

    terms: tuple[Expression, ...]

    @property
    def shape(self) -> Ints:
        return self.terms[0].shape

    def __call__(self, arrays: Callable[[str], np.ndarray]) -> np.ndarray:
        values = [t(arrays) for t in self.terms]
        dtype = next((v.dtype for t, v in zip(self.terms, values, strict=True) if not isinstance(t, Constant)), None)
        total = sum(v.astype(np.float64) for v in values)
        return np.asarray(total).astype(dtype or np.float32)

    def code(self, name: Callable[[str], str]) -> str:
        return " + ".join(repr(t.value) if isinstance(t, Constant) else t.code(name) for t in self.terms)

    def sources(self) -> Iterator[str]:
        for t in self.terms:
            yield from t.sources()

    def json(self) -> dict[str, Any]:
        return {"op": "sum", "terms": [t.json() for t in self.terms]}


@dataclass(frozen=True)
class Negative:
    """An array of the other sign."""

    term: Expression

    @property
    def shape(self) -> Ints:
        return self.term.shape

    @property
    def terms(self) -> tuple[Expression, ...]:
        return (self.term,)

    def __call__(self, arrays: Callable[[str], np.ndarray]) -> np.ndarray:
        return np.negative(self.term(arrays))

    def code(self, name: Callable[[str], str]) -> str:
        return "-" + self.term.code(name)

    def sources(self) -> Iterator[str]:
        return self.term.sources()

    def json(self) -> dict[str, Any]:
        return {"op": "negative", "term": self.term.json()}


@dataclass(frozen=True)
class Constant:
    """One number everywhere."""

    value: float
    shape: Ints

    def __call__(self, arrays: Callable[[str], np.ndarray]) -> np.ndarray:
        return np.full(self.shape, self.value, np.float32)

    def code(self, name: Callable[[str], str]) -> str:
        shape = f"({_ints(self.shape)}{',' if len(self.shape) == 1 else ''})"
        return f"np.full({shape}, {self.value!r}, np.float32)"

    def sources(self) -> Iterator[str]:
        yield from ()

    def json(self) -> dict[str, Any]:
        return {"op": "number", "value": self.value, "shape": self.shape}


@dataclass(frozen=True)
class ArrayOperation:
    """An operation on arrays and numbers, computed in float64."""

    name: str  # as the hub calls it
    operands: tuple[Expression | float, ...]
    settings: tuple[Any, ...]  # axes, shapes
    shape: Ints

    @property
    def terms(self) -> tuple[Expression, ...]:
        return tuple(x for x in self.operands if not isinstance(x, float))

    def __call__(self, arrays: Callable[[str], np.ndarray]) -> np.ndarray:
        values = [x if isinstance(x, float) else np.asarray(x(arrays)) for x in self.operands]
        dtype = np.result_type(*(x.dtype for x in values if not isinstance(x, float)))
        wide = [x if isinstance(x, float) else x.astype(np.float64) for x in values]
        return np.asarray(_COMPUTED[self.name][1](*wide, *self.settings)).astype(dtype)

    def code(self, name: Callable[[str], str]) -> str:
        text, _ = _COMPUTED[self.name]
        operands = [repr(x) if isinstance(x, float) else x.code(name) for x in self.operands]
        if not text.startswith("np."):
            operands = [f"({t})" if _is_infix(x) else t for t, x in zip(operands, self.operands, strict=True)]
        return text.format(*operands, *map(repr, self.settings))

    def sources(self) -> Iterator[str]:
        for t in self.terms:
            yield from t.sources()

    def json(self) -> dict[str, Any]:
        operands = [x if isinstance(x, float) else x.json() for x in self.operands]
        return {
            "op": "computed",
            "name": self.name,
            "operands": operands,
            "settings": self.settings,
            "shape": self.shape,
        }


_COMPUTED: dict[str, tuple[str, Callable[..., Any]]] = {  # as text, and as a function of operands and settings
    "add": ("{0} + {1}", np.add),
    "subtract": ("{0} - {1}", np.subtract),
    "multiply": ("{0} * {1}", np.multiply),
    "divide": ("{0} / {1}", np.divide),
    "pow": ("{0} ** {1}", np.power),
    **{name: (f"np.{name}({{0}}, {{1}})", getattr(np, name)) for name in ("maximum", "minimum")},
    **{name: (f"np.{name}({{0}})", getattr(np, name)) for name in ("square", "sqrt", "negative", "abs", "exp")},
    "sum": ("{0}.sum({1}, keepdims={2})", lambda x, axes, keepdims: x.sum(axes, keepdims=keepdims)),
    "mean": ("{0}.mean({1}, keepdims={2})", lambda x, axes, keepdims: x.mean(axes, keepdims=keepdims)),
    "max": ("{0}.max({1}, keepdims={2})", lambda x, axes, keepdims: x.max(axes, keepdims=keepdims)),
    "rsqrt": ("1 / np.sqrt({0})", lambda x: 1 / np.sqrt(x)),
    "reciprocal": ("1 / {0}", lambda x: 1 / x),
    "reshape": ("{0}.reshape({1})", np.reshape),
    "permute_dims": ("{0}.transpose({1})", np.transpose),
    "broadcast_to": ("np.broadcast_to({0}, {1})", np.broadcast_to),
    "dot_general": ("np.tensordot({0}, {1}, {2})", np.tensordot),
}
COMPUTED = frozenset(_COMPUTED)


def _is_infix(x: Expression | float) -> bool:
    if isinstance(x, ArrayOperation):
        return " " in _COMPUTED[x.name][0].partition("(")[0]
    return x < 0 if isinstance(x, float) else isinstance(x, Sum | Negative)


@dataclass(frozen=True)
class Moved:
    """Elements of an array that is computed, as a view of it."""

    of: Expression
    view: View

    @property
    def shape(self) -> Ints:
        return self.view.shape

    @property
    def terms(self) -> tuple[Expression, ...]:
        return (self.of,)

    def __call__(self, arrays: Callable[[str], np.ndarray]) -> np.ndarray:
        return self.view(lambda _: self.of(arrays))

    def code(self, name: Callable[[str], str]) -> str:
        return self.view.code(lambda _: f"({self.of.code(name)})")

    def sources(self) -> Iterator[str]:
        return self.of.sources()

    def json(self) -> dict[str, Any]:
        return {"op": "moved", "of": self.of.json(), "view": self.view.json()}


Expression = View | Concatenation | Sum | Negative | Constant | ArrayOperation | Moved


def replaced(expression: Expression, computed: Mapping[str, Expression]) -> Expression:
    """The expression with computations in the places of arrays that have these names."""
    if isinstance(expression, View):
        of = computed.get(expression.source)
        return expression if of is None else of if expression.is_whole else Moved(of, expression)
    if isinstance(expression, Concatenation):
        return replace(expression, parts=tuple(replaced(p, computed) for p in expression.parts))
    if isinstance(expression, Sum):
        return Sum(tuple(replaced(t, computed) for t in expression.terms))
    return Negative(replaced(expression.term, computed)) if isinstance(expression, Negative) else expression


def views(expression: Expression | None) -> Iterator[View]:
    """The views in an expression."""
    if isinstance(expression, View):
        yield expression
    for part in getattr(expression, "parts", getattr(expression, "terms", ())):
        yield from views(part)


def from_json(data: Mapping[str, Any]) -> Expression:
    """An expression that was stored. Raises ValueError for what is none."""
    op = data.get("op")
    if op == "view":
        numbers = {f: tuple(data[f]) for f in ("source_shape", "split", "order", "repeats", "shape")}
        return View(source=data["source"], index=tuple((a, b, c) for a, b, c in data["index"]), **numbers)
    if op == "concatenate":
        return Concatenation(tuple(from_json(p) for p in data["parts"]), data["axis"], tuple(data["shape"]))
    if op == "sum":
        return Sum(tuple(from_json(t) for t in data["terms"]))
    if op == "computed":
        operands = tuple(float(x) if isinstance(x, int | float) else from_json(x) for x in data["operands"])
        return ArrayOperation(data["name"], operands, _tuples(data["settings"]), tuple(data["shape"]))
    if op == "moved":
        view = from_json(data["view"])
        assert isinstance(view, View)
        return Moved(from_json(data["of"]), view)
    if op == "negative":
        return Negative(from_json(data["term"]))
    if op == "number":
        return Constant(data["value"], tuple(data["shape"]))
    raise ValueError(f"unknown operation {op!r} in a mapping")


def _tuples(x: Any) -> Any:
    return tuple(map(_tuples, x)) if isinstance(x, list | tuple) else x


def _ints(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _slice(start: int, count: int, step: int) -> slice:
    stop = start + count * step
    return slice(start, None if stop < 0 else stop, step)


def _cut(start: int, count: int, step: int, n: int) -> str:
    if (start, count, step) == (0, n, 1):
        return ":"
    if step == -1 and count == n:
        return "::-1"
    stop = start + count * step
    by = "" if step == 1 else f":{step}"
    return f"{start or ''}:{'' if stop >= n or stop < 0 else stop}{by}"


# ---- recognition -----------------------------------------------------------------------------------------------------


def recognized(positions: np.ndarray, source: str, source_shape: Ints) -> View | None:
    """The view of a source array whose elements have these flat positions; None if they are no view."""
    if not positions.size:
        return None
    digits = _digits(positions)
    if digits is None:
        return None
    size = math.prod(source_shape)
    offset = int(positions.reshape(-1)[0])
    flips = set()
    for k, (n, stride) in enumerate(digits):
        if stride < 0:
            offset += (n - 1) * stride
            digits[k] = (n, -stride)
            flips.add(k)
    ordered = sorted((k for k, (_, stride) in enumerate(digits) if stride), key=lambda k: -digits[k][1])
    split: list[int] = []
    index: list[tuple[int, int, int]] = []
    place: dict[int, int] = {}
    previous = size
    for k in ordered:
        n, stride = digits[k]
        if previous % stride:
            return None
        extent = previous // stride
        start = offset // stride % extent
        if start + n > extent:
            return None
        place[k] = len(split)
        split.append(extent)
        index.append((start + n - 1, n, -1) if k in flips else (start, n, 1))
        previous = stride
    if previous > 1 or not split:
        split.append(previous)
        index.append((offset % previous, 1, 1))
    order = [place.get(k, -1) for k in range(len(digits))]
    order += [a for a in range(len(split)) if a not in order]  # the axis of one element that is left
    repeats = tuple(digits[k][0] for k in range(len(digits)) if k not in place)
    view = View(source, source_shape, tuple(split), tuple(index), tuple(order), repeats, positions.shape)
    return _merged(view)


def _digits(positions: np.ndarray) -> list[tuple[int, int]] | None:
    """(count, stride) of the axes, those that are not one stride split into several; None if there are no strides."""
    digits: list[tuple[int, int]] = []
    total = np.zeros((1,) * positions.ndim, np.int64) + int(positions.reshape(-1)[0])
    for axis, n in enumerate(positions.shape):
        line = positions[tuple(slice(None) if a == axis else 0 for a in range(positions.ndim))].astype(np.int64)
        found = _line(line)
        if found is None:
            return None
        digits += found
        shape = [1] * positions.ndim
        shape[axis] = n
        total = total + (line - line[0]).reshape(shape)
    return digits if np.array_equal(total, positions) else None


def _line(line: np.ndarray) -> list[tuple[int, int]] | None:
    inner: list[tuple[int, int]] = []
    while len(line) > 1:
        steps = np.diff(line)
        changes = np.flatnonzero(steps != steps[0])
        n = int(changes[0]) + 1 if changes.size else len(line)
        if len(line) % n or n == 1:
            return None
        if not np.array_equal((line[::n, None] + steps[0] * np.arange(n)).reshape(-1), line):
            return None
        inner.append((n, int(steps[0])))
        line = line[::n]
    return inner[::-1]


def _merged(view: View) -> View:
    """The view with as few axes as it can have, along the axes of the source."""
    bounds = {math.prod(view.source_shape[k:]) for k in range(len(view.source_shape) + 1)}
    split, index, order = list(view.split), list(view.index), list(view.order)
    k = len(split) - 2
    while k >= 0:
        at = order.index(k)
        adjacent = at + 1 < len(order) and order[at + 1] == k + 1 and index[k + 1] == (0, split[k + 1], 1)
        if adjacent and index[k][2] == 1 and math.prod(split[k + 1 :]) not in bounds:
            n = split.pop(k + 1)
            index.pop(k + 1)
            order.remove(k + 1)
            start, count, _ = index[k]
            split[k] *= n
            index[k] = (start * n, count * n, 1)
            order = [a - 1 if a > k else a for a in order]
        k -= 1
    for k, n in enumerate(view.source_shape):  # axes of one element, which have no stride
        if n == 1 and k <= len(split) < len(view.source_shape) and split[k : k + 1] != [1]:
            split.insert(k, 1)
            index.insert(k, (0, 1, 1))
            order = [a + 1 if a >= k else a for a in order]
            order.insert(_beside(order, k), k)
    return View(view.source, view.source_shape, tuple(split), tuple(index), tuple(order), view.repeats, view.shape)


def _beside(order: Sequence[int], axis: int) -> int:
    return next((i + 1 for i, a in enumerate(order) if a == axis - 1), 0)
