"""Functions out of frames: one for each kind of module, called with other parameters for each of them.

    Frame Block h.0 ┐
    Frame Block h.1 ├─>  SourceFunction block, and Invokes of it;  in a row, each fed by the one before: a Repeat
    Frame Block h.2 ┘

Frames are the same function where they do the same to their arguments and parameters but for numbers. A number that
differs is an expression of the sizes of the arguments, or an argument (`Static`) of the function.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tensorgraft.codegen.trace import Frame, SourceStep, SourceTrace, Tree, Var

Path = tuple[str, ...]


@dataclass(eq=False, frozen=True)
class Static:
    """A parameter of a function that is no array, for values that differ between its calls."""

    name: str


@dataclass
class Layer:
    """A constructor call for a class of the target that is equivalent to a function: `nn.Linear(48, 144,
    bias=False)`."""

    callee: str  # "" for a row of modules
    arguments: dict[str, Any]  # "0", "1", ... for those without a keyword
    defaults: dict[str, Any] = field(default_factory=dict)
    takes: Tree = None  # its arrays, as places in the function's arguments: (0, (1, 2)); None: one after another
    gives: Tree = None  # its result; None: the function's results


@dataclass(eq=False)
class SourceFunction:
    """A function or a class to be written."""

    name: str
    kind: str
    doc: str
    is_module: bool
    arguments: list[Var]
    argument_names: list[str]
    parameters: dict[Var, Path]  # {parameter of the function: its path from the module}
    buffers: set[Var]  # those of them that are not trained
    calls: list[SourceStep | Repeat]
    results: list[Var]
    statics: dict[str, Any] = field(default_factory=dict)  # name -> its value in the first call
    place: str = ""
    uses: int = 1
    layer: Layer | None = None  # a class of the target that computes the same
    config: dict[str, Any] = field(
        default_factory=dict
    )  # arguments of its class's constructor: {name: value in the first instance}
    paths: list[Path] = field(default_factory=list)  # paths of the modules from the program
    # {path of its own parameter, as its class has it: shape}
    shapes: dict[Path, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(eq=False)
class Invoke(SourceStep):
    """A call of a function: `args` are arrays, `results` is a tuple of them."""

    function: SourceFunction = None  # type: ignore[assignment]
    path: Path | None = None  # the path of the module from the module around it; None for a frame that is no module
    statics: dict[str, Any] = field(default_factory=dict)
    # arguments of the constructor of the layer, or of the module's class
    config: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Repeat:
    """Invokes in a row of modules of one list, each of which takes results of the one before."""

    invokes: list[Invoke]
    path: Path  # the path of the list
    first: int
    carried: list[tuple[int, int]]  # (position among the results, among the arguments)


class ModuleRules(Protocol):
    """The rules of a style of classes for modules."""

    ties: bool  # two modules may hold one parameter

    def examine(self, trace: SourceTrace, paths: Mapping[Var, Sequence[Path]]) -> None:
        """Examine the frames of a trace; called before `keeps`."""

    def keeps(self, frame: Frame) -> bool | None:
        """Return whether a frame stays a module of its own; None if that is decided as for functions."""

    def layer(
        self, frame: Frame, calls: Sequence[SourceStep], inputs: Sequence[Var], parameters: Mapping[Var, Path]
    ) -> Layer | None:
        """Return the equivalent class of the target, or None if there is none."""

    def configure(
        self,
        function: SourceFunction,
        attributes: Sequence[Mapping[str, Any]],
        statics: dict[str, list[Any]],
        config: dict[str, list[Any]],
    ) -> None:
        """Let numbers that differ between modules, and `statics` that belong to them, be arguments of constructors:
        `config`, name -> value in each. `attributes`: of each of the modules."""


def attribute_of(values: Sequence[Any], attributes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of attributes that have these values, one value for each module."""
    if not attributes:
        return []
    pairs = list(zip(attributes, values, strict=True))
    return [k for k in attributes[0] if all(type(a.get(k)) is type(v) and a[k] == v for a, v in pairs)]


def snake(kind: str) -> str:
    """Convert a class name: `GPT2Block` -> "gpt2_block", `LSTMModel` -> "lstm_model", `ResNet` -> "resnet", `ViT` ->
    "vit"."""
    kind = re.sub(r"Net(?![a-z])", "net", kind)
    s = re.sub(r"(?<=[a-z0-9])(?=[A-Z](?!$))|(?<=[A-Z])(?=[A-Z][a-z])", "_", kind).lower()
    s = re.sub(r"\W+", "_", s).strip("_") or "function"
    return f"{s}_" if keyword.iskeyword(s) or s in ("p", "params") else s
