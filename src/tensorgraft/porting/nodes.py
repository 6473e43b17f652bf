"""Nodes: the arrays of a program, and the operations of the hub that compute them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tensorgraft.codegen.words import WORDS
from tensorgraft.hub import dtypes, registry
from tensorgraft.hub.operations.elementwise import ELEMENTWISE
from tensorgraft.hub.recorded.block import leaves

MOVEMENT = frozenset({"reshape", "permute_dims", "slice", "broadcast_to", "flip"})
POINTWISE = frozenset(ELEMENTWISE) | frozenset({
    "where", "astype", "clip", "gelu", "relu", "relu6", "leaky_relu", "elu", "selu", "mish", "hard_sigmoid",
    "hard_silu", "softplus", "log_sigmoid",
})  # fmt: skip


@dataclass(eq=False)
class ValueNode:
    """An array of a program: how it is computed, and its values where they are known without parameters."""

    op: str  # a method of the hub, or "input", "constant", "parameter", "affine"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shape: tuple[int, ...]
    dtype: np.dtype
    number: int = 0  # in the order of the program
    value: np.ndarray | None = None  # of a constant
    name: str = ""  # of an input or a parameter
    dynamic: bool = False
    parameters: frozenset[str] = frozenset()  # that a static node is computed from
    place: str = ""  # in the user's program
    output: int = 0  # which result of an operation that has several
    folded: tuple[str, tuple[Any, ...], dict[str, Any]] | None = None  # the operation that gave a constant its value
    uses: list[ValueNode] = field(default_factory=list)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def static(self) -> bool:
        """It is computed from parameters, and from nothing that an input changes."""
        return not self.dynamic and bool(self.parameters)

    def inputs(self) -> Iterator[ValueNode]:
        yield from nodes_of([self.args, self.kwargs])

    def __repr__(self) -> str:
        return f"%{self.number} {self.op}{self.name and ' ' + self.name} {self.dtype}{list(self.shape)}"


@dataclass(eq=False)
class Lazy:
    """A dynamic array `core * scale + shift` whose static factors have not been applied; `node` once they have."""

    core: ValueNode
    scale: ValueNode | None = None
    shift: ValueNode | None = None
    node: ValueNode | None = None
    place: str = ""  # where the last factor was written


def nodes_of(tree: Any) -> Iterator[ValueNode]:
    """Yield the nodes among the leaves of a tree."""
    return (x for x in leaves(tree) if type(x) is ValueNode)


def has_rows(node: Any) -> bool:
    """A product of rows with a weight, or a sum of such."""
    if type(node) is not ValueNode or node.op not in ("add", "dot_general"):
        return False
    if node.op == "add":
        return all(has_rows(n) and n.shape == node.shape for n in node.args)
    return node.args[1].static and not any(node.args[3]) and 0 not in node.args[2][0]


def number_of(x: Any) -> float | None:
    """The number that an operand is: Python's, or a constant of one element; None for others."""
    if type(x) is ValueNode and x.value is not None and not x.dynamic and x.size == 1:
        x = x.value.item()
    return float(x) if isinstance(x, int | float | np.number) and not isinstance(x, bool) else None


def numpy_backend() -> Any:
    return registry.get("numpy")


def evaluate(op: str, args: Any, kwargs: Any, xp: Any = None) -> Any:
    """The result of an operation of the hub, or of a word, on arrays of a backend: NumPy's where none is given."""
    xp = xp or numpy_backend()
    with np.errstate(all="ignore"), xp.scope():
        if op in WORDS:
            return WORDS[op](xp, *args, **kwargs)
        if op == "affine":
            x, scale, shift = args
            x = x if scale is None else xp.multiply(x, scale)
            return x if shift is None else xp.add(x, shift)
        return getattr(xp, op)(*args, **kwargs)


def widened(x: Any) -> Any:
    """float64 in place of float32, for arrays and dtypes: what differs then differs by more than rounding. Python's
    numbers are rounded to float32 first, as either program may have done."""
    if type(x) is float:
        return float(np.float32(x)) if abs(x) < 3e38 else x
    if isinstance(x, np.dtype):
        return dtypes.float64 if x == dtypes.float32 else dtypes.complex128 if x == dtypes.complex64 else x
    if isinstance(x, np.ndarray | np.generic):
        return np.asarray(x).astype(widened(x.dtype)) if widened(x.dtype) != x.dtype else x
    return x
