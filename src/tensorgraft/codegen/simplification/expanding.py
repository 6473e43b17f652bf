"""Expansion of operations that a target has no rule for into the operations of their composite. If that is more than an
expression, it becomes a function of the file whose variables have the hub's names."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tensorgraft.codegen.recorders.call_recorder import first_sentence
from tensorgraft.codegen.recorders.calls import NotExpressibleError, bound
from tensorgraft.codegen.targets import Target
from tensorgraft.codegen.trace import Block, Frame, HubName, SourceStep, SourceTrace, Tree, Var, prune, variables
from tensorgraft.codegen.words import definition
from tensorgraft.hub.recorded.tracing import program_backend

MOST = 2  # operations that are written in the place of one; more are a function of its name


def expand(trace: SourceTrace, target: Target) -> None:
    """Write the trace in the operations and words that the target has.

    Raises NotExpressibleError for a primitive that it lacks."""
    expander = _Expander(target)
    expander.frame(trace.root)
    trace.result = expander.substituted(trace.result)
    trace.written = expander.substituted(trace.written)
    prune(trace)


class _Expander:
    def __init__(self, target: Target) -> None:
        self.rules = target.rules
        self.target = target
        self.stands: dict[Var, Var] = {}
        self.names: dict[Var, str] = {}  # {array of the written function: the variable to which it was assigned}
        self.arguments: dict[Var, str] = {}  # the parameter that each was given as

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
            calls = [*self.calls(tree.calls, "")]
            self.name(calls)
            names = tree.names or tuple(
                self.names.get(v, self.arguments.get(v, "")) for v in variables(tree.parameters)
            )
            return Block(tree.parameters, [*calls], self.substituted(tree.result), names)
        return tree

    def name(self, calls: list[SourceStep]) -> None:
        for step in calls:
            step.names = step.names or tuple(self.names.get(v, "") for v in variables(step.results))

    def frame(self, frame: Frame) -> None:
        calls: list[SourceStep | Frame] = []
        for call in frame.calls:
            if isinstance(call, Frame):
                call.arguments = [(n, self.substituted(t)) for n, t in call.arguments]
                self.frame(call)
                calls.append(call)
                continue
            expanded = [*self.calls([call], call.place)]
            if len(expanded) > MOST or any(isinstance(x, Block) for step in expanded for x in step.args):
                self.name(expanded)
                arguments = [(n, self.substituted(v)) for n, v in bound(call.method, call.args, call.kwargs).items()]
                result = self.substituted(call.results)
                doc = first_sentence(definition(call.method).__doc__)
                names = call.names
                if not any(names) and isinstance(result, tuple):
                    names = tuple(self.names.get(v, "") for v in variables(result))
                calls.append(Frame(HubName(call.method), "", [*expanded], arguments, result, names, call.place, doc))
            else:
                if expanded and call.names and len(expanded) == 1:
                    expanded[0].names = call.names
                calls += expanded
        frame.calls = calls
        frame.result = self.substituted(frame.result)

    def calls(self, calls: Any, location: str) -> Iterator[SourceStep]:
        for call in calls:
            args, kwargs = self.substituted(call.args), self.substituted(call.kwargs)
            if call.method in self.rules:
                names = getattr(call, "names", ())
                yield SourceStep(call.method, args, kwargs, call.results, names, getattr(call, "place", location))
                continue
            fn = definition(call.method)
            xp = program_backend()
            try:
                with xp.recording() as inner, _variables(fn, self.names, self.arguments):
                    out = fn(xp, *args, **kwargs)
            except NotImplementedError:
                raise NotExpressibleError(
                    f"{call.method} cannot be written in {self.target.name}{f' ({location})' if location else ''}"
                ) from None
            for old, new in zip(variables(call.results), variables(_listed(out)), strict=True):
                self.stands[old] = new
                if old in self.names:
                    self.names[new] = self.names[old]
            yield from self.calls(inner, getattr(call, "place", "") or location)


@contextlib.contextmanager
def _variables(fn: Callable[..., Any], names: dict[Var, str], arguments: dict[Var, str]) -> Iterator[None]:
    """Inside the context, note the variables to which the functions in the file of `fn` assign arrays, and their
    arguments."""
    before = sys.gettrace()

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != fn.__code__.co_filename:
            return None
        local_vars = dict(frame.f_locals)
        for name, x in local_vars.items():
            if type(x) is Var:
                arguments.setdefault(x, name)

        def line(frame: Any, event: str, arg: Any) -> Any:
            for name, x in frame.f_locals.items():
                if type(x) is Var and local_vars.get(name) is not x and not name.startswith("_"):
                    names.setdefault(x, HubName(name))
            return line

        return line

    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(before)


def _listed(out: Any) -> Any:
    return tuple(out) if isinstance(out, list | tuple) else out
