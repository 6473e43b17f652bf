"""Checks of values in the user's program: `assert`, `if ...: raise`, and the handling of numbers that are not finite.

They do not affect its results, and are left out of a trace, with a note.
"""

from __future__ import annotations

import ast

from tensorgraft.compiled.source_location import place_of
from tensorgraft.frontends.torch.core.source_location import program_frame

_FINITE = frozenset({"isfinite", "isnan", "isinf"})


def checked() -> str | None:
    """Return the check that is asking for a value now: its place and its line; None if something else is asking."""
    frame = program_frame()
    if frame is None:
        return None
    location = place_of(frame)
    node = location.node
    while node is not None and not isinstance(node, ast.stmt):
        node = getattr(node, "parent", None)
    is_check = isinstance(node, ast.Assert) or (
        isinstance(node, ast.If) and not node.orelse and (_raises(node.body) or _is_about_numbers(node.test))
    )
    return location.quoted if is_check else None


def _is_about_numbers(condition: ast.expr) -> bool:
    """Return whether a condition asks if something is finite."""
    return any(isinstance(n, ast.Attribute | ast.Name) and _call_name(n) in _FINITE for n in ast.walk(condition))


def _call_name(part: ast.Attribute | ast.Name) -> str:
    return part.attr if isinstance(part, ast.Attribute) else part.id


def _raises(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Raise) and not any(isinstance(s, ast.Assign | ast.AugAssign) for s in body[:-1])
