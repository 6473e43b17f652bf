"""Compiled functions and traced programs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorgraft.backends.tensorflow.framework import EagerTensor, tf
from tensorgraft.backends.tensorflow.graph import ClosedGraph, CompiledGraph, inlined, trace
from tensorgraft.backends.tensorflow.operation import SCALARS, mark_weak, weak_input
from tensorgraft.backends.tensorflow.owning import Owning, reused_inputs
from tensorgraft.hub.analysis import Analysis
from tensorgraft.hub.array import NativeArray as Array
from tensorgraft.hub.backend import Backend

_NO_OPERATION = {"Placeholder", "Const", "Identity", "NoOp"}


class CompiledFunction:
    """`fn` of flat arrays and Python scalars, traced and compiled once for their shapes and dtypes. Scalars are inputs
    of the program, so that another value does not trace again."""

    def __init__(self, fn: Callable[..., Sequence[Array]]) -> None:
        self._fn = fn
        self._programs: dict[Any, tuple[CompiledGraph, list[Array]]] = {}

    def __call__(self, *args: Any) -> tuple[Array, ...]:
        if not tf.executing_eagerly():  # a part of another program
            return tuple(_strong(x) for x in self._fn(*args))
        key: list[Any] = []
        flat: list[Array] = []
        for a in args:
            if not isinstance(a, EagerTensor):
                kind = type(a)
                key.append(kind if kind in SCALARS else None)
                a = weak_input(a) if kind in SCALARS else tf.constant(np.asarray(a))
            flat.append(a)
            key.append(a._datatype_enum())
            key.append(a._shape_tuple())
        signature = tuple(key)
        known = self._programs.get(signature)
        if known is None:
            known = self._programs[signature] = self._trace(args, flat)
        program, captured = known
        return program(flat + captured)

    def _trace(self, args: Sequence[Any], flat: Sequence[Array]) -> tuple[CompiledGraph, list[Array]]:
        def arguments(graph: ClosedGraph) -> list[Array]:
            placeholders = [graph.argument(x.dtype, x._shape_tuple()) for x in flat]
            return [mark_weak(x) if type(a) in SCALARS else x for a, x in zip(args, placeholders, strict=True)]

        graph, captured = trace(self._fn, arguments)
        return CompiledGraph(graph), captured


_NUMBERED = re.compile(r"(__\w+?)_\d+\b")  # names of functions, which are counted


def _strong(x: Any) -> Array:
    """Return an array instead of a result that is a Python scalar of the arguments."""
    return x if isinstance(x, tf.Tensor) else weak_input(x)


class TensorFlowProgram:
    """The graph of a function without arguments: every array that it used is one of its inputs."""

    def __init__(self, backend: Backend, fn: Callable[[], Sequence[Array]]) -> None:
        self._backend = backend
        with backend.scope():
            self._graph, self.captured = trace(fn, lambda graph: [])

    @property
    def size(self) -> int:
        return sum(op.type not in _NO_OPERATION for op in self._graph.get_operations())

    def listing(self) -> list[str]:
        definition = self._graph.as_graph_def()
        return [" ".join(_NUMBERED.sub(r"\1", str(node)).split()) for node in definition.node]

    def frames_of(self, line: int) -> Sequence[tuple[str, int]]:
        return ()

    def analyse(self, donate: Sequence[int] = ()) -> Analysis:
        kinds = Counter(op.type for op in self._graph.get_operations() if op.type not in _NO_OPERATION)
        return Analysis(dict(kinds.most_common()))

    def compile(self, donate: Sequence[int] = ()) -> Callable[..., tuple[Array, ...]]:
        # small arrays, and those of callers that keep theirs: TensorFlow gives memory back with the last reference
        program, scope = CompiledGraph(self._graph), self._backend.scope
        reused = reused_inputs(self._graph, donate)
        owning = Owning(self._graph, reused, program) if reused else None

        def run(*arrays: Array) -> tuple[Array, ...]:
            if not tf.executing_eagerly():  # a part of another program
                return tuple(inlined(self._graph, _on_device(arrays)))
            with scope():
                return program(_on_device(arrays))

        def take(arrays: list[Array]) -> tuple[Array, ...]:
            assert owning is not None
            arrays[:] = _on_device(arrays)
            with scope():
                return owning(arrays)

        if owning is not None:
            run.takes, run.take = tuple(reused), take  # type: ignore[attr-defined]
        return run


def _on_device(arrays: Sequence[Array]) -> list[Array]:
    return [a if isinstance(a, tf.Tensor) else tf.constant(np.asarray(a)) for a in arrays]
