"""Backward passes through compiled functions: what `tg.jit` keeps of autograd's graph between forward and backward.

The traced function leaves a graph of autograd behind its results. What the graph has saved are arrays of the traced
program: they become outputs of it (residuals), and a hook on each gives it back when the graph is walked again, in a
second trace, which is the backward program. Activations in memory are those that PyTorch itself would keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.frontends.torch.capture import Capture, Feed, active
from tensorgraft.frontends.torch.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.metadata import Metadata
from tensorgraft.frontends.torch.tensors import cell_of, from_array, to_array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

Array = Any
Tensor = torch.Tensor


@dataclass
class Residual:
    """A tensor that the graph has saved, as an array of the traced program."""

    array: int  # which, by its identity while the function was traced
    metadata: Metadata
    conj: bool
    neg: bool

    def on(self, cell: Storage) -> Tensor:
        t = self.metadata.on(cell)
        t = torch._conj(t) if self.conj else t
        return torch._neg_view(t) if self.neg else t


class Tape:
    """The graph behind some results of a traced function."""

    def __init__(self, roots: list[Tensor]) -> None:
        self.roots = roots
        self.leaves: list[Tensor] = []  # what the graph ends in: parameters and arguments
        self.arrays: list[Array] = []  # residuals in the traced program, each once
        self.spoilt: Exception | None = None  # why there can be no backward pass
        self._places: list[tuple[bool, int]] = []  # of each residual: an input of the program or an output, which
        self._current: dict[int, Storage] = {}  # the residuals while the graph is walked, by the traced array
        self._backward: Backward | None = None

    # ---- forward --------------------------------------------------------------------------------------------------

    def locate(self, inputs: dict[int, int], outputs: int) -> None:
        """Where a call finds the residuals: among the inputs that stay as they are, or from the first output on."""
        self._places = [
            (True, inputs[id(a)]) if id(a) in inputs else (False, outputs + k) for k, a in enumerate(self.arrays)
        ]
        self.arrays = [id(a) for a in self.arrays]

    def residuals(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        return [(inputs if is_input else outputs)[k] for is_input, k in self._places]

    def attach(
        self, backend: Backend, residuals: Sequence[Array], results: Sequence[Tensor], ends: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The results of a call with a history that ends in `ends`."""
        slot = slot_of_backend(backend)
        return _Outside.apply(self, [from_array(a, slot) for a in residuals], list(results), *ends)

    # ---- backward -------------------------------------------------------------------------------------------------

    def gradients(
        self, residuals: Sequence[Array], cotangents: Sequence[Array], backend: Backend
    ) -> list[Array | None]:
        """The gradients of the leaves; None where the results do not depend on one."""
        if self._backward is None:
            self._backward = self._trace(backend, residuals, cotangents)
        return self._backward([*residuals, *cotangents])

    def _unpacked(self, saved: Residual | Tensor) -> Tensor:
        return saved if isinstance(saved, Tensor) else saved.on(self._current[saved.array])

    def walk(self, capture: Capture, residuals: Sequence[Array], cotangents: Sequence[Array]) -> list[Array | None]:
        """The gradients of the leaves, computed by the kernels of the graph's nodes on these arrays. For an active
        capture. Raises the RuntimeError of a spoilt tape."""
        if self.spoilt is not None:
            raise self.spoilt
        backend = capture.backend
        slot = slot_of_backend(backend)

        def adopted(array: Array) -> Storage:
            cell = Storage(array, backend)
            capture.created(cell)
            return cell

        try:
            self._current = {a: adopted(new) for a, new in zip(self.arrays, residuals, strict=True)}
            dy = [from_array(a, slot) for a in cotangents]
            found = torch.autograd.grad(self.roots, self.leaves, dy, retain_graph=True, allow_unused=True)
            return [None if g is None else to_array(g) for g in found]
        finally:
            self._current = {}

    def _trace(self, backend: Backend, residuals: Sequence[Array], cotangents: Sequence[Array]) -> Backward:
        capture = Capture(backend)
        given = [backend.stand_in(a) for a in (*residuals, *cotangents)]
        used: list[bool] = []

        def traced() -> list[Array]:
            with active(capture):
                found = self.walk(capture, given[: len(residuals)], given[len(residuals) :])
            used.extend(g is not None for g in found)
            return [g for g in found if g is not None]

        try:
            program = backend.trace(traced)
        finally:
            capture.restore()
        places = {id(a): k for k, a in enumerate(given)}
        cells = {id(t.stand_in): t.cell for t in capture.touched}
        feeds = {id(f.stand_in): f for f in capture.feeds}
        inputs = [_source(a, places, cells, feeds) for a in program.captured]
        return Backward(program.compile(), inputs, used)


def _source(
    array: Array, places: dict[int, int], cells: dict[int, Storage], feeds: dict[int, Feed]
) -> Callable[[Sequence[Array]], Array]:
    """What an input of a backward program is at a call."""
    if (k := places.get(id(array))) is not None:
        return lambda given: given[k]
    if (cell := cells.get(id(array))) is not None:
        return lambda given: cell.array
    if (feed := feeds.get(id(array))) is not None:
        return lambda given: feed.take()
    return lambda given: array


@dataclass
class Backward:
    """The compiled backward pass of a tape."""

    run: Callable[..., tuple[Array, ...]]
    inputs: list[Callable[[Sequence[Array]], Array]]
    used: list[bool]  # which leaves have a gradient

    def __call__(self, given: Sequence[Array]) -> list[Array | None]:
        made = iter(self.run(*(source(given) for source in self.inputs)))
        return [next(made) if used else None for used in self.used]


class _Outside(torch.autograd.Function):
    """The compiled function as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, residuals: list[Tensor], results: list[Tensor], *ends: Tensor) -> Any:
        ctx.tape = tape
        ctx.save_for_backward(*residuals)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the backward pass of a function compiled by tg.jit cannot be differentiated (create_graph=True):"
                " compute the second derivative inside the compiled function"
            )
        arrays = [cell_of(t).array for t in ctx.saved_tensors]
        backend = cell_of(gradients[0]).backend
        slot = slot_of_backend(backend)
        found = ctx.tape.gradients(arrays, [to_array(g) for g in gradients], backend)
        return None, None, None, *(None if a is None else from_array(a, slot) for a in found)


def record(flat: Sequence[Any], identical: Sequence[int | None], first_node: int) -> tuple[list[int], Tape | None]:
    """(which of the results can be differentiated, the tape of these). Those that are arguments have their own history.

    `first_node` is the sequence number of autograd's nodes at which the function began. Raises RuntimeError where the
    graph goes on to nodes from before.
    """
    places = [
        i
        for i, t in enumerate(flat)
        if isinstance(t, Tensor) and t.device.type == TYPE and t.grad_fn is not None and identical[i] is None
    ]
    if not places:
        return [], None
    tape = Tape([flat[i] for i in places])
    arrays: dict[int, Array] = {}

    def pack(t: Tensor) -> Residual | Tensor:
        if t.device.type != TYPE:
            return t
        array = cell_of(t).array
        arrays[id(array)] = array
        return Residual(id(array), Metadata.of(t), t.is_conj(), t.is_neg())

    for node in nodes(tape.roots):
        variable = getattr(node, "variable", None)
        if variable is not None:
            tape.leaves.append(variable)
            continue
        if node._sequence_nr() < first_node:
            raise RuntimeError(
                f"a tensor from outside with a history of its own ({node.name()}) is used inside tg.jit, and its result"
                " can be differentiated: pass the tensor as an argument, or its detach()"
            )
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                try:
                    with _disable_current_modes():  # which would see numbers where autograd has 0-d tensors
                        for saved in _intact(node, name):
                            saved.register_hooks(pack, tape._unpacked)
                except RuntimeError as error:
                    if "freed" in str(error):  # by a backward pass inside: nothing is left to be differentiated
                        return [], None
                    tape.spoilt = error
    tape.arrays = list(arrays.values())
    return places, tape


def _intact(node: Any, name: str) -> list[Any]:
    """The saved tensors of a node, as autograd holds them. Raises PyTorch's RuntimeError where one was written since,
    or was freed."""
    raw = getattr(node, name)
    values = getattr(node, "saved_tensors" if name == "_raw_saved_tensors" else name.removeprefix("_raw"))
    if not isinstance(raw, list | tuple):
        raw, values = [raw], [values]
    return [saved for saved, value in zip(raw, values, strict=True) if value is not None]


def nodes(roots: Sequence[Tensor]) -> Iterator[Any]:
    """The nodes of autograd's graph behind tensors."""
    seen = set()
    stack = [t.grad_fn for t in roots]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(after for after, _ in node.next_functions)
