"""Programs as data: calls of the hub's methods, in the order in which they were made.

A `Program` runs on any backend, as the straight-line Python that it prints; it can be saved, and loaded where neither
the framework of its front end nor its front end is installed. It is made by `record` (`tracing`).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tensorgraft.errors import TracedValueError
from tensorgraft.hub.abstract import AbstractBackend, ShapeDtype
from tensorgraft.hub.backend import Backend

Array = Any
Tree = Any  # a Var, or tuples and lists of them


class Var:
    """An array of a program: its shape and dtype, and its values if it is a constant."""

    __slots__ = ("__weakref__", "dtype", "shape", "value")

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, value: np.ndarray | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.value = value

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def known(self) -> np.ndarray:
        """The values of a constant. Raises TracedValueError for what a program computes."""
        if self.value is None:
            raise TracedValueError(
                f"the values of a {self.dtype} array of shape {self.shape} are asked for while a program is being"
                " recorded, and are known only when it runs.\nUse the array itself (where, cond, while_loop instead of"
                " Python's if and while), or take this step out of the recorded function."
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
    """`outcome = xp.method(*args, **kwargs)`; arguments are Vars, Blocks, static values, or containers of them."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outcome: Tree


@dataclass(eq=False)
class Block:
    """A function: what it takes, does and returns. One that is an argument of a call sees the Vars around the call."""

    parameters: tuple[Tree, ...]
    calls: list[Call]
    result: Tree


def leaves(tree: Any) -> Iterator[Any]:
    """What is in tuples, lists and dictionaries."""
    if type(tree) in (tuple, list):
        for x in tree:
            yield from leaves(x)
    elif type(tree) is dict:
        yield from leaves(list(tree.values()))
    else:
        yield tree


def variables(tree: Any) -> Iterator[Var]:
    """The Vars in a tree; those that its blocks take from around them, too."""
    for x in leaves(tree):
        if type(x) is Var:
            yield x
        elif type(x) is Block:
            yield from free(x)


def free(block: Block) -> Iterator[Var]:
    """The Vars that a block uses and does not make."""
    own = set(variables(block.parameters))
    for call in block.calls:
        yield from (v for v in variables([call.args, call.kwargs]) if v not in own)
        own.update(variables(call.outcome))
    yield from (v for v in variables(block.result) if v not in own)


def pruned(block: Block) -> Block:
    """Without calls whose results nobody uses (all operations are pure)."""
    needed = set(variables(block.result))
    kept = []
    for call in reversed(block.calls):
        if needed.isdisjoint(variables(call.outcome)):
            continue
        for x in leaves(call.args):
            if type(x) is Block:
                x.calls = pruned(x).calls
        needed.update(variables([call.args, call.kwargs]))
        kept.append(call)
    return Block(block.parameters, kept[::-1], block.result)


class Program:
    """A function of arrays, in calls of the hub.

    `program(xp, *arrays)` gives a tuple of arrays of the backend `xp`; it is to be called in `xp.scope()`, like the
    methods of `xp` themselves, and may be traced, compiled and differentiated there. `str(program)` is Python source.
    """

    def __init__(self, block: Block) -> None:
        """Raises ValueError where an array is used that the program does not make."""
        for part in (block.parameters, block.result):
            if type(part) is not tuple or not all(type(v) is Var for v in part):
                raise ValueError("a program takes and returns a flat tuple of arrays")
        self.block = pruned(block)
        self.constants: list[Var] = []
        for v in dict.fromkeys(free(self.block)):
            if v.value is None:
                raise ValueError(f"a recorded program uses an array, {v}, of another program: pass it as an argument")
            self.constants.append(v)
        self._on: weakref.WeakKeyDictionary[Backend, list[Array]] = weakref.WeakKeyDictionary()

    @property
    def inputs(self) -> list[ShapeDtype]:
        return [ShapeDtype(v.shape, v.dtype) for v in self.block.parameters]

    @property
    def outputs(self) -> list[ShapeDtype]:
        return [ShapeDtype(v.shape, v.dtype) for v in self.block.result]

    @functools.cached_property
    def passed(self) -> frozenset[int]:
        """The positions of results that are arguments or constants, on backends whose arrays may be written."""
        given = {*self.block.parameters, *self.constants}
        return frozenset(i for i, v in enumerate(self.block.result) if v in given)

    @functools.cached_property
    def source(self) -> str:
        from tensorgraft.hub.recorded.source import source

        return source(self)

    @functools.cached_property
    def _run(self) -> Callable[..., tuple[Array, ...]]:
        from tensorgraft.hub.recorded.source import function

        return function(self)

    def __call__(self, xp: Backend, /, *arrays: Array) -> tuple[Array, ...]:
        """Arrays of the shapes and dtypes of `inputs` (`check_inputs` tells where they are not)."""
        constants = self._on.get(xp)
        if constants is None:
            constants = [xp.asarray(v.known()) for v in self.constants]
            if not any(xp.is_traced(c) for c in constants):
                self._on[xp] = constants
        return self._run(xp, constants, *arrays)

    def check_inputs(self, xp: Backend, arrays: Sequence[Array], what: str = "the program") -> None:
        """Raises TypeError or ValueError where `arrays` do not have the shapes and dtypes of `inputs`."""
        if len(arrays) != len(self.inputs):
            raise TypeError(f"{what} takes {len(self.inputs)} arrays, got {len(arrays)}")
        for k, (array, expected) in enumerate(zip(arrays, self.inputs, strict=True)):
            got = ShapeDtype(tuple(xp.shape(array)), xp.dtype_of(array))
            if got != expected:
                raise ValueError(f"argument {k} of {what} is {got}, and was recorded as {expected}")

    def check(self) -> None:
        """Raises ValueError or TypeError where a call does not fit its operands, or the results are other than said:
        for programs that come from files."""
        made = [ShapeDtype(x.shape, x.dtype) for x in self(AbstractBackend(), *self.inputs)]
        if made != self.outputs:
            raise ValueError(
                f"the program gives {', '.join(map(str, made))}, and says {', '.join(map(str, self.outputs))}"
            )

    def __str__(self) -> str:
        return self.source

    def save(self, directory: str | Path) -> None:
        """Write `program.json` and `constants.npz` (see `encoding`)."""
        from tensorgraft.hub.recorded.encoding import save

        save(self, Path(directory))

    @staticmethod
    def load(directory: str | Path) -> Program:
        """Raises ValueError for what is no saved program, or a broken one."""
        from tensorgraft.hub.recorded.encoding import load

        return load(Path(directory))
