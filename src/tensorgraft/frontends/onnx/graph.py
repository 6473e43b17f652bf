"""ONNX models as data."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_ANONYMOUS = re.compile(r"onnx::.*|val_\d+|_?\d+|initializer_?\d*|_?const.*", re.IGNORECASE)
Extent = int | str | None  # a size, the name of one that is not known, or neither


@dataclass(frozen=True)
class ValueType:
    """The type of an input or output: a tensor, or a sequence or an optional of what `element` is. `shape` is None
    where not even the number of axes is known."""

    kind: str  # "tensor", "sequence", "optional", "map"
    dtype: np.dtype | None = None
    shape: tuple[Extent, ...] | None = None
    element: ValueType | None = None

    def __str__(self) -> str:
        if self.kind != "tensor":
            return f"{self.kind}({self.element})" if self.element else self.kind
        name = "string" if self.dtype == object else self.dtype.name if self.dtype is not None else "unknown"
        extents = "..." if self.shape is None else ", ".join("?" if n is None else str(n) for n in self.shape)
        return f"{name}({extents})"


@dataclass(eq=False)
class OnnxNode:
    """An operator of a graph. Inputs and outputs are names of values; "" stands for one that is left out. Attributes
    are numbers, strings, tuples of these, arrays, and `OnnxGraph`s."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    references: dict[str, str] = field(default_factory=dict)  # attribute -> the function's attribute that it is
    overload: str = ""
    place: str = ""  # the function that contains it
    message: Any = None  # the `NodeProto`, from which onnx makes the function of an operator

    def __str__(self) -> str:
        op = f"{self.domain}.{self.op}" if self.domain else self.op
        label = self.name or (self.outputs[0] if self.outputs else "")
        return f"{op} {label!r}" + (f" in {self.place}" if self.place else "")

    def graphs(self) -> Iterator[OnnxGraph]:
        """Yield the graphs among the attributes: bodies of loops, branches."""
        for value in self.attributes.values():
            yield from (x for x in (value if isinstance(value, tuple) else (value,)) if isinstance(x, OnnxGraph))


@dataclass(eq=False)
class OnnxGraph:
    """A graph: nodes in an order in which they can be run."""

    name: str
    nodes: list[OnnxNode]
    inputs: dict[str, ValueType]
    outputs: dict[str, ValueType]
    initializers: dict[str, Any]  # name -> a NumPy array or `Carried`

    def captures(self) -> list[str]:
        """Return the names of values that the graph reads from the graph around it."""
        known = {*self.inputs, *self.initializers}
        read: dict[str, None] = {}
        for node in self.nodes:
            names = [*node.inputs, *(name for graph in node.graphs() for name in graph.captures())]
            read.update(dict.fromkeys(name for name in names if name and name not in known))
            known.update(node.outputs)
        read.update(dict.fromkeys(name for name in self.outputs if name not in known))
        return list(read)


@dataclass(eq=False)
class OnnxFunction:
    """A function of a model, or the one by which ONNX defines an operator."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    defaults: dict[str, Any]  # of attributes; None for one that has to be given
    nodes: list[OnnxNode]
    opsets: Mapping[str, int]


@dataclass(eq=False)
class OnnxModel:
    """A model: its graph, its functions by (domain, name, overload), and the versions of the operators' domains."""

    graph: OnnxGraph
    functions: dict[tuple[str, str, str], OnnxFunction]
    opsets: Mapping[str, int]
    path: str | None = None


def is_anonymous(name: str) -> bool:
    """Return True for a name that an exporter has numbered, which no program has given."""
    return _ANONYMOUS.fullmatch(name) is not None
