"""Programs recorded on PyTorch: an FX graph, compiled by Inductor where there is a C++ compiler, else run as it is."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from tensorgraft import warning_filters
from tensorgraft.backends.torch import arrays
from tensorgraft.backends.torch.recorder import Module, Recorder
from tensorgraft.hub.analysis import Analysis

Tensor = torch.Tensor
COMPILER = "TENSORGRAFT_TORCH_COMPILER"  # "inductor", or "none": graphs run operator by operator


@functools.cache
def compiler() -> str:
    """Return how programs are run: as the environment says, else by Inductor where it can compile."""
    choice = os.environ.get(COMPILER)
    if choice in ("inductor", "none"):
        return choice
    if choice:
        raise ValueError(f"{COMPILER} is {choice!r}: expected 'inductor' or 'none'")
    has_compiler = any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++")))
    return "inductor" if has_compiler or torch.cuda.is_available() else "none"


class _Backend(Protocol):
    """The part of `TorchBackend` that programs use."""

    device: torch.device

    def scope(self) -> contextlib.AbstractContextManager[None]: ...
    def pure(self) -> contextlib.AbstractContextManager[None]: ...
    def compile(self, fn: Any, /) -> Any: ...


class TorchProgram:
    """The record of a function without arguments: every tensor that it read is an input."""

    def __init__(self, backend: _Backend, fn: Callable[[], Sequence[Tensor]]) -> None:
        self._backend = backend
        recorder = Recorder()
        with backend.scope(), backend.pure(), recorder.recording():
            recorder.close(tuple(fn()))
        self._module = recorder.module()
        self.captured: list[Tensor] = recorder.inputs

    @property
    def size(self) -> int:
        return sum(node.op == "call_function" for node in self._module.graph.nodes)

    def listing(self) -> list[str]:
        return [node.format_node() or node.name for node in self._module.graph.nodes]

    def frames_of(self, line: int) -> Sequence[tuple[str, int]]:
        return ()

    def analyse(self, donate: Sequence[int] = ()) -> Analysis:
        calls = Counter(str(n.target) for n in self._module.graph.nodes if n.op == "call_function")
        mode = FakeTensorMode()
        with mode, FlopCounterMode(display=False) as counter:
            self._module(*map(mode.from_tensor, self.captured))
        return Analysis(dict(calls.most_common()), flops=float(counter.get_total_flops()))

    def uncompiled(self) -> Callable[..., Sequence[Tensor]]:
        """Return the graph as a function of the captured tensors that runs operator by operator. Constants are created
        once, and operators that return a tensor unchanged are left out."""
        graph = copy.deepcopy(self._module.graph)
        module = Module(self._module, graph)
        for k, node in enumerate(graph.find_nodes(op="call_function", target=torch.ops.aten.full.default)):
            setattr(module, f"constant_{k}", torch.full(*node.args, **node.kwargs))
            with graph.inserting_before(node):
                node.replace_all_uses_with(graph.create_node("get_attr", f"constant_{k}"))
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.permute.default):
            source, order = node.args
            if list(order) == list(range(len(order))):
                node.replace_all_uses_with(source)
        graph.eliminate_dead_code()
        module.recompile()
        run: Callable[..., Sequence[Tensor]] = module.forward
        return run

    def compile(self, donate: Sequence[int] = ()) -> Callable[..., tuple[Tensor, ...]]:
        module, device = self._module, self._backend.device
        programs: list[Callable[..., Sequence[Tensor]]] = []

        def run(*operands: Any) -> tuple[Tensor, ...]:
            inputs = [arrays.from_numpy(x, device) if isinstance(x, np.ndarray) else x for x in operands]
            if not programs:
                programs.append(_compiled(module, inputs))
            # results have memory of their own, for they are written in place later: none is an input, or another result
            seen_ids, results = set(map(id, inputs)), []
            for x in programs[0](*inputs):
                results.append(x.clone(memory_format=torch.contiguous_format) if id(x) in seen_ids else arrays.own(x))
                seen_ids.add(id(x))
            return tuple(results)

        return self._backend.compile(torch.no_grad()(run))


def _compiled(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    if compiler() == "none" or not any(node.op == "call_function" for node in module.graph.nodes):
        return module.forward  # hooks that the program has put on all modules are not for this one
    from torch._inductor.compile_fx import compile_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # shapes are constants; loops count in symbols, which a mode without an environment has not
    mode = FakeTensorMode(shape_env=ShapeEnv())
    # floats narrower than float32 are rounded where the program rounds them, as kernels that run one by one do
    with warning_filters.remembered():
        compiled: Any = compile_fx(
            module,
            [mode.from_tensor(x, static_shapes=True) for x in inputs],
            config_patches={"emulate_precision_casts": True},
        )
    return compiled
