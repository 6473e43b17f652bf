"""The report of an export, which is kept beside the file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field

from tensorgraft.codegen.program import SizeGroup
from tensorgraft.codegen.verification.checking import Row


@dataclass
class ArrayDescription:
    """An input or a result of a file: its name, its dtype, and its extents, of which open ones are symbols."""

    name: str
    dtype: str
    shape: list[int | str]

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass
class ExportReport:
    """A report on an exported file: its inputs, the sizes that it takes, and how far its results are from those of the
    program. `print(report)` shows a table."""

    program: str
    format: str
    path: str
    conversion: str  # "native", "tg.source", "tg.graft", "trace"
    inputs: list[ArrayDescription]
    outputs: list[ArrayDescription]
    sizes: list[SizeGroup]
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    options: dict[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def __str__(self) -> str:
        lines = [f"{self.program} as {self.format}: {self.path} ({self.conversion})"]
        lines += [f"  input   {x}" for x in self.inputs]
        lines += [f"  result  {x}" for x in self.outputs]
        lines += [str(group) for group in self.sizes]
        lines += [str(row) for row in self.rows]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)

    def json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "ok": self.ok}, indent=1)
