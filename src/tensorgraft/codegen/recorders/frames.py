"""A recorded program made readable: its steps simplified, and put into a frame for each call of the user's modules and
functions."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tensorgraft.codegen.recorders.recording import ScopedRecorder
from tensorgraft.codegen.simplification import attention, idioms, known_values, simplifying, tensorflow_idioms
from tensorgraft.codegen.simplification.rewriting import Rewritten, rewrite, without_unused
from tensorgraft.codegen.trace import Frame, SourceStep, inputs_of
from tensorgraft.hub.recorded.block import Call, Tree, Var, variables

Key = Any  # identifies an array in the framework's own trace
_SIMPLE = 2  # a module of a library with at most so many steps gets no frame


@dataclass
class Called:
    """A call of a module, or of a function that is compiled by itself."""

    kind: str
    path: str = ""
    name: str = ""
    doc: str = ""
    place: str = ""
    arguments: list[tuple[str, Any]] = field(default_factory=list)  # names and pytrees with `Key`s for arrays
    is_module: bool = False
    attributes: dict[str, int | float] = field(default_factory=dict)  # numbers that the module holds
    model: Any = None  # the object itself, while it is called


@dataclass
class Watched:
    """A record of a program, made while its framework traced it.

    Arguments:
        program_calls: the calls of modules and functions; the scope of a step consists of positions in this list.
        values: pairs of an array of the framework's trace and the recorded value for it (`Var` or number), in order.
        names: array of the framework's trace -> position of a call (-1: the program) -> the user's name of it there.
        libraries: names of the classes of layers that libraries define.
        filled: returns a pytree of arguments with each `Key` replaced by its recorded value.
    """

    program_calls: list[Called]
    values: Iterable[tuple[Key, Any]]
    names: Mapping[Key, Mapping[int, str]]
    libraries: Container[str]
    filled: Callable[[Any, Mapping[Key, Any]], Any]


def framed(
    xp: ScopedRecorder, watched: Watched, calls: list[Call], results: Tree, arguments: list[tuple[str, Tree]], name: str
) -> tuple[Frame, Tree, set[Var]]:
    """Return (the program's frame, the rewritten results, the arrays that the remaining calls and the results use).

    Arguments:
        xp: the recorder of the steps.
        calls: the recorded steps, in order.
        results: what the program returns and what it writes; the first element becomes the result of the frame.
        arguments: of the program, by name.
        name: of the program.
    """
    tables = (simplifying.RULES, known_values.RULES, idioms.RULES, attention.RULES, tensorflow_idioms.RULES)
    rules = {m: [rule for t in tables for rule in t.get(m, [])] for t in tables for m in t}
    replaced = []
    # an einsum that the second pass writes as `linear` takes a bias by a rule of "add"
    second = idioms.SECOND_PASS | {"add": [*simplifying.RULES["add"], *idioms.RULES["add"]]}
    for table in (rules, second, simplifying.LAST_PASS):
        calls, rewritten = rewrite(xp, calls, results, table)
        replaced.append(rewritten)
        results = rewritten(results)
    calls = without_unused(calls, results)
    used = {*variables(results), *(v for c in calls for v in variables([c.args, c.kwargs]))}
    root = _Numbered(name, "", arguments=arguments, result=results[0])
    _nest(root, calls, 0, watched.program_calls)
    _dissolve(root, watched.libraries)
    _unwrap(root)
    _outcomes(root, set(variables(results)))
    naming = _Naming(watched, replaced)
    naming.name(root)
    renamed = {v: n for n, x in root.own_arguments for v in [naming.filled(x)] if type(v) is Var}
    root.arguments[:] = [(renamed.get(x, n) if type(x) is Var else n, x) for n, x in arguments]
    return root, results, used


@dataclass(eq=False)
class _Numbered(Frame):
    number: int = -1  # the number of the recorded call; -1: the program
    own_arguments: list[tuple[str, Any]] = field(default_factory=list)  # arguments of the model that the program calls


# ---- frames ----------------------------------------------------------------------------------------------------------


def _nest(frame: _Numbered, calls: list[Any], depth: int, calls_made: list[Called]) -> None:
    """Put consecutive steps of one call into a frame of it."""
    inner: _Numbered | None = None
    rest: list[Any] = []
    last = -1

    def end_call() -> None:
        if inner is not None:
            _nest(inner, rest, depth + 1, calls_made)

    for step in calls:
        scope = getattr(step, "scope", ())
        number = scope[depth] if len(scope) > depth else -1
        if number == -1:
            end_call()
            inner, rest, last = None, [], -1
            frame.calls.append(step)
            continue
        if number != last or inner is None:
            end_call()
            inner, rest, last = _frame(calls_made[number], number), [], number
            frame.calls.append(inner)
        rest.append(step)
    end_call()


def _frame(call: Called, number: int) -> _Numbered:
    return _Numbered(
        call.kind,
        call.name,
        arguments=list(call.arguments),
        place=call.place,
        doc=call.doc,
        path=call.path,
        is_module=call.is_module,
        attributes=call.attributes,
        number=number,
    )


def _dissolve(frame: Frame, libraries: Container[str]) -> None:
    """Replace frames of library modules that have at most `_SIMPLE` steps by these steps, and drop empty frames."""
    calls: list[Any] = []
    for call in frame.calls:
        if isinstance(call, Frame):
            _dissolve(call, libraries)
            if not call.calls:
                continue
            plain = len(call.calls) <= _SIMPLE and not any(isinstance(c, Frame) for c in call.calls)
            if plain and call.kind in libraries:
                calls.extend(call.calls)
                continue
        calls.append(call)
    frame.calls = calls


def _unwrap(root: _Numbered) -> None:
    """Replace a program that only calls its model by the model."""
    while len(root.calls) == 1 and isinstance(inner := root.calls[0], _Numbered) and not inner.path:
        root.calls, root.number = inner.calls, inner.number
        root.kind, root.doc, root.place, root.is_module = inner.kind, inner.doc, inner.place, inner.is_module
        root.own_arguments = inner.arguments


def _outcomes(frame: Frame, used: set[Var]) -> None:
    """Set the result of each inner frame: its arrays that are used after it."""
    used_later = set(used)
    for call in reversed(frame.calls):
        if isinstance(call, Frame):
            made_inside = [
                v
                for c in call.calls
                for v in (variables(c.results) if isinstance(c, SourceStep) else _outputs_within(c))
            ]
            out = [v for v in dict.fromkeys(made_inside) if v in used_later]
            call.result = out[0] if len(out) == 1 else tuple(out)
            _outcomes(call, set(out))
        used_later.update(inputs_of(call))


def _outputs_within(frame: Frame) -> list[Var]:
    outputs: list[Var] = []
    for call in frame.calls:
        outputs.extend(variables(call.results) if isinstance(call, SourceStep) else _outputs_within(call))
    return outputs


# ---- names -----------------------------------------------------------------------------------------------------------


class _Naming:
    """The user's names of arrays, which become the names of results and arguments in the frames."""

    def __init__(self, watched: Watched, replaced: list[Rewritten]) -> None:
        self.watched = watched
        self.names: dict[Var, dict[int, str]] = {}
        self.became: dict[Key, Any] = {}
        for key, value in watched.values:
            for rewritten in replaced:
                value = rewritten(value)
            self.became[key] = value
            if type(value) is Var and key in watched.names:
                for number, name in watched.names[key].items():
                    self.names.setdefault(value, {}).setdefault(number, name)

    def name(self, frame: _Numbered, is_root: bool = True) -> None:
        """Set the names of results in a frame and the frames in it, and the arguments of inner frames."""
        number = frame.number
        if not is_root:
            used = set(inputs_of(frame))
            frame.arguments = [(n, tree) for n, x in frame.arguments if _is_used(tree := self.filled(x), used)]
        for call in frame.calls:
            result_tree = call.results if isinstance(call, SourceStep) else call.result
            names = tuple([self._name_of(v, number) for v in variables(result_tree)])
            call.names = names if any(names) else ()
            if isinstance(call, _Numbered):
                self.name(call, False)

    def _name_of(self, v: Var, number: int) -> str:
        """Return the name of an array in a call, or else in another one; "" if it has none."""
        known = self.names.get(v, {})
        return known.get(number) or next(iter(known.values()), "")

    def filled(self, tree: Any) -> Any:
        return self.watched.filled(tree, self.became)


def _is_used(tree: Any, used: set[Var]) -> bool:
    """Return whether an argument has arrays, and the frame uses each of them."""
    arrays = list(variables(tree))
    return bool(arrays) and all(v in used for v in arrays)


__all__ = ["framed"]
