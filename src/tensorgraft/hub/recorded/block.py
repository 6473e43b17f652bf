"""Parts of a recorded program: calls on variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.hub.array import HasShape

Tree = Any  # a Var, or tuples and lists of them


class Var(HasShape):
    """An array of a program: its shape and dtype, and its values if it is a constant."""

    __slots__ = ("__weakref__", "dtype", "shape", "value")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, value: np.ndarray | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.value = value

    def known(self) -> np.ndarray:
        """Return the values of a constant. Raises TracedValueError for an array that the program computes."""
        if self.value is None:
            raise TracedValueError(
                f"the values of a {self.dtype} array of shape {self.shape} are needed while a program is being"
                " recorded, and are known only when it runs.\nUse the array itself (where, cond, while_loop"
                " instead of Python's if and while), or take this step out of the recorded function."
            )
        return self.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.known(), dtype=dtype)

    def __bool__(self) -> bool:
        return bool(self.known())

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    __repr__ = __str__


@dataclass(eq=False)
class Call:
    """`results = xp.method(*args, **kwargs)`; arguments are Vars, Blocks, static values, or containers of them."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Tree


@dataclass(eq=False)
class Block:
    """A function: its parameters, calls and results. The block of a branch or loop body may use the Vars around its
    call."""

    parameters: tuple[Tree, ...]
    calls: list[Call]
    result: Tree
    names: tuple[str, ...] = ()  # names of the parameters in written source; "" for one without a name


def leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves of tuples, lists and dictionaries."""
    if type(tree) in (tuple, list):
        for x in tree:
            yield from leaves(x)
    elif type(tree) is dict:
        yield from leaves(list(tree.values()))
    else:
        yield tree


def mapped(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `fn` to the leaves of tuples (including named ones), lists and dictionaries."""
    if isinstance(tree, tuple | range):
        return tuple([mapped(fn, x) for x in tree])
    if type(tree) is list:
        return [mapped(fn, x) for x in tree]
    if type(tree) is dict:
        return {name: mapped(fn, x) for name, x in tree.items()}
    return fn(tree)


def variables(tree: Any) -> Iterator[Var]:
    """Yield the Vars in a tree; those that its blocks take from around them, too."""
    for x in leaves(tree):
        if type(x) is Var:
            yield x
        elif type(x) is Block:
            yield from free_variables(x)


def free_variables(block: Block) -> Iterator[Var]:
    """Yield the Vars that a block uses and does not make."""
    bound_vars = set(variables(block.parameters))
    for call in block.calls:
        yield from (v for v in variables([call.args, call.kwargs]) if v not in bound_vars)
        bound_vars.update(variables(call.results))
    yield from (v for v in variables(block.result) if v not in bound_vars)


def pruned(block: Block) -> Block:
    """Return the block without calls whose results are not used (all operations are pure)."""
    used = set(variables(block.result))
    used_calls = []
    for call in reversed(block.calls):
        if used.isdisjoint(variables(call.results)):
            continue
        for x in leaves(call.args):
            if type(x) is Block:
                x.calls = pruned(x).calls
        used.update(variables([call.args, call.kwargs]))
        used_calls.append(call)
    return Block(block.parameters, used_calls[::-1], block.result)
