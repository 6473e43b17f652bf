"""Operations for which a target has no words, as what they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorgraft.codegen.calls import CannotBeSaidError, bound
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import Block, Frame, SourceStep, SourceTrace, Tree, Var, prune, variables
from tensorgraft.codegen.words import WORDS
from tensorgraft.hub.operations import operations
from tensorgraft.hub.recorded.tracing import program_backend

MOST = 2  # operations that are written in the place of one; more are a function of its name


def expand(trace: SourceTrace, target: Target) -> None:
    """Write the trace in the operations and words that the target has. Raises CannotBeSaidError for a primitive that it
    lacks."""
    expander = _Expander(target)
    expander.frame(trace.root)
    trace.result = expander.substituted(trace.result)
    trace.written = expander.substituted(trace.written)
    prune(trace)


class _Expander:
    def __init__(self, target: Target) -> None:
        self.words = target.words
        self.target = target
        self.stands: dict[Var, Var] = {}

    def substituted(self, tree: Tree) -> Any:
        if isinstance(tree, Var):
            while tree in self.stands:
                tree = self.stands[tree]
            return tree
        if isinstance(tree, tuple | list):
            return type(tree)([self.substituted(x) for x in tree])
        if isinstance(tree, dict):
            return {k: self.substituted(x) for k, x in tree.items()}
        if isinstance(tree, Block):
            calls = list(self.calls(tree.calls, ""))
            return Block(tree.parameters, [*calls], self.substituted(tree.result))
        return tree

    def frame(self, frame: Frame) -> None:
        calls: list[SourceStep | Frame] = []
        for call in frame.calls:
            if isinstance(call, Frame):
                call.arguments = [(n, self.substituted(t)) for n, t in call.arguments]
                self.frame(call)
                calls.append(call)
                continue
            expanded = list(self.calls([call], call.place))
            if len(expanded) > MOST:
                arguments = [(n, self.substituted(v)) for n, v in bound(call.method, call.args, call.kwargs).items()]
                result = self.substituted(call.outcome)
                calls.append(Frame(call.method, "", [*expanded], arguments, result, call.names, call.place))
            else:
                if expanded and call.names and len(expanded) == 1:
                    expanded[0].names = call.names
                calls += expanded
        frame.calls = calls
        frame.result = self.substituted(frame.result)

    def calls(self, calls: Any, place: str) -> Iterator[SourceStep]:
        for call in calls:
            args, kwargs = self.substituted(call.args), self.substituted(call.kwargs)
            if call.method in self.words:
                names = getattr(call, "names", ())
                yield SourceStep(call.method, args, kwargs, call.outcome, names, getattr(call, "place", place))
                continue
            fn = WORDS.get(call.method) or operations()[call.method]
            xp = program_backend()
            try:
                with xp.recording() as inner:
                    out = fn(xp, *args, **kwargs)
            except NotImplementedError:
                raise CannotBeSaidError(
                    f"{call.method} cannot be written in {self.target.name}{f' ({place})' if place else ''}"
                ) from None
            yield from self.calls(inner, place)
            for old, new in zip(variables(call.outcome), variables(_listed(out)), strict=True):
                self.stands[old] = new


def _listed(out: Any) -> Any:
    return tuple(out) if isinstance(out, list | tuple) else out
