"""A graph of ATen operators, as AOTAutograd makes them, run on a backend.

It is one program of the backend wherever it can be. A node that the backend cannot compile (no kernel, or a result
whose shape depends on values) is PyTorch's own to run, and parts the graph in a piece before and a piece after it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate

from tensorgraft.frontends.torch.core.devices import Slot
from tensorgraft.frontends.torch.core.generator import seed_from
from tensorgraft.frontends.torch.core.modes import without_autocast
from tensorgraft.frontends.torch.core.state import RandomState
from tensorgraft.frontends.torch.dispatch import fallback
from tensorgraft.frontends.torch.graph.nodes import Untraceable, attribute_of, draws
from tensorgraft.frontends.torch.graph.program import Piece

_UNKNOWN = object()


@dataclass
class GraphStep:
    """A piece, or a node for PyTorch; where its inputs and results are among the values of a call."""

    run: Any
    inputs: list[int]
    outputs: list[int]
    effects: bool  # it may have some: it runs once in a call


class TorchGraph:
    """Called with the list of its inputs, which it empties (the convention that AOTAutograd calls boxed)."""

    def __init__(self, module: GraphModule, slot: Slot) -> None:
        self._boxed_call = True  # on the instance: Dynamo's wrapper copies no class attributes
        self.module, self.slot = module, slot
        self.random = draws(module)
        self._left_out: dict[Node, str | None] = {}  # nodes for PyTorch; the operator's name where it has no kernel
        self._nodes = list(module.graph.nodes)
        self._at = {node: k for k, node in enumerate(self._nodes)}
        self._constants = [
            (self._at[node], attribute)
            for node in self._nodes
            if node.op == "get_attr" and not isinstance(attribute := attribute_of(module, node), GraphModule)
        ]
        self._placeholders = [self._at[node] for node in self._nodes if node.op == "placeholder"]
        results = next(node for node in self._nodes if node.op == "output").args[0]
        self._results = [self._at[r] if isinstance(r, Node) else None for r in results]
        self._fixed = [None if isinstance(r, Node) else r for r in results]
        self._steps = self._parted()

    def __call__(self, args: list[Any]) -> list[Any]:
        seed = RandomState(seed=seed_from(None)).words()[:2] if self.random else None
        values: list[Any] = [_UNKNOWN] * len(self._nodes)
        for at, value in zip(self._placeholders, args, strict=True):
            values[at] = value
        for at, value in self._constants:
            values[at] = value
        args.clear()
        while True:
            try:
                for step in self._steps:
                    if step.effects and values[step.outputs[0]] is not _UNKNOWN:  # it has run before the error
                        continue
                    outputs = step.run([values[at] for at in step.inputs], seed)
                    for at, value in zip(step.outputs, outputs, strict=True):
                        values[at] = value
                break
            except Untraceable as error:
                self._leave_out(error)
        return [fixed if at is None else values[at] for at, fixed in zip(self._results, self._fixed, strict=True)]

    def _leave_out(self, error: Untraceable) -> None:
        """Nodes of this kind are PyTorch's from now on."""
        if error.node in self._left_out:
            raise error.cause
        name = error.cause.name if isinstance(error.cause, fallback.NoKernelError) else None
        same_target = [n for n in self._nodes if n.op == "call_function" and n.target is error.node.target]
        self._left_out.update(dict.fromkeys(same_target, name))
        self._steps = self._parted()

    def _parted(self) -> list[GraphStep]:
        """Pieces run at even times, PyTorch's nodes between them at odd ones, each as early as it can."""
        time: dict[Node, int] = {}
        groups: dict[int, list[Node]] = {}
        constants = {at for at, _ in self._constants}
        modules = {n for n in self._nodes if n.op == "get_attr" and self._at[n] not in constants}
        pytorchs = set(self._left_out)
        for node in self._nodes:
            if node.op in ("placeholder", "get_attr"):
                time[node] = -1
            elif node.op != "output":
                if node.target is operator.getitem and node.args[0] in pytorchs:
                    pytorchs.add(node)
                ready = max((time[n] for n in node.all_input_nodes), default=-1)
                time[node] = ready if ready % 2 == (node in pytorchs) else ready + 1
                groups.setdefault(time[node], []).append(node)
        steps = []
        for at, nodes in sorted(groups.items()):
            if at % 2:
                steps += [self._for_pytorch(node) for node in nodes]
            else:
                steps.append(self._piece(nodes, modules))
        return steps

    def _piece(self, nodes: list[Node], modules: set[Node]) -> GraphStep:
        node_set = set(nodes)
        functions = [n for n in self._nodes if n in modules and any(user in node_set for user in n.users)]
        used = {n for node in nodes for n in node.all_input_nodes}
        inputs = [n for n in self._nodes if n in used and n not in node_set and n not in modules]
        outputs = [n for n in nodes if any(user not in node_set for user in n.users)]
        numbered = [(self._at[n], n) for n in (*functions, *nodes)]
        piece = Piece(self.module, self.slot, numbered, inputs, outputs, self.random)
        return GraphStep(piece, [self._at[n] for n in inputs], [self._at[n] for n in outputs], False)

    def _for_pytorch(self, node: Node) -> GraphStep:
        inputs = node.all_input_nodes
        index_of = {n: k for k, n in enumerate(inputs)}
        modules = {n: attribute_of(self.module, n) for n in inputs if n.op == "get_attr"}
        name = self._left_out.get(node)

        def run(values: Sequence[Any], seed: Any) -> list[Any]:
            def value_of(a: Any) -> Any:
                return modules.get(a, values[index_of[a]]) if isinstance(a, Node) else a

            if name is not None:
                fallback.announce(name)
            args, kwargs = map_aggregate(node.args, value_of), map_aggregate(node.kwargs, value_of)
            with torch.no_grad(), without_autocast():
                return [node.target(*args, **kwargs)]  # type: ignore[operator]

        return GraphStep(run, [self._at[n] for n in inputs], [self._at[node]], True)
