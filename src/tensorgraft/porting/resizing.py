"""Mappings at another size: that of a small configuration of a network, for a large one.

The steps of each row are written anew for the shapes of the large arrays. Their sizes are solved for, never guessed: an
axis of a step is a product or a quotient of axes whose sizes both networks show, or a size that is the same everywhere
else. The numbers in names are those of layers where they differ between both configurations.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tensorgraft.porting.checkpoints import Checkpoint, StoredArray
from tensorgraft.porting.expressions import Concatenation, Constant, Expression, Negative, Sum, View, views

Shape = tuple[int, ...]
Partial = Sequence[int | None]  # a shape of which not every size is known
_NUMBER = re.compile(r"(?<!\d)(?:0|[1-9]\d*)(?!\d)")


class Unresolved(ValueError):
    """A row that does not generalise."""


def shapes_of(arrays: Any) -> dict[str, Shape]:
    """The shapes of arrays by name: of a mapping of arrays or shapes, a checkpoint that is not read, or a JSON file of
    shapes."""
    if isinstance(arrays, Mapping):
        return {n: _ints(getattr(x, "shape", x)) for n, x in arrays.items()}
    if str(arrays).endswith(".json"):
        found = json.loads(Path(arrays).read_text())
        if not isinstance(found, dict):
            raise ValueError(f"{arrays} has no shapes by name: expected an object of names and lists of sizes")
        return {n: _ints(x) for n, x in found.items()}
    slots: Mapping[str, Any] = Checkpoint(arrays)
    return {n: _ints(x.shape if isinstance(x, StoredArray) else x().shape) for n, x in slots.items()}


def _ints(sizes: Any) -> Shape:
    return tuple(int(n) for n in sizes)


# ---- names -----------------------------------------------------------------------------------------------------------


def pattern(name: str) -> tuple[str, Shape]:
    """A name without its numbers, and the numbers."""
    return _NUMBER.sub("#", name), tuple(map(int, _NUMBER.findall(name)))


def _filled(text: str, numbers: Sequence[int]) -> str:
    waiting = iter(numbers)
    return re.sub("#", lambda _: str(next(waiting)), text)


class Layers:
    """The names of a small configuration, and which of their numbers are those of layers in the large one."""

    def __init__(self, small: Sequence[str], large: Sequence[str]) -> None:
        self.of_small: dict[str, dict[Shape, str]] = {}
        of_large: dict[str, set[Shape]] = {}
        for name in small:
            text, numbers = pattern(name)
            self.of_small.setdefault(text, {})[numbers] = name
        for name in large:
            text, numbers = pattern(name)
            of_large.setdefault(text, set()).add(numbers)
        self._vary = {
            text: [p for p, values in enumerate(zip(*numbers, strict=True))
                   if {n[p] for n in self.of_small.get(text, ())} != set(values)]
            for text, numbers in of_large.items()
        }  # fmt: skip

    def like(self, name: str) -> list[str]:
        """The small configuration's names for this one: itself where it has it, or those of its other layers."""
        text, numbers = pattern(name)
        known = self.of_small.get(text, {})
        if numbers in known:
            return [known[numbers]]
        fixed = [p for p in range(len(numbers)) if p not in self._vary.get(text, ())]
        return [n for other, n in known.items() if all(other[p] == numbers[p] for p in fixed)]

    def renamed(self, name: str, rows: Sequence[tuple[str, str]], source: str) -> str:
        """The name that stands for `source` in the row of `name`, as the rows (target, source) of other layers have
        it."""
        text, numbers = pattern(name)
        source_text, own = pattern(source)
        pairs = [(pattern(t)[1], pattern(s)[1]) for t, s in rows if pattern(s)[0] == source_text]
        if len(pairs) != len(rows):
            raise Unresolved(f"layers take other arrays: {', '.join(s for _, s in rows)}")
        found = []
        for q in range(len(own)):
            options = {_constant(q, pairs)} | {_shifted(q, p, numbers, pairs) for p in self._vary[text]}
            options -= {None}
            if len(options) != 1:
                raise Unresolved(f"which number of {source!r} is that of the layer is not known: map at two layers")
            found.append(options.pop())
        return _filled(source_text, found)  # type: ignore[arg-type]


def _constant(q: int, pairs: Sequence[tuple[Shape, Shape]]) -> int | None:
    values = {s[q] for _, s in pairs}
    return values.pop() if len(values) == 1 else None


def _shifted(q: int, p: int, numbers: Shape, pairs: Sequence[tuple[Shape, Shape]]) -> int | None:
    steps = {s[q] - t[p] for t, s in pairs}
    return numbers[p] + steps.pop() if len(steps) == 1 else None


# ---- sizes -----------------------------------------------------------------------------------------------------------


def groups(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the axes of two shapes of one array that have the same elements, as few at once as there are."""
    i = k = 0
    while i < len(a) or k < len(b):
        of_a: list[int] = []
        of_b: list[int] = []
        x = y = 1
        while not of_a or not of_b or x != y:
            if (x <= y and i < len(a)) or k >= len(b):
                if i >= len(a):
                    break
                of_a.append(i)
                x *= a[i]
                i += 1
            else:
                of_b.append(k)
                y *= b[k]
                k += 1
        yield of_a, of_b


@dataclass
class SizeTable:
    """The sizes of the small network, and those that they are in the large one."""

    known: dict[int, set[int]] = field(default_factory=dict)

    def add(self, small: Shape, large: Shape) -> None:
        for n, m in zip(small, large, strict=True):
            self.known.setdefault(n, set()).add(m)

    def __call__(self, size: int) -> int:
        found = self.known.get(size, set())
        if len(found) == 1:
            return next(iter(found))
        if not found:
            raise Unresolved(f"no axis has the size {size} of a step: say what it is there, sizes={{{size}: ...}}")
        are = " and ".join(map(str, sorted(found)))
        raise Unresolved(
            f"the size {size} is {are} in the other network: use sizes in the small one that are all different, or say"
            f" sizes={{{size}: ...}}"
        )


class Equations:
    """Sizes that are solved for: products of unknown ones that are known."""

    def __init__(self, sizes: SizeTable, small: Sequence[int]) -> None:
        self.sizes, self.small = sizes, list(small)
        self.large: list[int | None] = [1 if n == 1 else None for n in small]
        self._products: list[tuple[list[int], int]] = []

    def product(self, which: Sequence[int], of: Sequence[int | None]) -> None:
        """The sizes numbered by `which` have the product of `of`, if all of it is known."""
        if all(n is not None for n in of):
            self._products.append((list(which), math.prod(n for n in of if n is not None)))

    def solve(self) -> list[int]:
        self._divide()
        while any(n is None for n in self.large):
            which = next((w for w, _ in self._products if self._unknown(w)), None)
            unknown = self._unknown(which) if which is not None else [k for k, n in enumerate(self.large) if n is None]
            for k in unknown:
                self.large[k] = self.sizes(self.small[k])
            self._divide()
        for which, total in self._products:
            sizes = [self.large[k] or 0 for k in which]
            if math.prod(sizes) != total:
                small = [self.small[k] for k in which]
                raise Unresolved(f"sizes {sizes} for {small} have not the product {total}")
        return [n or 0 for n in self.large]

    def _unknown(self, which: Sequence[int]) -> list[int]:
        return [k for k in which if self.large[k] is None]

    def _divide(self) -> None:
        changed = True
        while changed:
            changed = False
            for which, total in self._products:
                unknown = self._unknown(which)
                if len(unknown) == 1:
                    rest = math.prod(self.large[k] or 1 for k in which if k not in unknown)
                    if not rest or total % rest:
                        raise Unresolved(f"{total} elements are no multiple of {rest}")
                    self.large[unknown[0]] = total // rest
                    changed = True


# ---- expressions -----------------------------------------------------------------------------------------------------


class Resizer:
    """Writes expressions for other shapes. `small` and `large` are the pieces that rows cut out of arrays."""

    def __init__(self, sizes: SizeTable, shapes: Mapping[str, Shape], rows: Sequence[Expression]) -> None:
        self.sizes, self.shapes = sizes, shapes
        self._cuts: dict[tuple[str, Shape, int], set[tuple[int, int]]] = {}
        for v in (v for e in rows for v in views(e)):
            for axis, (start, count, step) in enumerate(v.index):
                if step == 1:
                    self._cuts.setdefault((v.source, v.split, axis), set()).add((start, count))
        self._counts: dict[tuple[str, Shape, int], dict[tuple[int, int], int]] = {}

    def __call__(self, e: Expression, rename: Callable[[str], str], shape: Partial) -> Expression:
        if isinstance(e, View):
            return self._view(e, rename, shape)
        if isinstance(e, Sum):
            return Sum(tuple(self(t, rename, shape) for t in e.terms))
        if isinstance(e, Negative):
            return Negative(self(e.term, rename, shape))
        if isinstance(e, Constant):
            return Constant(
                e.value, tuple(self.sizes(n) if m is None else m for n, m in zip(e.shape, shape, strict=True))
            )
        if not isinstance(e, Concatenation):
            raise Unresolved("a weight that is computed is known for the size that was ported alone")
        return self._concatenation(e, rename, shape)

    def _view(self, v: View, rename: Callable[[str], str], shape: Partial) -> View:
        name = rename(v.source)
        if name not in self.shapes:
            raise Unresolved(f"the checkpoint has no {name}")
        whole = self.shapes[name]
        if len(whole) != len(v.source_shape) or len(shape) != len(v.shape):
            raise Unresolved(f"{name} has {len(whole)} axes, {v.source} has {len(v.source_shape)}")
        counts = [count for _, count, _ in v.index]
        cut = [k for k, n in enumerate(v.split) if counts[k] != n]
        place = {k: len(v.split) + i for i, k in enumerate(cut)}  # of the counts among the unknown sizes
        repeats = len(v.split) + len(cut)
        equations = Equations(self.sizes, [*v.split, *(counts[k] for k in cut), *v.repeats])
        for of_source, of_split in groups(v.source_shape, v.split):
            equations.product(of_split, [whole[a] for a in of_source])
        which, waiting = [], iter(range(repeats, repeats + len(v.repeats)))
        for a in v.order:
            which.append(next(waiting) if a < 0 else place.get(a, a))
        dims = [equations.small[k] for k in which]
        for of_dims, of_shape in groups(dims, v.shape):
            equations.product([which[a] for a in of_dims], [shape[a] for a in of_shape])
        found = equations.solve()
        split = tuple(found[: len(v.split)])
        index = [(i[0], found[place.get(k, k)], i[2]) for k, i in enumerate(v.index)]
        for k, (start, count, step) in enumerate(v.index):
            index[k] = (
                self._cut(v, name, k, split[k], index[k][1])
                if step == 1
                else _stepped(v, k, split[k], (start, count, step))
            )
        result = [
            math.prod(found[which[a]] for a in axes) if m is None else m
            for axes, m in _result_axes(dims, v.shape, shape)
        ]
        return View(name, whole, split, tuple(index), v.order, tuple(found[repeats:]), tuple(result))

    def _cut(self, v: View, name: str, axis: int, n: int, count: int) -> tuple[int, int, int]:
        """The part of an axis; where it begins is settled by `settled`, once the pieces before it are known."""
        self._counts.setdefault((name, v.split, axis), {})[v.index[axis][:2]] = count
        if count > n:
            raise Unresolved(f"{count} of {n} elements of {name}")
        return (v.index[axis][0], count, 1)

    def settled(self, e: Expression, small: Expression) -> Expression:
        """The expression with the beginnings of its pieces: the sizes of those before them, which are in other rows."""
        if isinstance(e, View) and isinstance(small, View):
            index = [(self._start(e, small, k), *i[1:]) if i[2] == 1 else i for k, i in enumerate(e.index)]
            return replace(e, index=tuple(index))
        if isinstance(e, Concatenation) and isinstance(small, Concatenation):
            return replace(e, parts=tuple(map(self.settled, e.parts, small.parts)))
        if isinstance(e, Negative) and isinstance(small, Negative):
            return Negative(self.settled(e.term, small.term))
        if isinstance(e, Sum) and isinstance(small, Sum):
            return Sum(tuple(map(self.settled, e.terms, small.terms)))
        return e

    def _start(self, e: View, small: View, axis: int) -> int:
        key = (small.source, small.split, axis)
        counts = self._counts.get((e.source, small.split, axis), {})
        start, count, _ = small.index[axis]
        at = total = 0
        while at < start:
            piece = next(((s, c) for s, c in self._cuts[key] if s == at and s + c <= start and (s, c) in counts), None)
            if piece is None:
                if start + count == small.split[axis]:
                    return e.split[axis] - e.index[axis][1]
                raise Unresolved(f"where a part of {e.source} begins is not known: no other row has what is before it")
            at, total = at + piece[1], total + counts[piece]
        if total + e.index[axis][1] > e.split[axis]:
            raise Unresolved(f"parts of {e.source} have more than its {e.split[axis]} elements")
        return total

    def _concatenation(self, c: Concatenation, rename: Callable[[str], str], shape: Partial) -> Concatenation:
        joined = list(c.parts[0].shape)
        joined[c.axis] = sum(p.shape[c.axis] for p in c.parts)
        wanted: list[int | None] = [None] * len(joined)
        for of_joined, of_shape in groups(joined, c.shape):
            wide = [a for a in of_joined if joined[a] > 1 or len(of_joined) == 1]
            if len(wide) == 1 and all(shape[a] is not None for a in of_shape):
                wanted[wide[0]] = math.prod(shape[a] or 1 for a in of_shape)
            for a in of_joined:
                wanted[a] = 1 if joined[a] == 1 and a not in wide else wanted[a]
        total, wanted[c.axis] = wanted[c.axis], None
        parts: list[Expression | None] = []
        for p in c.parts:
            try:
                parts.append(self(p, rename, wanted))
            except Unresolved:
                if None in parts or total is None:
                    raise
                parts.append(None)
        if None in parts and total is not None:  # the one that is left
            k = parts.index(None)
            rest = list(wanted)
            rest[c.axis] = total - sum(p.shape[c.axis] for p in parts if p is not None)
            parts[k] = self(c.parts[k], rename, rest)
        whole = [p for p in parts if p is not None]
        length = sum(p.shape[c.axis] for p in whole)
        if total is not None and length != total:
            raise Unresolved(f"parts have {length} elements along an axis of {total}")
        if None in shape:
            raise Unresolved("a concatenation of concatenations whose size is not known")
        return Concatenation(tuple(whole), c.axis, tuple(n or 0 for n in shape))


def _result_axes(dims: Sequence[int], small: Shape, shape: Partial) -> Iterator[tuple[list[int], int | None]]:
    """(axes of the steps' result, the known size) for each axis of a shape, in order."""
    for of_dims, of_shape in groups(dims, small):
        for n, a in enumerate(of_shape):
            if shape[a] is None and len(of_shape) > 1:
                raise Unresolved("axes that are split, of sizes that are not known")
            yield of_dims if n == 0 else [], shape[a]


def _stepped(v: View, axis: int, n: int, index: tuple[int, int, int]) -> tuple[int, int, int]:
    """Every so many elements, or all of them backwards."""
    start, count, step = index
    small = v.split[axis]
    if step == -1 and (start, count) == (small - 1, small):
        return n - 1, n, -1
    if step > 1 and start < step and count == -(-(small - start) // step):
        return start, -(-(n - start) // step), step
    raise Unresolved(f"elements {start}::{step} of {v.source}")


# ---- mappings --------------------------------------------------------------------------------------------------------


class _Resizing:
    """A mapping, and the shapes of the large networks; `failures` has a sentence for each row."""

    def __init__(
        self, mapping: Any, source: dict[str, Shape], target: dict[str, Shape], sizes: Mapping[int, int]
    ) -> None:
        self.mapping, self.source, self.target = mapping, source, target
        self.failures: list[str] = []
        self.layers = Layers([*mapping.entries, *mapping.idle, *mapping.target_aliases], list(target))
        small = {v.source: v.source_shape for e in mapping for v in views(e.expression)}
        self.of_source = Layers([*small, *mapping.unused, *mapping.ignored, *mapping.aliases], list(source))
        self.sizes = SizeTable()
        for layers, of_small, large in (
            (self.layers, {n: e.shape for n, e in mapping.entries.items()}, target),
            (self.of_source, small, source),
        ):
            for name, shape in large.items():
                shapes = {of_small[n] for n in layers.like(name) if n in of_small}
                if len(shapes) == 1 and len(next(iter(shapes))) == len(shape):
                    self.sizes.add(shapes.pop(), shape)
        self.sizes.known |= {n: {m} for n, m in sizes.items()}
        self.resizer = Resizer(self.sizes, source, [e.expression for e in mapping])

    def entries(self) -> dict[str, Any]:
        found: dict[str, tuple[Any, Expression]] = {}
        for name in self.target:
            like = [n for n in self.layers.like(name) if n in self.mapping.entries]
            if not like and self.layers.like(name):
                continue  # idle, or a further name
            try:
                found[name] = self._row(name, like)
            except Unresolved as error:
                self.failures.append(f"{name}: {error}")
        out = {}
        for name, (entry, expression) in found.items():
            try:
                out[name] = replace(entry, expression=self.resizer.settled(entry.expression, expression))
            except Unresolved as error:
                self.failures.append(f"{name}: {error}")
        present = {pattern(n)[0] for n in self.target}
        self.failures += [f"{n}: the target has none" for n in self.mapping.entries if pattern(n)[0] not in present]
        return out

    def _row(self, name: str, like: Sequence[str]) -> tuple[Any, Expression]:
        """The row, with the steps of the small one that it is written after."""
        if not like:
            raise Unresolved("no row of the mapping has a name like this")
        found: dict[Expression, tuple[Any, Expression]] = {}
        failure: Unresolved | None = None
        for small in like:
            entry = self.mapping.entries[small]
            if len(entry.shape) != len(self.target[name]):
                failure = Unresolved(f"shape {self.target[name]} here, {entry.shape} in the mapping")
                continue
            try:
                result = self.resizer(entry.expression, self._names(name, small, like), self.target[name])
            except Unresolved as error:
                failure = error
                continue
            note = "of another size" if not entry.note else f"of another size; there {entry.note}"
            row = replace(entry, target=name, shape=self.target[name], expression=result, note=note)
            found.setdefault(result, (row, entry.expression))
        if len(found) > 1:
            raise Unresolved(f"rows of other layers fit in {len(found)} ways: {', '.join(like)}")
        if not found:
            raise failure or Unresolved("no row fits")
        return next(iter(found.values()))

    def _names(self, name: str, small: str, like: Sequence[str]) -> Callable[[str], str]:
        if small == name:
            return lambda source: source
        sources = self.mapping.entries[small].sources

        def rename(source: str) -> str:
            k = sources.index(source)
            rows = [(n, self.mapping.entries[n].sources[k : k + 1]) for n in like]
            return self.layers.renamed(name, [(n, s[0]) for n, s in rows if s], source)

        return rename

    def of_kind(self, names: Sequence[str], large: Mapping[str, Shape]) -> list[str]:
        """The large network's names that are like these."""
        known = {pattern(n)[0] for n in names}
        return [n for n in large if pattern(n)[0] in known]

    def aliases(self, aliases: Mapping[str, str], large: Mapping[str, Shape], used: set[str]) -> dict[str, str]:
        """Further names of arrays, of the same layers."""
        known = {pattern(a)[0]: (pattern(a)[1], *pattern(n)) for a, n in aliases.items()}
        found = {}
        for name in large:
            text, numbers = pattern(name)
            if name not in used and text in known:
                own, other, others = known[text]
                stands = _filled(other, numbers if own == others else others)
                if stands in used:
                    found[name] = stands
        return found


def resized(mapping: Any, source: Any, target: Any, sizes: Mapping[int, int] | None = None) -> Any:
    """See `Mapping.resized`."""
    of = _Resizing(mapping, shapes_of(source), shapes_of(target), sizes or {})
    entries = of.entries()
    used = {s for e in entries.values() for s in e.sources}
    aliases = of.aliases(mapping.aliases, of.source, used)
    target_aliases = of.aliases(mapping.target_aliases, of.target, set(entries))
    unused, ignored = (
        [n for n in of.of_kind(names, of.source) if n not in used and n not in aliases]
        for names in (mapping.unused, mapping.ignored)
    )
    if not of.failures:
        rest = sorted(of.source.keys() - used - {*aliases, *unused, *ignored})
        of.failures += [f"{n} of the checkpoint: no row takes it" for n in rest]
    if of.failures:
        listed = "\n  ".join(of.failures)
        raise ValueError(f"{len(of.failures)} rows cannot be written for the other size:\n  {listed}")
    idle = [n for n in of.of_kind(mapping.idle, of.target) if n not in entries]
    return replace(
        mapping,
        entries=entries,
        unused=unused,
        ignored=ignored,
        aliases=aliases,
        target_aliases=target_aliases,
        idle=idle,
    )
