"""Programs that write into the memory of their arguments.

XLA under TensorFlow allocates new memory for results, except for variables: a variable whose memory has no other
reference is updated in place. An argument that is donated is therefore moved into a variable without a copy while the
program runs, and the result is taken from the variable. If the array has another reference, XLA copies it, and the
array does not change.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from tensorgraft.backends.tensorflow.framework import raw, tf
from tensorgraft.backends.tensorflow.graph import (
    REFUSALS,
    ClosedGraph,
    CompiledGraph,
    call_by_name,
    inlined,
    may_be_recorded,
)
from tensorgraft.hub.array import NativeArray as Array

_WORTH = 1 << 20  # bytes: a smaller copy takes less time than moving it through a variable


def reused_inputs(graph: ClosedGraph, donated: Sequence[int]) -> dict[int, int]:
    """Return {donated input: result that takes its memory} for large inputs with a result of the same shape and
    dtype."""
    free: dict[Any, list[int]] = {(x.dtype, x._shape_tuple()): [] for x in graph.outputs}
    for k, x in enumerate(graph.outputs):
        free[x.dtype, x._shape_tuple()].append(k)
    numbers = {}
    for k in donated:
        x = graph.inputs[k]
        fitting = free.get((x.dtype, x._shape_tuple()))
        if fitting and math.prod(x._shape_tuple()) * x.dtype.size >= _WORTH:
            numbers[k] = fitting.pop(0)
    return numbers


class Owning:
    """A graph as a function of a list of arrays. It removes from the list the arrays whose memory results reuse
    (`reused`: input -> result)."""

    def __init__(self, graph: ClosedGraph, reused: dict[int, int], fallback: CompiledGraph) -> None:
        self.reused = reused
        self._graph = graph
        self._fallback = fallback
        self._program: Any = None
        self._busy = threading.Lock()
        self._refused = not fallback.by_xla

    def __call__(self, arrays: list[Array]) -> tuple[Array, ...]:
        """Run the graph. On an exception the arrays are in the list again."""
        if self._refused or may_be_recorded() or not self._busy.acquire(blocking=False):
            return self._fallback(arrays)
        try:
            if self._program is None:
                self._make()
            self._put_in(arrays)
            try:
                outputs = self._call([a for k, a in enumerate(arrays) if k not in self.reused])
            except BaseException as error:
                for k, a in zip(self.reused, self._taken_out(), strict=True):
                    arrays[k] = a
                if not isinstance(error, REFUSALS):
                    raise
                self._refused = True
                return self._fallback(arrays)
            rest, owned = iter(outputs), dict(zip(self.reused.values(), self._taken_out(), strict=True))
            return tuple(owned[k] if k in owned else next(rest) for k in range(len(self._graph.outputs)))
        finally:
            self._busy.release()

    def _call(self, arrays: list[Array]) -> Sequence[Array]:
        program, count = self._program
        return call_by_name(program, count, arrays)

    def _make(self) -> None:
        inputs, results = self._graph.inputs, range(len(self._graph.outputs))
        with tf.init_scope():
            self._variables = [tf.Variable(tf.zeros(x.shape, x.dtype), trainable=False)
                               for x in (inputs[k] for k in self.reused)]  # fmt: skip
            self._empty = [tf.zeros((0,), v.dtype) for v in self._variables]

        @tf.function(jit_compile=True, autograph=False)
        def program(*rest: Array) -> list[Array]:
            remaining, owned = iter(rest), dict(zip(self.reused, self._variables, strict=True))
            outputs = inlined(self._graph, [owned[k].read_value() if k in owned else next(remaining)
                                         for k in range(len(inputs))])  # fmt: skip
            for variable, k in zip(self._variables, self.reused.values(), strict=True):
                variable.assign(outputs[k])
            owners = set(self.reused.values())
            return [outputs[k] for k in results if k not in owners]

        specs = [tf.TensorSpec(x.shape, x.dtype) for k, x in enumerate(inputs) if k not in self.reused]
        self._program = program.get_concrete_function(*specs), len(results) - len(self.reused)

    def _put_in(self, arrays: list[Array]) -> None:
        for k, variable in zip(self.reused, self._variables, strict=True):
            raw.AssignVariableOp(resource=variable.handle, value=arrays[k])
            arrays[k] = None

    def _taken_out(self) -> list[Array]:
        taken_out = []
        for variable, placeholder in zip(self._variables, self._empty, strict=True):
            taken_out.append(raw.ReadVariableOp(resource=variable.handle, dtype=variable.dtype))
            raw.AssignVariableOp(resource=variable.handle, value=placeholder)
        return taken_out
