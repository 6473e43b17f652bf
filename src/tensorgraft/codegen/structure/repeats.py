"""Calls in a row of modules of one list, each fed by the one before, as a loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tensorgraft.codegen.structure.functions import Invoke, Repeat, SourceFunction
from tensorgraft.codegen.trace import SourceStep, Var, variables


def fold(function: SourceFunction) -> None:
    """Rows of invokes as loops."""
    calls: list[SourceStep | Repeat] = []
    used: Counter[Var] = Counter(function.results)
    for call in function.calls:
        assert isinstance(call, SourceStep)
        used.update(variables([call.args, call.kwargs]))
    i = 0
    while i < len(function.calls):
        row = _row(function.calls, i, used)
        if row is not None:
            calls.append(row)
            i += len(row.invokes)
        else:
            calls.append(function.calls[i])
            i += 1
    function.calls = calls


def _row(calls: Sequence[Any], i: int, used: Counter[Var]) -> Repeat | None:
    first = calls[i]
    if not isinstance(first, Invoke) or not first.path or not first.path[-1].isdigit():
        return None
    start = int(first.path[-1])
    row = [first]
    common_links: list[tuple[int, int]] | None = None
    for call in calls[i + 1 :]:
        last = row[-1]
        if (
            not isinstance(call, Invoke)
            or call.function is not first.function
            or call.path != (*first.path[:-1], str(start + len(row)))
            or repr(call.statics) != repr(first.statics)
        ):
            break
        links = [(last.results.index(a), j) for j, a in enumerate(call.args) if a in last.results]
        rest = all(a is b for j, (a, b) in enumerate(zip(call.args, last.args, strict=True))
                   if j not in {k for _, k in links})  # fmt: skip
        if not links or not rest or (common_links is not None and links != common_links):
            break
        if any(used[v] - call.args.count(v) > 0 for v in last.results):
            break  # an intermediate value is used elsewhere
        common_links = links
        row.append(call)
    if len(row) < 2 or common_links is None:
        return None
    passed = {r for r, _ in common_links}
    if any(used[v] for k, v in enumerate(row[-1].results) if k not in passed):
        return None
    return Repeat(row, first.path[:-1], start, common_links)
