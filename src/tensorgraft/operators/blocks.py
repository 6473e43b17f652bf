"""Operators made of blocks: Kronecker products, block diagonals, and blocks in rows and columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import optree

from tensorgraft import array_api as xp
from tensorgraft.frontends.array_api import Array
from tensorgraft.frontends.array_api.core.devices import Device
from tensorgraft.operators import tags as tags_
from tensorgraft.operators.base import LinearOperator
from tensorgraft.operators.composed import Composed, _added, _is_compatible, _operator
from tensorgraft.operators.structures import Structure, vector

Apply = Callable[[LinearOperator, Array], Array]


def _applied(operator: LinearOperator, x: Array) -> Array:
    return operator.mm_flat(x)


class KroneckerLinearOperator(Composed):
    """The Kronecker product A (x) B (x) ... of operators, on vectors: the last factor's index runs fastest."""

    @property
    def _in(self) -> Structure:
        return vector(math.prod(x.in_size for x in self.operators), self._dtype)

    @property
    def _out(self) -> Structure:
        return vector(math.prod(x.out_size for x in self.operators), self._dtype)

    @property
    def _dtype(self) -> Any:
        return xp.result_type(*[x.dtype for x in self.operators])

    @property
    def _tags(self) -> Iterable[str]:
        return tags_.of_kronecker([x.tags for x in self.operators])

    def mv(self, x: Any, /) -> Array:
        (v,) = self._in.checked("KroneckerLinearOperator.mv", x)
        return self.by_factors(xp.expand_dims(v, axis=1), _applied)[:, 0]

    def mm(self, x: Any, /) -> Array:
        (v,) = self._in.checked("KroneckerLinearOperator.mm", x, columns=True)
        return self.by_factors(v, _applied)

    def by_factors(self, x: Array, apply: Apply) -> Array:
        """Apply each factor along its axis of columns (n, k), without forming the matrix of the product."""
        k = x.shape[1]
        extents = [p.in_size if apply is _applied else p.out_size for p in self.operators]
        x = xp.reshape(x, (*extents, k))
        for axis, part in enumerate(self.operators):
            x = xp.moveaxis(x, axis, 0)
            rest = x.shape[1:]
            x = apply(part, xp.reshape(x, (x.shape[0], math.prod(rest))))
            x = xp.moveaxis(xp.reshape(x, (x.shape[0], *rest)), 0, axis)
        return xp.reshape(x, (math.prod(x.shape[:-1]), k))

    @property
    def T(self) -> LinearOperator:
        return self if "symmetric" in self.tags else KroneckerLinearOperator([x.T for x in self.operators])

    @property
    def H(self) -> LinearOperator:
        return self if "hermitian" in self.tags else KroneckerLinearOperator([x.H for x in self.operators])

    def as_matrix(self) -> Array:
        out = self.operators[0].as_matrix()
        for part in self.operators[1:]:
            b = part.as_matrix()
            wide = xp.reshape(out, (out.shape[0], 1, out.shape[1], 1)) * xp.reshape(b, (1, b.shape[0], 1, b.shape[1]))
            out = xp.reshape(wide, (out.shape[0] * b.shape[0], out.shape[1] * b.shape[1]))
        return out

    def diagonal(self) -> Array:
        if any(x.shape[0] != x.shape[1] for x in self.operators):
            return super().diagonal()
        out = self.operators[0].diagonal()
        for part in self.operators[1:]:
            out = xp.reshape(xp.expand_dims(out, axis=1) * part.diagonal(), (out.shape[0] * part.in_size,))
        return out


def _tuple(parts: Sequence[Structure]) -> Structure:
    specs: Any = tuple([p.spec for p in parts])
    tree: Any = optree.tree_structure(specs)
    return Structure([s for p in parts for s in p.leaves], tree)


class BlockDiagonalLinearOperator(Composed):
    """Operators side by side: of tuples with a vector for each."""

    @property
    def _in(self) -> Structure:
        return _tuple([x._in for x in self.operators])

    @property
    def _out(self) -> Structure:
        return _tuple([x._out for x in self.operators])

    @property
    def _tags(self) -> Iterable[str]:
        return tags_.of_blocks([x.tags for x in self.operators])

    def mv(self, x: Any, /) -> Any:
        self._in.checked("BlockDiagonalLinearOperator.mv", x)
        return tuple([part.mv(v) for part, v in zip(self.operators, x, strict=True)])

    def mm(self, x: Any, /) -> Any:
        self._in.checked("BlockDiagonalLinearOperator.mm", x, columns=True)
        return tuple([part.mm(v) for part, v in zip(self.operators, x, strict=True)])

    def _flat(self, x: Array) -> Array:
        return self.by_blocks(x, _applied)

    def by_blocks(self, x: Array, apply: Apply) -> Array:
        """Apply each block to its rows of columns (n, k)."""
        pieces, at = [], 0
        for part in self.operators:
            n = part.in_size if apply is _applied else part.out_size
            pieces.append(apply(part, x[at : at + n, :]))
            at += n
        dtype = xp.result_type(*pieces)
        return xp.concat([xp.astype(v, dtype, copy=False) for v in pieces], axis=0)

    @property
    def T(self) -> LinearOperator:
        return self if "symmetric" in self.tags else BlockDiagonalLinearOperator([x.T for x in self.operators])

    @property
    def H(self) -> LinearOperator:
        return self if "hermitian" in self.tags else BlockDiagonalLinearOperator([x.H for x in self.operators])

    def as_matrix(self) -> Array:
        rows: list[list[Any]] = [[None] * len(self.operators) for _ in self.operators]
        for i, part in enumerate(self.operators):
            rows[i][i] = part.as_matrix()
        return _assembled(rows, [x.shape for x in self.operators])

    def diagonal(self) -> Array:
        if any(x.shape[0] != x.shape[1] for x in self.operators):
            return super().diagonal()
        return xp.concat([xp.astype(x.diagonal(), self.dtype, copy=False) for x in self.operators])


def _assembled(rows: Sequence[Sequence[Any]], shapes: Sequence[tuple[int, int]]) -> Array:
    """Return a matrix of blocks, None for zeros; `shapes`: (the height of row i, the width of column i)."""
    known = [b for row in rows for b in row if b is not None]
    dtype, device = xp.result_type(*known), known[0].device
    pieces = []
    for i, row in enumerate(rows):
        height = shapes[i][0]
        pieces.append(
            xp.concat(
                [
                    xp.zeros((height, shapes[j][1]), dtype=dtype, device=device) if b is None else xp.astype(b, dtype)
                    for j, b in enumerate(row)
                ],
                axis=1,
            )
        )
    return xp.concat(pieces, axis=0)


class BlockLinearOperator(LinearOperator):
    """Operators in rows and columns, None for zero: of tuples with a vector for each column, to tuples for each row."""

    _fields = ("rows", "_given")
    _static = ("_given",)

    def __init__(self, rows: Sequence[Sequence[LinearOperator | None]], tags: Iterable[str] = ()) -> None:
        name = "BlockLinearOperator"
        self.rows = tuple([tuple([None if x is None else _operator(name, x) for x in row]) for row in rows])
        width = len(self.rows[0]) if self.rows else 0
        if not width or any(len(row) != width for row in self.rows):
            raise ValueError(f"{name}: expected rows of the same length, got {[len(row) for row in self.rows]}")
        for i, row in enumerate(self.rows):
            _check_same_structure(f"{name}: row {i}", "gives", [x._out for x in row if x is not None])
        for j in range(width):
            column = [x._in for row in self.rows if (x := row[j]) is not None]
            _check_same_structure(f"{name}: column {j}", "takes", column)
        devices = dict.fromkeys(str(x.device) for row in self.rows for x in row if x is not None)
        if len(devices) > 1:
            raise ValueError(f"{name}: the operators are on several devices ({', '.join(devices)})")
        self._given = tags_.closed(tags, self.dtype, self.shape, name)

    @property
    def _in(self) -> Structure:
        columns = zip(*self.rows, strict=True)
        return _tuple([next(x._in for x in column if x is not None) for column in columns])

    @property
    def _out(self) -> Structure:
        return _tuple([next(x._out for x in row if x is not None) for row in self.rows])

    @property
    def device(self) -> Device:
        return next(x.device for row in self.rows for x in row if x is not None)

    @property
    def _tags(self) -> Iterable[str]:
        return self._given

    def mv(self, x: Any, /) -> Any:
        self._in.checked("BlockLinearOperator.mv", x)
        return self._by_rows(lambda part, v: part.mv(v), x)

    def mm(self, x: Any, /) -> Any:
        self._in.checked("BlockLinearOperator.mm", x, columns=True)
        return self._by_rows(lambda part, v: part.mm(v), x)

    def _by_rows(self, apply: Callable[[LinearOperator, Any], Any], x: Any) -> Any:
        return tuple(
            [_added([apply(part, v) for part, v in zip(row, x, strict=True) if part is not None]) for row in self.rows]
        )

    @property
    def T(self) -> LinearOperator:
        if "symmetric" in self.tags:
            return self
        columns = zip(*self.rows, strict=True)
        return BlockLinearOperator(
            [[None if x is None else x.T for x in column] for column in columns], tags_.of_transpose(self._given)
        )

    @property
    def H(self) -> LinearOperator:
        if "hermitian" in self.tags:
            return self
        columns = zip(*self.rows, strict=True)
        return BlockLinearOperator(
            [[None if x is None else x.H for x in column] for column in columns], tags_.of_transpose(self._given)
        )

    def as_matrix(self) -> Array:
        heights = [next(x.out_size for x in row if x is not None) for row in self.rows]
        widths = [next(x.in_size for x in column if x is not None) for column in zip(*self.rows, strict=True)]
        rows = [[None if x is None else x.as_matrix() for x in row] for row in self.rows]
        size = max(len(heights), len(widths))
        padded = [(*heights, *[0] * size)[:size], (*widths, *[0] * size)[:size]]
        return _assembled(rows, list(zip(*padded, strict=True)))


def _check_same_structure(name: str, verb: str, structures: Sequence[Structure]) -> None:
    if not structures:
        raise ValueError(f"{name} has no operator, so that what it {verb} is unknown")
    for s in structures[1:]:
        if not _is_compatible(s, structures[0]):
            raise ValueError(f"{name}: an operator {verb} {structures[0]}, another one {s}")
