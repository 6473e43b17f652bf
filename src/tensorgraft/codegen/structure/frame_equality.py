"""Bodies of frames: two bodies are the same function if they differ in numbers alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorgraft.codegen.structure.functions import Invoke, Layer, Path
from tensorgraft.codegen.trace import Block, Frame, SourceStep, Var, outputs_of
from tensorgraft.hub.operations.elementwise import ELEMENTWISE

# operations that do the same whatever the number of axes before the last
RANK_FREE = frozenset({"linear", "layer_norm", "rms_norm", "embedding", "dropout", "stop_gradient"}) | {
    *ELEMENTWISE,
    "relu",
    "silu",
    "gelu",
}


@dataclass(eq=False)
class SourceBody:
    """A frame whose calls are steps and invokes."""

    frame: Frame
    path: Path
    calls: list[SourceStep]
    inputs: list[Var]
    names: list[str]
    parameters: dict[Var, Path]
    outputs: list[Var]
    layer: Layer | None = None

    def made(self) -> Iterator[Var]:
        yield from self.inputs
        yield from self.parameters
        for call in self.calls:
            yield from outputs_of(call)

    @property
    def any_rank(self) -> bool:
        """Return whether the body does the same to inputs of any number of axes; the axes of parameters are fixed."""
        arrays = [*self.inputs, *(v for c in self.calls for v in outputs_of(c))]
        return (
            len(self.inputs) == 1
            and len(arrays) == len(self.calls) + 1
            and all(c.method in RANK_FREE for c in self.calls)
            and all(v.ndim for v in arrays)
        )

    def key(self, exact_methods: Collection[str]) -> Any:
        """Return a key, equal for bodies that differ only in numbers of operations that are not in `exact_methods`."""
        exact = False
        number: dict[Var, Any] = {v: ("parameter", p) for v, p in self.parameters.items()}
        number |= {v: ("argument", i) for i, v in enumerate(self.inputs)}

        any_rank = self.any_rank

        def of(x: Any) -> Any:
            if isinstance(x, Var):
                if x.value is not None:
                    return ("constant", x.shape, x.dtype.name, x.value.tobytes())
                if x not in number:
                    number[x] = len(number)
                return number[x], None if any_rank and x not in self.parameters else x.ndim, x.dtype.name
            if isinstance(x, tuple | list):
                return tuple(map(of, x))
            if isinstance(x, dict):
                return tuple((k, of(v)) for k, v in x.items())
            if isinstance(x, slice):
                return ("slice", of(x.start), of(x.stop), of(x.step))
            if isinstance(x, Block):
                return ("block", of(x.parameters), tuple(map(call, x.calls)), of(x.result))
            if isinstance(x, int | float) and not isinstance(x, bool):
                if exact:
                    return getattr(x, "values", x)
                return int if isinstance(x, int) else float
            if isinstance(x, np.ndarray):
                return x.shape, x.dtype.name, x.tobytes()
            return type(x).__name__, str(x)

        def call(c: Any) -> Any:
            if isinstance(c, Invoke):
                return id(c.function), c.path, of(c.args), of(c.statics), of(c.results)
            nonlocal exact
            exact = c.method in exact_methods
            arguments = of(c.args), of(c.kwargs)
            exact = False
            return c.method, *arguments, of(c.results)

        layer = self.layer and self.layer.callee
        return self.frame.kind, layer, tuple(self.names), tuple(map(of, self.inputs)), tuple(map(call, self.calls))
