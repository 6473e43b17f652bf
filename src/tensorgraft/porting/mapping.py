"""`Mapping`: which array of one network is which of another, and conversions by it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from collections.abc import Mapping as AbstractMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft import files
from tensorgraft.porting.checkpoints import Checkpoint, write
from tensorgraft.porting.converter import converter
from tensorgraft.porting.expressions import Concatenation, Expression, View, from_json, views
from tensorgraft.porting.resizing import resized

FORMAT = 1


@dataclass(frozen=True)
class Entry:
    """A parameter of the target, and what it is in the source."""

    target: str
    shape: tuple[int, ...]
    expression: Expression | None  # None: nothing is known
    note: str = ""

    @property
    def sources(self) -> list[str]:
        return [] if self.expression is None else list(dict.fromkeys(self.expression.sources()))

    @property
    def steps(self) -> str:
        """The array in NumPy's words."""
        return "" if self.expression is None else self.expression.code(lambda name: f"source[{name!r}]")


@dataclass
class Mapping:
    """An entry for each parameter of the target, in its order. `print(mapping)` shows a table."""

    entries: dict[str, Entry]
    unused: list[str] = field(default_factory=list)  # parameters of the source that no parameter of the target is
    ignored: list[str] = field(default_factory=list)  # other arrays of the source: counters, positions, names of ties
    aliases: dict[str, str] = field(default_factory=dict)  # further names of the source's arrays -> the name used here
    target_aliases: dict[str, str] = field(default_factory=dict)  # further names of the target's
    source_name: str = "source"
    target_name: str = "target"
    idle: list[str] = field(default_factory=list)  # parameters of the target that its program does not use

    @property
    def unmatched(self) -> list[str]:
        """Parameters of the target of which nothing is known."""
        return [name for name, entry in self.entries.items() if entry.expression is None]

    def __getitem__(self, target: str) -> Entry:
        return self.entries[target]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    def __str__(self) -> str:
        rows = [(self.target_name, "shape", self.source_name)]
        for e in self:
            text = "(unmatched)" if e.expression is None else e.expression.code(str)
            rows.append((e.target, "x".join(map(str, e.shape)), text + (f"  # {e.note}" if e.note else "")))
        widths = [max(len(row[k]) for row in rows) for k in range(2)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c}".rstrip() for a, b, c in rows]
        lines.insert(1, "-" * max(map(len, lines[:1])))
        lines += [f"not used of {self.source_name}: {name}" for name in self.unused]
        lines += [f"not used by {self.target_name}: {name}" for name in self.idle]
        return "\n".join(lines)

    # ---- files -----------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the mapping as JSON."""
        entries = [
            {"target": e.target, "shape": e.shape, "note": e.note,
             "expression": None if e.expression is None else e.expression.json()}
            for e in self
        ]  # fmt: skip
        names = ("unused", "ignored", "aliases", "target_aliases", "idle", "source_name", "target_name")
        data = {"format": FORMAT, **{n: getattr(self, n) for n in names}, "entries": entries}
        files.write(os.fspath(path), json.dumps(data, indent=1).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Mapping:
        """Read what `save` wrote. Raises ValueError for files of another format."""
        with open(path) as file:
            text = file.read()
        try:
            data = json.loads(text)
        except ValueError:
            data = None
        if not isinstance(data, dict) or data.pop("format", None) != FORMAT:
            raise ValueError(f"{os.fspath(path)} is no mapping of tensorgraft")
        entries = {
            e["target"]: Entry(
                e["target"],
                tuple(e["shape"]),
                None if e["expression"] is None else from_json(e["expression"]),
                e["note"],
            )
            for e in data.pop("entries")
        }
        return cls(entries, **data)

    # ---- other sizes -----------------------------------------------------------------------------------------------

    def resized(self, source: Any, target: Any, sizes: AbstractMapping[int, int] | None = None) -> Mapping:
        """The mapping for the same networks at another size, with other numbers of layers.

        A large network needs no trace: find the mapping with small ones (two layers, sizes that are all different), and
        write it for the shapes of the large ones.

        Args:
            source: the large checkpoint: a file, a folder of them, arrays or shapes by name, or a JSON file of shapes.
            target: the large target's arrays or shapes by name, in one of the same forms.
            sizes: small sizes -> large ones, for what shapes do not show: `{heads: heads of the large network}`.

        Raises ValueError with a line for each row that cannot be written for the other size: names that are like none
        of the mapping's, layers whose number is not known, sizes that are not known or are several.
        """
        self._require_whole()
        found: Mapping = resized(self, source, target, sizes)
        return found

    # ---- conversion ------------------------------------------------------------------------------------------------

    def convert(
        self, checkpoint: Any, path: str | os.PathLike[str] | None = None, *, dtype: Any = None
    ) -> dict[str, np.ndarray] | None:
        """The target's arrays, from a checkpoint of the source's network.

        Args:
            checkpoint: arrays by name, a safetensors file, a folder of such files, or a PyTorch file.
            path: a safetensors file to write, one array at a time; None returns the arrays.
            dtype: of the results; None keeps that of the checkpoint's arrays.

        Raises ValueError, before anything is written, where arrays are missing, are not of the network, have other
        shapes, or where `dtype` would lose digits; and where the mapping has unmatched parameters.
        """
        self._require_whole()
        arrays = Checkpoint(checkpoint)
        self._check(arrays)
        get = _Reader(arrays, self.aliases)
        dtypes = {e.target: _dtype_of(e, arrays, get, dtype) for e in self}
        if path is None:
            out = {e.target: np.ascontiguousarray(e.expression(get), dtypes[e.target]) for e in self}  # type: ignore[misc]
            return out | {alias: out[name] for alias, name in self.target_aliases.items() if name in out}
        entries = [(e.target, dtypes[e.target], e.shape) for e in self]
        write(path, entries, lambda name: _parts(self.entries[name].expression, get))
        return None

    def _require_whole(self) -> None:
        if self.unmatched:
            raise ValueError(
                f"no array of {self.source_name} is known for {_listed(self.unmatched)} of {self.target_name}: give"
                " hints to tg.port"
            )

    def _check(self, arrays: Checkpoint) -> None:
        required = {name for e in self for name in e.sources}
        names = {self.aliases.get(name, name) for name in arrays}
        if missing := sorted(required - names):
            raise ValueError(f"{arrays.title} lacks {_listed(missing)}, which {self.target_name} needs")
        if strange := sorted(names - required - {*self.unused, *self.ignored}):
            raise ValueError(f"{arrays.title} has {_listed(strange)}, of which {self.source_name} has none")

    def source(self) -> str:
        """A converter: a Python file that needs NumPy and safetensors alone. Raises as `convert`."""
        self._require_whole()
        steps = {e.target: e.steps for e in self}
        return converter(self.source_name, self.target_name, steps, self.aliases, self.target_aliases)


class _Reader:
    """Reads arrays of a checkpoint, and keeps the last one."""

    def __init__(self, arrays: AbstractMapping[str, Any], aliases: AbstractMapping[str, str]) -> None:
        self._arrays = arrays
        self._names = {aliases.get(name, name): name for name in arrays} | {name: name for name in arrays}
        self._last: tuple[str, np.ndarray] | None = None

    def __call__(self, name: str) -> np.ndarray:
        if self._last is None or self._last[0] != name:
            self._last = None
            self._last = name, self._arrays[self._names[name]]()
        return self._last[1]

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], np.dtype]:
        slot = self._arrays[self._names[name]]
        x = slot if hasattr(slot, "dtype") else self(name)
        return tuple(x.shape), np.dtype(x.dtype)


def _dtype_of(entry: Entry, arrays: Checkpoint, get: _Reader, wanted: Any) -> np.dtype:
    """The dtype of a result. Raises ValueError for other shapes, and where digits would be lost."""
    found = []
    for view in views(entry.expression):
        shape, dtype = get.shape_and_dtype(view.source)
        if shape != view.source_shape:
            raise ValueError(
                f"{view.source} has shape {shape} in {arrays.title}, and {view.source_shape} in the network that was"
                f" ported: {entry.target} cannot be made of it"
            )
        found.append(dtype)
    dtype = np.result_type(*found) if found else np.dtype(np.float32)
    if wanted is None:
        return dtype
    wanted = np.dtype(wanted)
    if np.result_type(dtype, wanted) != wanted and dtype != wanted:
        raise ValueError(f"{entry.target} would lose digits: the checkpoint has {dtype}, not {wanted}")
    return wanted


def _parts(expression: Expression | None, get: _Reader) -> Iterator[np.ndarray]:
    """The elements of an array in order, in parts that are not copied before they are written."""
    if isinstance(expression, View):
        yield expression.unshaped(get)
    elif isinstance(expression, Concatenation) and expression.axis == 0:
        for part in expression.parts:
            yield from _parts(part, get)
    elif expression is not None:
        yield expression(get)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
