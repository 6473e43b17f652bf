"""`SourceTrace`: the form in which a front end gives a program that is to be written as source.

It is a recorded program (`hub.recorded`) that has kept its structure: `Frame`s for the modules and functions that were
called, in them `SourceStep`s, calls of operations of the hub or of `words`, with the names that the user gave to
results and the places in the user's program. A front end records one at each of several sizes; `merging` makes
one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft.hub.recorded.block import Block, Call, Tree, Var, variables


class HubName(str):
    """The name that an array has in the definition of a composite: who writes a short expression may leave it out."""


class SourceLine(str):
    """A line of the user's program, "model.py:12", with the lines that call the function which it is in."""

    callers: tuple[str, ...] = ()  # innermost first

    @classmethod
    def of(cls, lines: Sequence[str]) -> str:
        """The first of these lines, the others its callers; "" of none."""
        if not lines:
            return ""
        place = cls(lines[0])
        place.callers = tuple(lines[1:])
        return place


@dataclass(eq=False)
class SourceStep(Call):
    """`results = method(*args, **kwargs)`: an operation of the hub, or one of `words.WORDS`."""

    names: tuple[str, ...] = ()  # names in the user's program of the arrays in the results: "" for one without a name
    place: str = ""  # in the user's program: "model.py:12"


@dataclass(eq=False)
class Frame:
    """A call of a module or a function of the user's program, with its steps in order."""

    kind: str  # the name of the class or function: "Block", "gelu"
    name: str  # the name in the module around it: "h.0", "ln_1"; "" for a frame that is no module
    calls: list[SourceStep | Frame] = field(default_factory=list)
    arguments: list[tuple[str, Tree]] = field(default_factory=list)  # (name in its signature, arrays and static values)
    result: Tree = ()
    names: tuple[str, ...] = ()  # as for a step
    place: str = ""
    doc: str = ""  # the first sentence of its docstring, if it has one
    path: str = ""  # the path of a module from the program: "transformer.h.0"
    is_module: bool = False  # it may have parameters of its own, under its path
    attributes: dict[str, int | float] = field(default_factory=dict)  # numbers that the module holds, by their names
    left: tuple[Var, ...] = ()  # arrays made in it and used outside, other than its result: state, entries of a cache


@dataclass(eq=False)
class SourceTrace:
    """A program at one size of its arguments. Arrays in it are `Var`s; constants have their values."""

    framework: str  # "torch", "jax", "tensorflow", "array_api", "onnx"
    name: str  # the name of the class or function
    root: Frame
    arguments: list[tuple[str, Tree]]  # (name, Vars and static values), as the program takes them
    result: Tree  # Vars and static values in tuples, lists and dictionaries, as the program returns them
    parameters: dict[str, Var]  # trainable, by path
    buffers: dict[str, Var]  # not trainable, by path
    written: dict[str, Var]  # {path: new value of a buffer (or parameter)}
    aliases: dict[str, str]  # ties: path -> the path under which the array is
    weights: dict[str, np.ndarray]  # the values of parameters and buffers
    key: Var | None = None  # the key of random numbers, if there are any
    training: bool = False
    constants: dict[str, np.ndarray] = field(default_factory=dict)  # buffers that no checkpoint has, by path
    notes: list[str] = field(default_factory=list)  # sentences for the report
    derivative_notes: list[str] = field(default_factory=list)  # those for targets that have derivatives
    containers: dict[str, str] = field(default_factory=dict)  # path of a module -> its class; "list" for lists of them


def steps(frame: Frame) -> Iterator[SourceStep]:
    """Yield all steps in a frame and in the frames in it, in order."""
    for call in frame.calls:
        if isinstance(call, Frame):
            yield from steps(call)
        else:
            yield call


def frames(frame: Frame) -> Iterator[Frame]:
    for call in frame.calls:
        if isinstance(call, Frame):
            yield call
            yield from frames(call)


def inputs_of(call: SourceStep | Frame) -> Iterator[Var]:
    """Yield the arrays that a call takes from around it (with repeats)."""
    if isinstance(call, Frame):
        made_inside: set[Var] = set()
        for inner in call.calls:
            yield from (v for v in inputs_of(inner) if v not in made_inside)
            made_inside.update(outputs_of(inner))
        yield from (v for v in variables([call.result, call.left]) if v not in made_inside)
    else:
        yield from variables([call.args, call.kwargs])


def outputs_of(call: SourceStep | Frame) -> Iterator[Var]:
    """Return the arrays that a call makes for those around it."""
    return variables([call.result, call.left] if isinstance(call, Frame) else call.results)


def prune(trace: SourceTrace) -> None:
    """Remove calls whose results are not used: all operations are pure."""
    _prune(trace.root, {*variables(trace.result), *variables(trace.written)})


def _prune(frame: Frame, used: set[Var]) -> None:
    """Remove calls whose results are not used, and add the variables that the others use to `used`."""
    used_calls: list[SourceStep | Frame] = []
    # names of the inputs of frames without operations (such as a dropout that is off)
    names: dict[Var, tuple[str, ...]] = {}
    for call in reversed(frame.calls):
        result = call.result if isinstance(call, Frame) else call.results
        if isinstance(result, Var) and not any(call.names):
            call.names = names.get(result, call.names)
        if isinstance(call, Frame):
            _prune(call, used)
            if call.calls:
                used_calls.append(call)
            elif isinstance(result, Var) and any(call.names):
                names.setdefault(result, call.names)
        elif call.method == "assign" or not used.isdisjoint(variables(call.results)):
            used.update(variables([call.args, call.kwargs]))
            used_calls.append(call)
    frame.calls = used_calls[::-1]


__all__ = [
    "Block",
    "Frame",
    "SourceStep",
    "SourceTrace",
    "Tree",
    "Var",
    "inputs_of",
    "outputs_of",
    "prune",
    "steps",
    "variables",
]


def changed(call: SourceStep, **changes: Any) -> Any:
    """Return a step with other values of some of its fields."""
    return type(call)(**{**vars(call), **changes})
