"""`tg.jit` of functions of plain CPU tensors, which remain PyTorch tensors.

PyTorch implements autograd and in-place writes of CPU tensors, and therefore captures these functions: by Dynamo, with
guards for everything that a function reads, and AOTAutograd. The default device computes their graphs on the same
memory (`dynamo`), as for `torch.compile(backend="tensorgraft")`; code outside of a graph runs unchanged.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tensorgraft.compiled.function import Report
from tensorgraft.compiled.python_state import PythonState, states_met
from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch.compiled.in_dynamo import device_of
from tensorgraft.frontends.torch.core.devices import slot_of
from tensorgraft.frontends.torch.core.modes import of_program
from tensorgraft.frontends.torch.core.trees import Structure, unflatten_call
from tensorgraft.frontends.torch_entry import patches


class OnCpu:
    """A function of CPU tensors."""

    def __init__(self, fn: Callable[..., Any], report: Report) -> None:
        self._fn, self._report = fn, report
        self._compiled: Callable[..., Any] | None = None
        # the state of Python objects that grafted functions in its graphs read, which Dynamo does not guard
        self._states: list[PythonState] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not slot_of(None).backend.traces:
            return self._fn(*args, **kwargs)
        if self._compiled is None or not all(state.hold() for state in self._states):
            self._states.clear()
            self._compiled = self._captured()
        return self._compiled(*args, **kwargs)

    def _captured(self) -> Callable[..., Any]:
        import torch._dynamo

        def call(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        fn = self._fn
        # Dynamo caches by code object, and skips code in tensorgraft's files
        code = call.__code__.replace(co_name=self._report.name.rpartition(".")[2], co_filename="<tg.jit>")
        function = types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)
        patches.apply("compile")
        optimized: Callable[..., Any] = torch._dynamo.optimize(self._graph)(function)  # `torch.compile` may be ours
        return optimized

    def _graph(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compile a graph that Dynamo has captured."""
        from torch._dynamo.backends.registry import lookup_backend

        self._report.traces += 1
        self._report.operations.append(sum(node.op.startswith("call_") for node in module.graph.nodes))
        self._report.reasons.append([])
        try:
            name = slot_of(None).backend.dynamo
            if name is None or device_of(module, inputs) is not None:
                name = "tensorgraft"
            with states_met() as states:
                program: Callable[..., Any] = lookup_backend(name)(module, list(inputs))
            lasting = [state for state in states if state is not None and not state.repeats]
            if len(lasting) < len(states):
                raise TracedValueError("it calls a grafted function that changes Python's objects, or reads a clock")
            self._states += lasting
            return program
        except Exception as error:
            warnings.warn(
                f"a part of {self._report.name} is not compiled by tg.jit, but run by PyTorch: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return module.forward


class CpuCall:
    """Calls with arguments of one structure, in the place of a trace."""

    class guards:
        """No guards: Dynamo has its own."""

        @staticmethod
        def hold(leaves: Sequence[Any]) -> bool:
            return True

    def __init__(self, fn: OnCpu, structure: Structure) -> None:
        self._fn, self._structure = fn, structure

    def __call__(self, leaves: Sequence[Any]) -> Any:
        args, kwargs = unflatten_call(self._structure, list(leaves))
        return of_program(self._fn, *args, **kwargs)
