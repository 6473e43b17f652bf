"""A piece of a graph of ATen operators as programs of a backend: one for each shape that it is called with.

Its nodes are called one after the other on tensors of the device around the arrays that the backend traces: by the
same kernels as everywhere else.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from tensorgraft.frontends.torch.compiled.capture import active
from tensorgraft.frontends.torch.compiled.guards.recurring import Counts
from tensorgraft.frontends.torch.core import state
from tensorgraft.frontends.torch.core.devices import Slot
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.modes import without_autocast
from tensorgraft.frontends.torch.core.tensors import FROM_NUMPY, cell_of
from tensorgraft.frontends.torch.graph.nodes import GraphCapture, attribute, call_node
from tensorgraft.frontends.torch.graph.ports import Entrance, departure, entrance, view_of
from tensorgraft.hub.array import Array
from tensorgraft.precision import policy
from tensorgraft.storage import Storage, contiguous_strides

Tensor = torch.Tensor
# (the program's results as tensors, what the program was given) -> one result of the piece
Exit = Callable[[Sequence[Tensor], Sequence[Any]], Any]

_MANY = 16  # programs of one piece: more than that is worth a word


class Piece:
    """Nodes of a graph that are compiled together."""

    def __init__(
        self,
        module: GraphModule,
        slot: Slot,
        nodes: list[tuple[int, Node]],
        inputs: list[Node],
        outputs: list[Node],
        random: bool,
    ) -> None:
        """`nodes`: with their numbers in the graph."""
        self.module, self.slot, self.nodes = module, slot, nodes
        self.inputs, self.outputs, self.random = inputs, outputs, random
        self.done = _last_uses([node for _, node in nodes], set(outputs))
        # inputs that vary between calls; Dynamo guards the others
        self._varying = [i for i, node in enumerate(inputs) if _varies(node)]
        self._programs: dict[Any, FxProgram] = {}
        # PyTorch can compute it as well: no random numbers, which are the backend's, nor branches and loops
        self._plain = not random and not any(n.op == "get_attr" for _, n in nodes)
        self._cold = Counts()

    def __call__(self, values: Sequence[Any], seed: np.ndarray | None) -> list[Any]:
        """Return the outputs, given the inputs (tensors and numbers) and the seed (uint32 (2,)) of random nodes."""
        key = (policy(), *[_signature(values[i]) for i in self._varying])
        program = self._programs.get(key)
        if program is None and self._plain and self._cold.waits(self.slot.backend, key, len(self._programs)):
            return self._by_pytorch(values)
        if program is None:
            program = self._programs[key] = FxProgram(self, values)
            if len(self._programs) == _MANY and self.slot.backend.compiles:
                warnings.warn(
                    f"a graph of torch.compile has been compiled for {_MANY} different sizes or numbers, each of"
                    " which takes as long as the first: use few different shapes (by padding), and pass numbers"
                    f" that change as tensors. The last: {self._described(values)}",
                    UserWarning,
                    stacklevel=2,
                )
        return program(values, seed)

    def _by_pytorch(self, values: Sequence[Any]) -> list[Any]:
        """Run the graph node by node, for sizes that have not occurred often enough to be compiled."""
        environment: dict[Node, Any] = dict(zip(self.inputs, values, strict=True))
        with torch.no_grad(), without_autocast():
            for _, node in self.nodes:
                args, kwargs = map_arg((node.args, node.kwargs), environment.__getitem__)
                environment[node] = node.target(*args, **kwargs)  # type: ignore[operator]
                for used in self.done.get(node, ()):
                    del environment[used]
        return [environment[node] for node in self.outputs]

    def _described(self, values: Sequence[Any]) -> str:
        shapes = (values[i] for i in self._varying)
        return ", ".join(str(tuple(v.shape) if isinstance(v, Tensor) else v) for v in shapes)


def _varies(node: Node) -> bool:
    example = node.meta.get("val")
    if node.op == "placeholder" and isinstance(example, Tensor):
        return not all(type(n) is int for n in (*example.size(), *example.stride()))
    return node.op != "get_attr"


def _signature(value: Any) -> Any:
    return (value.shape, value.stride()) if isinstance(value, Tensor) else (type(value), value)


class FxProgram:
    """A piece of the graph, compiled for inputs of the shapes and dtypes of `values`."""

    def __init__(self, piece: Piece, values: Sequence[Any]) -> None:
        self.piece, self.backend = piece, piece.slot.backend
        self.entrances: dict[int, Entrance] = {}
        self.numbers: dict[int, Any] = {}
        for i, value in enumerate(values):
            if isinstance(value, Tensor):
                self.entrances[i] = entrance(value, piece.slot)
            else:
                self.numbers[i] = value
        self._takes = [(i, port.take) for i, port in self.entrances.items()]
        self._run = self.backend.compile(self._traced)
        self._gives: list[Callable[[Array], Tensor]] = []  # for each result of the program
        self._exits: list[Exit] = []

    def __call__(self, values: Sequence[Any], seed: np.ndarray | None) -> list[Any]:
        arrays: list[Array | None] = [take(values[i]) for i, take in self._takes]
        if self.piece.random:
            arrays.append(seed)
        arrays_out = self._run(*arrays)
        tensors = [give(array) for give, array in zip(self._gives, arrays_out, strict=True)]
        return [leave(tensors, values) for leave in self._exits]

    def _traced(self, *arrays: Array) -> tuple[Array, ...]:
        piece = self.piece
        capture = GraphCapture(self.backend, arrays[-1] if piece.random else None)
        try:
            # autograd has done its part, and so has autocast: both are in the graph
            with active(capture), torch.no_grad(), without_autocast():
                environment: dict[Node, Any] = {piece.inputs[i]: value for i, value in self.numbers.items()}
                inputs: dict[Storage, int] = {}  # {storage: number of the input}
                for (i, port), array in zip(self.entrances.items(), arrays, strict=False):
                    cell = state.created(Storage(array, self.backend))
                    inputs[cell] = i
                    environment[piece.inputs[i]] = port.tensor(cell)
                for number, node in piece.nodes:
                    capture.begin(number)
                    if node.op == "get_attr":
                        environment[node] = attribute(piece.module, node, piece.slot)
                    else:
                        environment[node] = call_node(node, environment, piece.slot)
                    for used in piece.done.get(node, ()):
                        del environment[used]
                return self._leave([environment[node] for node in piece.outputs], inputs)
        finally:
            capture.restore()

    def _leave(self, results: list[Any], inputs: dict[Storage, int]) -> tuple[Array, ...]:
        """Return the arrays that the program returns; how the results are found in them."""
        cells: list[Storage] = []
        self._gives, self._exits = [], []
        for node, result in zip(self.piece.outputs, results, strict=True):
            if not isinstance(result, Tensor):
                self._exits.append(_constant(result))
                continue
            cell = cell_of(result)
            at = inputs.get(cell)
            if at is not None:
                port = self.entrances[at]
                self._exits.append(_of_input(at, port.lazily, view_of(result, port.metadata)))
                continue
            k = next((k for k, known in enumerate(cells) if known is cell), len(cells))
            if k == len(cells):
                cells.append(cell)
                self._gives.append(departure(self.piece.slot, node.meta["val"].device))
            self._exits.append(_of_result(k, view_of(result, _whole_metadata(self.backend, cell))))
        return tuple(cell.array for cell in cells)


def _constant(value: Any) -> Exit:
    return lambda results, values: value


def _of_input(at: int, plain: Callable[[Tensor], Tensor], view: Callable[[Tensor], Tensor]) -> Exit:
    return lambda results, values: view(plain(values[at].detach()))


def _of_result(k: int, view: Callable[[Tensor], Tensor]) -> Exit:
    return lambda results, values: view(results[k])


def _whole_metadata(xp: Any, cell: Storage) -> Metadata:
    """Return the metadata of a tensor that is all of a storage, in the shape of its array."""
    shape, dtype = xp.shape(cell.array), FROM_NUMPY[xp.dtype_of(cell.array)]
    return Metadata(dtype, shape, contiguous_strides(shape), 0, 0)


def _last_uses(nodes: list[Node], kept_nodes: set[Node]) -> dict[Node, list[Node]]:
    """Return, for each node, the nodes that it is the last to use, except those of `kept_nodes`."""
    last: dict[Node, Node] = {}
    for node in nodes:
        for used in node.all_input_nodes:
            last[used] = node
    dead_after: dict[Node, list[Node]] = {}
    for used, node in last.items():
        if used not in kept_nodes:
            dead_after.setdefault(node, []).append(used)
    return dead_after
