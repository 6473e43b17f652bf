"""Names of arrays in a checkpoint where those in the classes are others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorgraft.codegen.styles.classes import Classes


def table_of_names(style: Classes) -> tuple[list[str], Callable[[str], str], bool]:
    """Return (the text of a table, the expression that looks up a name of the classes in it, whether there is a
    table)."""
    ties, renamed, unused = style.names()
    stored = {p: p for p in style.trace.weights if p not in unused and p not in renamed}
    stored |= {**ties, **{new: old for old, new in renamed.items()}}
    names_in_file = {style.parameter_name(p): name for p, name in stored.items()}
    stored = {p: name for p, name in names_in_file.items() if p != name}
    if not stored:
        return [], lambda name: name, False
    lines = ",\n    ".join(f"{k!r}: {v!r}" for k, v in stored.items())
    return [f"# arrays that have another name in the original\nSTORED = {{\n    {lines},\n}}"], _looked_up, True


def _looked_up(name: str) -> str:
    return f"STORED.get({name}, {name})"
