"""Compiled functions whose programs are run operation by operation: XLA compiles each operation once in a process, and
no whole program, which is two thirds of a fuzzed program's time. Traces, guards, inputs and outputs are as ever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax

from tensorgraft.backends.jax.compilation.program import JaxProgram


def _compile(program: JaxProgram, donate: Sequence[int] = ()) -> Callable[..., tuple[Any, ...]]:
    jaxpr, scope = program._jaxpr, program._backend.scope

    def run(*captured: Any) -> tuple[Any, ...]:
        known, outputs = {id(x) for x in captured}, []
        with scope():
            for x in jax.core.eval_jaxpr(jaxpr, captured):
                # a compiled program's results are arrays of their own
                outputs.append(jax.numpy.array(x, copy=True) if id(x) in known or not isinstance(x, jax.Array) else x)
                known.add(id(x))
        for k in donate:
            captured[k].delete()
        return tuple(outputs)

    return run


@contextlib.contextmanager
def by_operations(backend: str) -> Iterator[None]:
    """Context in which programs of a backend are run by operations, where it compiles them otherwise."""
    if backend == "jax":
        with mock.patch.object(JaxProgram, "compile", _compile):
            yield
        return
    if backend == "tensorflow":  # imported for it alone
        from tensorgraft.backends.tensorflow.graph import CompiledGraph

        made = CompiledGraph._make
        with mock.patch.object(CompiledGraph, "_make", lambda self, by_xla: made(self, False)):
            yield
        return
    yield
