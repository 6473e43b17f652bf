"""Checks of values in the user's program: `assert`, `if ...: raise`, and what is done to numbers that are not finite. They
are no part of what it computes, and are left out of a trace, with a note."""

from __future__ import annotations

import ast

from tensorgraft.compiled.places import place_of
from tensorgraft.frontends.torch.core.places import program_frame
from tensorgraft.frontends.torch.sourced.backend import SourceRecording
from tensorgraft.hub.recorded.block import Var, variables


_FINITE = frozenset({"isfinite", "isnan", "isinf"})


def checked(recording: SourceRecording, asked: Var) -> str | None:
    """The check that is asking for a value now: its place and its line; None if something else is asking."""
    frame = program_frame()
    if frame is None:
        return None
    place = place_of(frame)
    node = place.node
    while node is not None and not isinstance(node, ast.stmt):
        node = getattr(node, "parent", None)
    if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and not node.orelse and _raises(node.body)):
        return f"{place}: `{place.text}`"
    if isinstance(node, ast.If) and not node.orelse and _is_about_numbers(recording, asked):
        return f"{place}: `{place.text}`"
    return None


def _is_about_numbers(recording: SourceRecording, asked: Var) -> bool:
    """It says of an array whether all of it is finite."""
    for _ in range(4):
        step = recording.makers.get(asked)
        if step is None or step.method in _FINITE:
            return step is not None
        arrays = list(variables([step.args, step.kwargs]))
        if len(arrays) != 1:
            return False
        asked = arrays[0]
    return False


def _raises(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Raise) and not any(isinstance(s, ast.Assign | ast.AugAssign) for s in body[:-1])
