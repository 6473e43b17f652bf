"""A trace with frames, simplified frame by frame: what a frame does stays in it."""

from __future__ import annotations

from typing import Any

from tensorgraft.hub.recorded.tracing import program_backend
from tensorgraft.source import idioms, simplifying
from tensorgraft.source.rewriting import Rewritten, rewrite, tuple_of_arrays
from tensorgraft.source.trace import Call, Frame, Step, Trace, given, taken, variables

# what becomes of steps in the words of their source is the front end's matter; here go only noises of kernels
TABLES = (simplifying.RULES, idioms.SAID, simplifying.LAST)


def simplify(trace: Trace) -> None:
    _frame(trace.root, (trace.result, trace.written), replaced := Rewritten())
    trace.result = _arrays(replaced(trace.result))
    trace.written = _arrays(replaced(trace.written))


def _frame(frame: Frame, more: Any, everything: Rewritten) -> None:
    """`more`: what is used outside beside what the frame gives."""
    xp = program_backend()
    opaque: dict[int, Frame] = {}
    calls: list[Call] = []
    for call in frame.calls:
        if isinstance(call, Frame):
            inputs = tuple(dict.fromkeys(taken(call)))
            # the name is nobody's rule; the outcome is whatever is made inside and may be used outside
            stand_in = Call("frame", inputs, {}, tuple(_made(call)))
            opaque[id(stand_in)] = call
            calls.append(stand_in)
        else:
            calls.append(call)
    results: Any = [tuple(given(frame)), tuple(variables(more))]
    for table in TABLES:
        calls, replaced = rewrite(xp, calls, results, table)
        everything.instead.update(replaced.instead)
        results = tuple_of_arrays_in(replaced(results))
        for call in calls:
            inner = opaque.get(id(call))
            if inner is not None:
                _substitute(inner, replaced)
    frame.result = _arrays(everything(frame.result))
    frame.left = _arrays(everything(frame.left))
    frame.calls = []
    for call in calls:
        inner = opaque.get(id(call))
        if inner is not None:
            used = {v for c in calls if c is not call for v in variables([c.args, c.kwargs])}
            _frame(inner, tuple(v for v in _made(inner) if v in used or v in set(variables(results))), everything)
            frame.calls.append(inner)
        elif isinstance(call, Step):
            frame.calls.append(call)
        else:
            frame.calls.append(Step(call.method, call.args, call.kwargs, call.outcome, (), getattr(call, "place", "")))


def _made(frame: Frame) -> list[Any]:
    made = []
    for call in frame.calls:
        made += _made(call) if isinstance(call, Frame) else list(variables(call.outcome))
    return made


def _substitute(frame: Frame, replaced: Rewritten) -> None:
    frame.arguments = [(n, replaced(t)) for n, t in frame.arguments]
    for call in frame.calls:
        if isinstance(call, Frame):
            _substitute(call, replaced)
        else:
            call.args, call.kwargs = replaced(call.args), replaced(call.kwargs)
    frame.result = _arrays(replaced(frame.result))


def tuple_of_arrays_in(results: Any) -> Any:
    return [tuple_of_arrays(program_backend(), t) for t in results]


def _arrays(tree: Any) -> Any:
    """Results that became numbers stay arrays."""
    if isinstance(tree, tuple):
        return tuple([_arrays(x) for x in tree])
    if isinstance(tree, list):
        return [_arrays(x) for x in tree]
    if isinstance(tree, dict):
        return {k: _arrays(x) for k, x in tree.items()}
    return tree
