"""Detection of recurring pieces of a program: lazy mode records these, and computes the rest at once.

A piece is the operations between two ends (a value is read, an optimizer has stepped). An operation is identified
together with all earlier ones of its piece, so that a piece is distinguished from others at their first difference. A
piece is recorded from its first operation on if the most frequent piece with this beginning has been completed `TIMES`
times. Several pieces may have the same beginning: if the continuation was new too often (shapes that change each time),
the beginning is always computed at once, and the operations after it count as the start of a piece.
"""

from __future__ import annotations

from typing import Any

# A compilation takes about 50 ms for each operation of a piece, computing it at once 0.2 ms and more: so often, it is a
# tenth of what the piece has cost.
TIMES = 2048
RARE = 8  # a change that is new in so few passes does not split a piece
_MOST = 1 << 18  # operations that are counted


class _Pass:
    """An operation, and all before it in its piece."""

    __slots__ = ("count", "news", "parted", "usual")

    def __init__(self) -> None:
        self.count = 0
        self.news = 0  # passes that went on as none had before
        self.parted = False  # a beginning that pieces have in common
        self.usual: _Pass = self  # the end of the piece that began with it most often


class Pieces:
    """The operations of a program, as they come."""

    def __init__(self) -> None:
        self._known: dict[int, _Pass] = {}
        self._ended_at: dict[_Pass, int] = {}  # {pass: how often pieces ended there}
        self._path: list[_Pass] = []  # from the beginning of the piece
        self._at = 0
        self._recorded = False

    def is_hot(self, operation: Any) -> bool:
        """Count the next operation, which is hashable, and return True if it is to be recorded."""
        at = self._at = hash((self._at, operation))
        current = self._known.get(at)
        if current is None:
            current = self._new(at)
        at_start = not self._path or self._path[-1].parted
        if self._recorded or at_start:
            self._recorded = self._comes_back(current)
        current.count += 1
        self._path.append(current)
        return self._recorded

    def _comes_back(self, current: _Pass) -> bool:
        if current.parted or self._ended_at.get(current.usual, 0) < TIMES:
            return False
        if current.news * RARE <= current.count or self._recorded:
            return True
        current.parted = current.count >= TIMES + RARE
        return False

    def _new(self, at: int) -> _Pass:
        """Note that this piece continues in a new way, and return the pass that begins there."""
        if len(self._known) >= _MOST:
            self._known.clear()
            self._ended_at.clear()
        if self._path and self._path[-1].count > 1:
            for earlier_pass in self._path:
                earlier_pass.news += 1
        new_pass = self._known[at] = _Pass()
        return new_pass

    def end(self) -> None:
        counts = self._ended_at
        if self._path:
            last = self._path[-1]
            times = counts[last] = counts.get(last, 0) + 1
            for current in self._path:
                if times >= counts.get(current.usual, 0):
                    current.usual = last
            self._path = []
        self._at, self._recorded = 0, False
