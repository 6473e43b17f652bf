"""Recorded steps, made readable, in the frames of the calls that they come from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import jax

from tensorgraft.codegen import idioms, simplifying
from tensorgraft.codegen.rewriting import Rewritten, live, rewrite
from tensorgraft.codegen.trace import Frame, SourceStep, given, taken
from tensorgraft.frontends.jax.codegen.recording import Recording
from tensorgraft.frontends.jax.codegen.said import KeyData
from tensorgraft.frontends.jax.codegen.watching import Called, CallWatch
from tensorgraft.frontends.jax.keys import Keys
from tensorgraft.hub.recorded.block import Call, Tree, Var, variables

_SIMPLE = 2  # steps: a module of a library that does no more than that is what it does


def framed(
    recording: Recording,
    watch: CallWatch,
    calls: list[Call],
    results: Tree,
    arguments: list[tuple[str, Tree]],
    name: str,
) -> tuple[Frame, Tree]:
    """(the program's frame, the results after what became of them)."""
    rules = {m: [*simplifying.RULES.get(m, []), *idioms.RULES.get(m, [])] for m in (*simplifying.RULES, *idioms.RULES)}
    replaced = []
    for table in (rules, idioms.SAID | {"add": [*simplifying.RULES["add"], *idioms.RULES["add"]]}, simplifying.LAST):
        calls, some = rewrite(recording.xp, calls, results, table)
        replaced.append(some)
        results = _arrays(recording, some(results))
    calls = live(calls, results)
    recording.used = {*variables(results), *(v for c in calls for v in variables([c.args, c.kwargs]))}
    root = _Numbered(name, "", arguments=arguments, result=results[0])
    _nest(root, calls, 0, watch)
    _dissolve(root)
    _unwrap(root)
    _outcomes(root, set(variables(results)))
    naming = _Naming(recording, watch, replaced)
    naming.name(root)
    renamed = {v: n for n, x in root.own_arguments for v in [naming.filled(x)] if type(v) is Var}
    root.arguments[:] = [(renamed.get(x, n) if type(x) is Var else n, x) for n, x in arguments]
    return root, results


def _arrays(recording: Recording, tree: Any) -> Any:
    """Results that are numbers, as constants."""
    if isinstance(tree, tuple):
        return tuple([_arrays(recording, x) for x in tree])
    if isinstance(tree, list):
        return [_arrays(recording, x) for x in tree]
    if isinstance(tree, dict):
        return {k: _arrays(recording, x) for k, x in tree.items()}
    return tree


@dataclass(eq=False)
class _Numbered(Frame):
    number: int = -1  # of the call that was watched; -1: the program
    own_arguments: list[tuple[str, Any]] = field(default_factory=list)  # of the model that the program calls


# ---- frames ----------------------------------------------------------------------------------------------------------


def _nest(frame: _Numbered, calls: list[Any], depth: int, watch: CallWatch) -> None:
    """Steps that come one after the other from one call are in a frame of it."""
    inner: _Numbered | None = None
    rest: list[Any] = []
    last = -1

    def close() -> None:
        if inner is not None:
            _nest(inner, rest, depth + 1, watch)

    for step in calls:
        scope = getattr(step, "scope", ())
        here = scope[depth] if len(scope) > depth else -1
        if here == -1:
            close()
            inner, rest, last = None, [], -1
            frame.calls.append(step)
            continue
        if here != last or inner is None:
            close()
            called = watch.called[here]
            inner, rest, last = _frame(called, here), [], here
            frame.calls.append(inner)
        rest.append(step)
    close()


def _frame(called: Called, number: int) -> _Numbered:
    return _Numbered(
        called.kind,
        called.name,
        arguments=list(called.arguments),
        place=called.place,
        doc=called.doc,
        path=called.path,
        is_module=called.is_module,
        number=number,
    )


def _dissolve(frame: Frame) -> None:
    """Modules of libraries that are a few steps are these steps."""
    calls: list[Any] = []
    for call in frame.calls:
        if isinstance(call, Frame):
            _dissolve(call)
            if not call.calls:
                continue
            plain = len(call.calls) <= _SIMPLE and not any(isinstance(c, Frame) for c in call.calls)
            if plain and call.kind in _library_classes():
                calls.extend(call.calls)
                continue
        calls.append(call)
    frame.calls = calls


def _unwrap(root: _Numbered) -> None:
    """A program that only calls its model is the model."""
    while len(root.calls) == 1 and isinstance(only := root.calls[0], _Numbered) and not only.path:
        root.calls, root.number = only.calls, only.number
        root.kind, root.doc, root.place, root.is_module = only.kind, only.doc, only.place, only.is_module
        root.own_arguments = only.arguments


def _library_classes() -> set[str]:
    """Names of layers of the libraries that are there."""
    found: set[str] = set()
    for name in ("equinox.nn", "flax.linen", "flax.nnx", "haiku"):
        module = sys.modules.get(name)
        if module is not None:
            found |= {n for n in vars(module) if n[:1].isupper()}
    return found


def _outcomes(frame: Frame, wanted: set[Var]) -> None:
    """What each frame gives to those after it."""
    after = set(wanted)
    for call in reversed(frame.calls):
        if isinstance(call, Frame):
            own = [v for c in call.calls for v in (variables(c.outcome) if isinstance(c, SourceStep) else _made(c))]
            out = [v for v in dict.fromkeys(own) if v in after]
            call.result = out[0] if len(out) == 1 else tuple(out)
            _outcomes(call, set(out))
        after.update(taken(call))


def _made(frame: Frame) -> list[Var]:
    made: list[Var] = []
    for call in frame.calls:
        made.extend(variables(call.outcome) if isinstance(call, SourceStep) else _made(call))
    return made


# ---- names -----------------------------------------------------------------------------------------------------------


class _Naming:
    """Names of the program's variables for arrays."""

    def __init__(self, recording: Recording, watch: CallWatch, replaced: list[Rewritten]) -> None:
        self.names: dict[Var, dict[int, str]] = {}
        self.became: dict[Any, Any] = {}
        for variable, value in recording.seen:
            if isinstance(value, KeyData):
                value = value.array
            elif isinstance(value, Keys):
                continue
            for some in replaced:
                value = some(value)
            self.became[variable] = value
            if type(value) is Var and variable in watch.names:
                for number, name in watch.names[variable].items():
                    self.names.setdefault(value, {}).setdefault(number, name)

    def name(self, frame: _Numbered, is_root: bool = True) -> None:
        number = frame.number
        if not is_root:
            used = set(taken(frame))
            frame.arguments = [(n, tree) for n, x in frame.arguments if _is_known(tree := self.filled(x), used)]
        for call in frame.calls:
            outcome = call.outcome if isinstance(call, SourceStep) else call.result
            names = tuple([self._of(v, number) for v in variables(outcome)])
            call.names = names if any(names) else ()
            if isinstance(call, _Numbered):
                self.name(call, False)

    def _of(self, v: Var, number: int) -> str:
        known = self.names.get(v, {})
        return known.get(number) or next(iter(known.values()), "")

    def filled(self, tree: Any) -> Any:
        return jax.tree.map(lambda x: self.became.get(x) if type(x).__name__ == "Var" else x, tree)


def _is_known(tree: Any, used: set[Var]) -> bool:
    """Every array of an argument is one that the frame takes."""
    found = list(variables(tree))
    return bool(found) and all(v in used for v in found)


__all__ = ["framed", "given"]
