"""A forecast as text."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console, Group
from rich.table import Column
from rich.text import Text

from tensorgraft.compiled.rendering import quantity, size, table
from tensorgraft.parallel.figures import ForecastFigures

_MOST_ROWS = 12


def as_text(f: ForecastFigures, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(_rendered(f))
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]


def _rendered(f: ForecastFigures) -> Group:
    parts: list[Any] = [Text(f"{f.explanation.name} on a {f.mesh}", style="bold")]
    names = ("parameters", "gradients", "optimizer", "buffers", "inputs", "temporary", "total")
    rows = [(name, size(getattr(f, name))) for name in names]
    parts.append(table("memory of a device", rows, "", Column("bytes", justify="right")))
    parts.append(table("work of a device", [("FLOPs", quantity(f.flops))], "", ""))
    total = size(sum(x.bytes for x in f.exchanges))
    exchange_rows = [
        (x.kind, ", ".join(x.axes), str(x.times), size(x.bytes), f"{x.operator}{' (backward)' * x.backward}", x.place,
         x.advice)
        for x in f.exchanges[:_MOST_ROWS]
    ]  # fmt: skip
    right = [Column(name, justify="right") for name in ("times", "bytes")]
    title = f"between devices: {sum(x.times for x in f.exchanges)} collectives, {total} on each"
    parts.append(table(title, exchange_rows, "kind", "along", *right, "operator", "line", "what would lower it"))
    return Group(*parts)
