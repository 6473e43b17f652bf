"""Changes that a function has made to a table, and their repetition."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

from tensorgraft.compiled.tables import Table, drop, entry_of, put, reorder
from tensorgraft.compiled.values import is_same_value, is_scalar


@dataclass(slots=True)
class Change:
    """A change that a function has made to one table. `new` has the new values in the order of their positions."""

    table: Table
    new: list[Any]
    keys: list[Any]  # keys of a dict with new values
    dropped: list[Any]  # keys, or elements of a set
    # of a sequence that is rebuilt: positions of old elements, None for a new one
    order: list[int | None] | None = None
    counts: dict[Any, Any] | None = None  # {key of a number that is incremented: by how much, None: by the new value}
    moved: list[Any] | None = None  # keys of a dict in their new order

    def apply(self, of: Any, new: Sequence[Any]) -> None:
        """Make the same change to `of`, the table of a later call, with the new values of that call."""
        if isinstance(of, set):
            of.difference_update(self.dropped)
            of.update(new)
        elif isinstance(of, list | deque):
            if self.order is None:
                of.extend(new)
                return
            new_values = iter(new)
            elements = list(of)
            new_elements = [next(new_values) if k is None else elements[k] for k in self.order]
            of.clear()
            of.extend(new_elements)
        else:
            counts = self.counts or {}
            for key in self.dropped:
                drop(of, key)
            for key, value in zip(self.keys, new, strict=True):
                by = counts.get(key)
                put(of, key, entry_of(of, key) + (value if by is None else by) if key in counts else value)
            if self.moved is not None:
                reorder(of, self.moved)


def change_of(table: Table) -> Change | None:
    """Compare a table with its entries before the trace. Return the change, or None if there is none."""
    before, after = table.before if table.start is None else table.start, table.entries()
    if isinstance(before, set):
        new, dropped = [v for v in after if v not in before], [v for v in before if v not in after]
        return Change(table, new, [], dropped) if new or dropped else None
    if isinstance(before, list):
        n = len(before)
        if len(after) == n and all(map(is_, after, before)):
            return None
        full = len(after) == getattr(table.of, "maxlen", None)  # appending drops the first elements
        left = next((before[k:] for k in range(n + 1 if full else 1) if _has_prefix(after, before[k:])), None)
        if left is not None and not (full and any(map(is_scalar, left))):  # equal numbers may have been appended again
            return Change(table, after[len(left) :], [], [])
        positions = {id(v): k for k, v in reversed(list(enumerate(before)))}
        order = [k if k < n and before[k] is v else positions.get(id(v)) for k, v in enumerate(after)]
        return Change(table, [v for v, k in zip(after, order, strict=True) if k is None], [], [], order)
    if len(after) == len(before) and all(map(is_, after.values(), before.values())) and list(after) == list(before):
        return None
    keys = [k for k, v in after.items() if k not in before or not (before[k] is v or is_same_value(before[k], v))]
    dropped = [k for k in before if k not in after]
    in_order = [k for k in before if k in after] + [k for k in keys if k not in before]
    moved = list(after) if isinstance(table.of, dict) and in_order != list(after) else None
    return Change(table, [after[k] for k in keys], keys, dropped, moved=moved) if keys or dropped or moved else None


def _has_prefix(entries: list[Any], left: list[Any]) -> bool:
    return len(entries) >= len(left) and all(map(is_, entries, left))
