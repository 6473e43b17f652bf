"""Programs as data: calls of the hub's methods, in the order in which they were made.

A `Program` runs on any backend, as the straight-line Python that it prints; it can be saved, and loaded where neither
the framework of its front end nor its front end is installed. It is made by `record` (`tracing`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence

from tensorgraft.hub.abstract import AbstractBackend, ShapeDtype
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.hub.recorded.block import Block, Var, free_variables, pruned
from tensorgraft.hub.recorded.source import function, source


class Program:
    """A function of arrays, in calls of the hub.

    `program(xp, *arrays)` gives a tuple of arrays of the backend `xp`; it is to be called in `xp.scope()`, like the
    methods of `xp` themselves, and may be traced, compiled and differentiated there. `str(program)` is Python source.
    """

    def __init__(self, block: Block) -> None:
        """Raises ValueError where an array is used that the program does not make."""
        for part in (block.parameters, block.result):
            if type(part) is not tuple or not all(type(v) is Var for v in part):
                raise ValueError("a program must take and return a flat tuple of arrays")
        self.block = pruned(block)
        self.constants: list[Var] = []
        for v in dict.fromkeys(free_variables(self.block)):
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
        inputs = {*self.block.parameters, *self.constants}
        return frozenset(i for i, v in enumerate(self.block.result) if v in inputs)

    @functools.cached_property
    def source(self) -> str:
        return source(self.block, self.constants)

    @functools.cached_property
    def _run(self) -> Callable[..., tuple[Array, ...]]:
        return function(self.source)

    def __call__(self, xp: Backend, /, *arrays: Array) -> tuple[Array, ...]:
        """Return arrays of the shapes and dtypes of `inputs` (`check_inputs` tells where they are not)."""
        return self._run(xp, self._constants_on(xp), *arrays)

    def on(self, xp: Backend, /) -> Callable[..., tuple[Array, ...]]:
        """Return the program as a function of arrays of a backend, outside of its traces."""
        return functools.partial(self._run, xp, self._constants_on(xp))

    def _constants_on(self, xp: Backend) -> list[Array]:
        constants = self._on.get(xp)
        if constants is None:
            constants = [xp.asarray(v.known()) for v in self.constants]
            if not any(xp.is_traced(c) for c in constants):
                self._on[xp] = constants
        return constants

    def check_inputs(self, xp: Backend, arrays: Sequence[Array], label: str = "the program") -> None:
        """Raises TypeError or ValueError where `arrays` do not have the shapes and dtypes of `inputs`."""
        if len(arrays) != len(self.inputs):
            raise TypeError(f"{label} takes {len(self.inputs)} arrays, got {len(arrays)}")
        for k, (array, expected) in enumerate(zip(arrays, self.inputs, strict=True)):
            given_spec = ShapeDtype(tuple(xp.shape(array)), xp.dtype_of(array))
            if given_spec != expected:
                raise ValueError(f"argument {k} of {label} is {given_spec}, but was recorded as {expected}")

    def check(self) -> None:
        """Raises ValueError or TypeError where a call does not fit its operands, or the results are other than said:
        for programs that come from files."""
        outcomes = [ShapeDtype(x.shape, x.dtype) for x in self(AbstractBackend(), *self.inputs)]
        if outcomes != self.outputs:
            raise ValueError(
                f"the program returns {', '.join(map(str, outcomes))}, but declares {', '.join(map(str, self.outputs))}"
            )

    def __str__(self) -> str:
        return self.source
