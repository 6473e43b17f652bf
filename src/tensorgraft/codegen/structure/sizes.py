"""Numbers that depend on sizes, as expressions of the sizes that a function can see.

A size is known by its values in all traces: `(2, 3, 2)` at the sizes at which the program was traced. An expression is
right where it has these values in each, and the simplest that has is taken: a size, a size and a number, two sizes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tensorgraft.codegen.output.expressions import fill, literal
from tensorgraft.codegen.structure.size_merging import Extent, Quantity

Values = tuple[Any, ...]
Form = Callable[[Values, Values], tuple[str, dict[str, int]] | None]


class Sizes:
    """Expressions that can be written with these sizes: (values, a function that writes the size when it is used)."""

    def __init__(self, sources: Sequence[tuple[Values, Callable[[], ast.expr]]]) -> None:
        self._sources: dict[Values, Callable[[], ast.expr]] = {}
        for values, write in sources:
            if len(set(values)) > 1:
                self._sources.setdefault(values, write)

    def __contains__(self, x: Any) -> bool:
        return not isinstance(x, Extent) or x.values in self._sources

    def expression(self, x: Any) -> ast.expr | None:
        """Return an expression of `x`, or None if there is none."""
        if isinstance(x, Extent):
            return self._integer(x.values)
        if isinstance(x, Quantity):
            return self._float(x.values)
        return literal(x)

    def expression_exists(self, x: Any) -> bool:
        """Return whether `x` has an expression, without writing any of the sizes."""
        return Sizes([(v, lambda: ast.Name("size")) for v in self._sources]).expression(x) is not None

    def _integer(self, v: Values) -> ast.expr | None:
        for candidate in self._candidates(v):
            return candidate()
        return None

    def _candidates(self, v: Values) -> Iterator[Callable[[], ast.expr]]:
        """Yield candidates, the simplest first: one with more numbers of its own fits more values by chance."""
        known = self._sources
        if v in known:
            yield known[v]
        yield from self._of_one(v, _with_number)
        yield from self._of_two(v, _PAIRS)
        yield from self._of_one(v, _window)
        yield from self._of_two(v, _RARER_PAIRS)
        yield from self._of_products(v)
        yield from self._of_one(v, _affine)

    def _of_one(self, v: Values, form_of: Form) -> Iterator[Callable[[], ast.expr]]:
        for a, write in self._sources.items():
            form = form_of(v, a)
            if form is not None:
                template, numbers = form
                yield lambda w=write, t=template, n=numbers: fill(t, a=w(), **{k: literal(x) for k, x in n.items()})  # type: ignore[misc]

    def _of_two(self, v: Values, forms: dict[str, Callable[[int, int], int]]) -> Iterator[Callable[[], ast.expr]]:
        atoms = list(self._sources.items())
        for i, (a, write) in enumerate(atoms):
            for b, other in atoms[i:]:
                for template, f in forms.items():
                    for (x, first), (y, second) in (((a, write), (b, other)), ((b, other), (a, write))):
                        if all(f(p, q) == r for p, q, r in zip(x, y, v, strict=True)):
                            yield lambda t=template, p=first, q=second: fill(t, a=p(), b=q())  # type: ignore[misc]

    def _of_products(self, v: Values) -> Iterator[Callable[[], ast.expr]]:
        atoms = list(self._sources.items())
        for i, (a, write) in enumerate(atoms):
            for b, other in atoms[i:]:
                product = tuple(p * q for p, q in zip(a, b, strict=True))
                form = _with_number(v, product) or _window(v, product)
                if form is not None:
                    template, numbers = form
                    yield lambda w=write, o=other, t=template, n=numbers: fill(  # type: ignore[misc]
                        t, a=fill("a * b", a=w(), b=o()), **{k: literal(x) for k, x in n.items()}
                    )
                for c, third in atoms:
                    if all(p * q == r for p, q, r in zip(product, c, v, strict=True)):
                        yield lambda p=write, q=other, r=third: fill("a * b * c", a=p(), b=q(), c=r())  # type: ignore[misc]

    def _float(self, v: Values) -> ast.expr | None:
        for template, inverse in _FLOATS.items():
            integers = []
            for x in v:
                n = inverse(x) if x > 0 else math.nan
                if not (math.isfinite(n) and abs(n - round(n)) < 1e-6 * max(1, abs(n))):
                    break
                integers.append(round(n))
            else:
                expression = self._integer(tuple(integers)) if len(set(integers)) > 1 else literal(integers[0])
                if expression is not None:
                    return fill(template, n=expression)
        return None


_PAIRS: dict[str, Callable[[int, int], int]] = {
    "a * b": lambda a, b: a * b,
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
}
_RARER_PAIRS: dict[str, Callable[[int, int], int]] = {
    "a // b": lambda a, b: a // b if b and a % b == 0 else -1,
    "a + b - 1": lambda a, b: a + b - 1,
}
_FLOATS: dict[str, Callable[[float], float]] = {
    "float(n)": lambda x: x,
    "1 / n": lambda x: 1 / x,
    "n / (n - 1)": lambda x: x / (x - 1) if x != 1 else math.nan,
    "n**-0.5": lambda x: 1 / (x * x),
    "n**0.5": lambda x: x * x,
}


def _with_number(v: Values, a: Values) -> tuple[str, dict[str, int]] | None:
    """Match `v` as an expression of `a` and a number; return its template and the values of the template."""
    pairs = list(zip(v, a, strict=True))
    difference = {x - y for x, y in pairs}
    if len(difference) == 1:
        d = difference.pop()
        return ("a + n", {"n": d}) if d > 0 else ("a - n", {"n": -d})
    if all(y and x % y == 0 for x, y in pairs) and len({x // y for x, y in pairs}) == 1:
        return "n * a", {"n": v[0] // a[0]}
    if all(x and y % x == 0 for x, y in pairs) and len({y // x for x, y in pairs}) == 1:
        return "a // n", {"n": a[0] // v[0]}
    return None


def _window(v: Values, a: Values) -> tuple[str, dict[str, int]] | None:
    """Match `v` as a number of windows over `a`: (a + k) // d."""
    pairs = list(zip(v, a, strict=True))
    for d in (2, 3, 4, 5, 7, 8, 14, 16, 32):
        for k in range(-16, 17):
            if all((y + k) // d == x for x, y in pairs):
                if k == 0:
                    return "a // d", {"d": d}
                return ("(a + k) // d", {"k": k, "d": d}) if k > 0 else ("(a - k) // d", {"k": -k, "d": d})
    return None


def _affine(v: Values, a: Values) -> tuple[str, dict[str, int]] | None:
    pairs = list(zip(v, a, strict=True))
    first = pairs[0]
    for x, y in pairs[1:]:
        if y != first[1] and (x - first[0]) % (y - first[1]) == 0:
            n = (x - first[0]) // (y - first[1])
            k = first[0] - n * first[1]
            if n and all(n * q + k == p for p, q in pairs):
                return ("n * a + k", {"n": n, "k": k}) if k > 0 else ("n * a - k", {"n": n, "k": -k})
            break
    return None
