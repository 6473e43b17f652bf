"""Keys of random numbers: who draws once needs no split."""

from __future__ import annotations

from typing import Any

from tensorgraft.codegen.trace import Frame, SourceStep, SourceTrace, steps
from tensorgraft.hub.recorded.block import Var, variables


def join_keys(trace: SourceTrace) -> None:
    """Use a key itself if it is used only for a single split. (The key of the last of several draws is split, too, so
    that similar calls remain similar.)"""
    used = {v for step in steps(trace.root) for v in variables([step.args, step.kwargs])}
    rests = {step.results[0] for step in steps(trace.root) if step.method == "split_key"}
    replacements: dict[Var, Var] = {}
    for step in steps(trace.root):
        if step.method == "split_key" and step.results[0] not in used and step.args[0] not in rests:
            replacements[step.results[1]] = step.args[0]
    if replacements:
        _replace(trace.root, replacements)


def _replace(frame: Frame, replacements: dict[Var, Var]) -> None:
    def replaced(x: Any) -> Any:
        while type(x) is Var and x in replacements:
            x = replacements[x]
        return type(x)(map(replaced, x)) if type(x) in (tuple, list) else x

    calls: list[SourceStep | Frame] = []
    for call in frame.calls:
        if isinstance(call, Frame):
            call.arguments = [(name, replaced(value)) for name, value in call.arguments]
            _replace(call, replacements)
        elif call.method == "split_key" and call.results[1] in replacements:
            continue
        else:
            call.args, call.kwargs = replaced(call.args), {name: replaced(x) for name, x in call.kwargs.items()}
        calls.append(call)
    frame.calls = calls
