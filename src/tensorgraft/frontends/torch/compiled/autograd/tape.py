"""Backward passes through compiled functions: autograd's graph of a traced function, kept for the backward program.

Tracing the function records autograd's graph of its results. The tensors saved in that graph are arrays of the traced
program; they become additional outputs (residuals). The backward program is a second trace, in which autograd runs the
same graph, and a hook on each saved tensor returns its residual (`replay`). The activations kept in memory are those
that PyTorch itself would keep. A backward pass that is differentiated again records a graph too: a tape that continues
another one (`before`).
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.compiled.function import one_at_a_time
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.compiled.autograd import replay
from tensorgraft.frontends.torch.compiled.autograd.compiled_node import CompiledNode, present, retaining
from tensorgraft.frontends.torch.compiled.autograd.saved_tensors import (
    Parts,
    Residual,
    Saved,
    nodes,
    saved_of_node,
    separate_parts,
)
from tensorgraft.frontends.torch.compiled.capture import Capture, Mark
from tensorgraft.frontends.torch.compiled.host.call_tensors import LiveTensor, ReleasedArgument
from tensorgraft.frontends.torch.core import codes, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.modes import OwnMode
from tensorgraft.frontends.torch.core.state import RandomState
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, to_array
from tensorgraft.frontends.torch.sparse.calls import current_device
from tensorgraft.frontends.torch.sparse.parts import form_of, is_sparse, parts_of
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage, contiguous_strides

Tensor = torch.Tensor
_SavedTensor: Any = torch.autograd.SavedTensor


class Surrounded:
    """Observes the reads and changes of hooks and functions of the program in a backward pass.

    Arguments:
        fn: the traced function.
    """

    def __init__(self, fn: Any = None) -> None:
        self._fn = fn
        self.hold: Callable[[], bool] = lambda: True  # True while it is as when the function was traced
        self.left: Callable[[], None] = lambda: None  # called when a backward pass has changed something

    def changed(self, trace: Callable[[], Any]) -> tuple[Any, bool]:
        """Trace a backward pass; return (its result, True if it has changed anything outside)."""
        world = Reachable([("", self._fn)])
        result = trace()
        try:
            return result, bool(world.changes())
        except RunsUncompiled:
            return result, True


class Tape:
    """Autograd's graph of some results of a traced function, or of a traced backward pass."""

    def __init__(self, roots: list[Tensor], before: Tape | None = None) -> None:
        self.roots = roots
        self.before = before  # the tape that this one continues
        self.leaves: list[Tensor] = []  # the leaves of the graph: parameters and arguments
        self._edges: list[GradientEdge] = []  # of the leaves, which may no longer require gradients
        self.spoilt: Exception | None = None  # why there can be no backward pass
        self.arrays: list[Array] = []  # residuals in the traced program, each once
        self._first: int = 0 if before is None else before._first + before._count
        self._count: int = 0
        self._keys: dict[int, int] = {}  # {id of an array: key of the residual}, during the trace
        self._residual_sources: list[tuple[bool, int] | Callable[[Any], Array]] = []
        self.replayed: list[tuple[Storage, int]] = []  # storages that functions running again may read, with their keys
        self._marks: dict[
            int, tuple[RandomState, int | None, int]
        ] = {}  # random states to which they return: (state, words, draws)
        self._host_tensors: dict[
            int, tuple[weakref.ref[Tensor], LiveTensor]
        ] = {}  # tensors of the host that are no constants
        self._current: list[Storage] = [] if before is None else before._current  # while the graph is walked
        self._programs: dict[Hashable, tuple[replay.Backward, Tape | None]] = {}
        self.detached: frozenset[int] = frozenset()  # leaves that replace arguments with a history, by identity
        self.hidden = False  # nodes contain other nodes, whose saved tensors are inaccessible
        self.retained: list[Tensor] = []  # tensors with `retain_grad`
        self.saved: dict[int, tuple[int, ...]] = {}  # {id of a storage: keys of its residuals}
        self.originals: set[int] = set()  # identities of tensors that are saved themselves, not as views
        self._watched: list[tuple[Callable[[Sequence[Any]], Tensor], tuple[int, ...], bool]] = []  # from outside
        self._saved_results: list[tuple[int, tuple[int, ...]]] = []  # (position of a result, keys of its residuals)
        self.saves = False  # nodes have saved tensors, which a backward pass releases
        self.parts: Parts | None = None  # the unconnected parts of the graph, if there are several
        self.packed: tuple[int, ...] = ()  # keys of the tensor that was packed last
        self.python = False  # hooks or functions of the program run in a backward pass
        self.surroundings = Surrounded()

    # ---- forward --------------------------------------------------------------------------------------------------

    def _key(self, array: Array) -> int:
        """Return the key of a residual. The array stays alive during the trace, so its identity is unique."""
        k = self._keys.setdefault(id(array), len(self.arrays))
        if k == len(self.arrays):
            self.arrays.append(array)
        return self._first + k

    def pack(self, t: Tensor) -> Any:
        """Return what a node saves instead of a tensor."""
        if is_sparse(t) and t.device.type == TYPE:
            packed = [(self.pack(part), self.packed) for part in parts_of(t)]
            self.packed = tuple(key for _, keys in packed for key in keys)
            return form_of(t), [part for part, _ in packed]
        self.packed = ()
        if t.device.type != TYPE:
            view = replay.fed_view(t)
            if view is None:
                return t
            nbytes = math.prod(t.shape) * t.element_size()
            metadata = Metadata(t.dtype, tuple(t.shape), contiguous_strides(tuple(t.shape)), 0, nbytes)
            self.packed = (self._key(view),)
            return Residual(self.packed, metadata, False, False)
        state.touch(cell_of(t))
        keys = self.packed = tuple(self._key(cell.array) for cell in codes.split_quantized([cell_of(t)]))
        self.saved[id(cell_of(t))] = keys
        return Residual(keys, Metadata.of(t), t.is_conj(), t.is_neg())

    def hooks(self) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
        """Return hooks for saved tensors. They refer to the tape weakly: the tape owns the graph, and Python's garbage
        collector does not see references from its nodes."""
        tape_ref: Any = weakref.ref(self)
        return lambda t: tape_ref().pack(t), lambda saved: tape_ref().unpack(saved)

    def unpack(self, saved: Any) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        if isinstance(saved, tuple):
            form, parts = saved
            return form.build([self.unpack(part) for part in parts])
        cells = [self._current[key] for key in saved.keys]
        if saved.metadata.kind is None:
            return saved.on(cells[0])
        arrays = [cell.array for cell in cells]
        return saved.on(state.created(codes.storage(arrays, saved.metadata.kind, cells[0].backend)))

    def keep(self, capture: Capture, cells: Sequence[Storage]) -> None:
        """Keep the state that recomputed functions and hidden nodes may read in a backward pass: random states and
        these storages (of arguments, and of tensors made inside that are alive when the function ends)."""
        if not (capture.replays or self.hidden or any(ref() is not None for ref in capture.checkpoints)):
            return
        if capture.host is not None and capture.host.roots:
            raise RunsUncompiled("writes a CPU tensor, and has functions that run again in a backward pass outside")
        cells_by_id = {id(cell): cell for cell in cells if cell.capture is capture}
        self.replayed = [(cell, self._key(cell.array)) for cell in codes.split_quantized(list(cells_by_id.values()))]
        for token, mark in capture.marks.items():
            words = capture.bases.get(id(mark.source)) if mark.words is None else mark.words
            self._marks[token] = (mark.source, None if words is None else self._key(words), mark.draws)
        self._host_tensors = {key: (weakref.ref(t), live) for key, (t, live) in capture.fed_tensors.items()}

    def watch(
        self, outside: Sequence[tuple[Tensor, Callable[[Sequence[Any]], Tensor]]], results: Sequence[Any]
    ) -> None:
        """Note which tensors share memory with saved ones: of tensors from outside, given with a function that finds
        them at a call, and of results."""
        cells = [(id(cell_of(t)), id(t) in self.originals, find) for t, find in outside]
        self._watched = [(find, self.saved[cell], original) for cell, original, find in cells if cell in self.saved]
        of_results = [
            (k, id(cell_of(t))) for k, t in enumerate(results) if isinstance(t, Tensor) and t.device.type == TYPE
        ]
        self._saved_results = [(k, self.saved[cell]) for k, cell in of_results if cell in self.saved]

    def saved_of(self, arguments: Sequence[Any], results: Sequence[Any]) -> list[Saved]:
        """Return the saved tensors of a call that the program can modify afterwards."""
        watched = [(get(arguments), keys, original) for get, keys, original in self._watched]
        saved_arguments = [Saved(t if original else t.detach(), keys) for t, keys, original in watched]
        return saved_arguments + [Saved(results[k].detach(), keys) for k, keys in self._saved_results]

    def outputs(self, inputs: set[int], arrays: Sequence[Array]) -> list[Array]:
        """Return the residuals that the program returns in addition to `arrays`: those that are no inputs."""
        known = inputs | {id(a) for a in arrays}
        return [a for a in self.arrays if id(a) not in known]

    def locate(
        self, inputs: dict[int, int], arrays: Sequence[Array], sources: dict[int, Callable[[Any], Array]] | None = None
    ) -> None:
        """Note where a call finds the residuals: among the program's inputs, its outputs (`arrays` first), or by a
        source, a function of the arguments."""
        outputs: dict[int, int] = {}
        for k, a in enumerate(arrays):
            outputs.setdefault(id(a), k)
        output_count = len(arrays)
        for a in self.arrays:
            if id(a) in inputs:
                self._residual_sources.append((True, inputs[id(a)]))
            elif id(a) in outputs:
                self._residual_sources.append((False, outputs[id(a)]))
            elif sources is not None and id(a) in sources:
                self._residual_sources.append(sources[id(a)])
            else:
                self._residual_sources.append((False, output_count))
                output_count += 1
        self._count, self.arrays, self._keys = len(self.arrays), [], {}

    def residuals(self, inputs: Sequence[Array], outputs: Sequence[Array], arguments: Any) -> list[Array]:
        saved = []
        for place_of_residual in self._residual_sources:
            if isinstance(place_of_residual, tuple):
                saved.append((inputs if place_of_residual[0] else outputs)[place_of_residual[1]])
            else:
                saved.append(place_of_residual(arguments))
        return saved

    def attach(
        self,
        backend: Backend,
        residuals: Sequence[Any],
        results: Sequence[Tensor],
        ends: Sequence[Tensor],
        saved: Sequence[Saved] = (),
    ) -> tuple[Tensor, ...]:
        """Return the results of a call with a history that ends in `ends`, whatever the gradient mode is."""
        if not torch.is_grad_enabled():
            with torch.enable_grad():
                return self.attach(backend, residuals, results, ends, saved)
        slot = slot_of_backend(backend)
        arrays = [a if backend.is_array(a) else backend.asarray(a) for a in residuals]
        without = [t for t in ends if not t.requires_grad]  # the function has set and unset it
        for t in without:
            t.requires_grad_()
        out = CompiledNode.apply(self, [from_array(a, slot) for a in arrays], saved, list(results), *ends)
        for t in without:
            t.requires_grad_(False)
        if self.retained and out[0].grad_fn is not None:
            positions = {id(t): o for t, o in zip(self.roots, out, strict=True)}
            out[0].grad_fn.retained = [
                retaining(retained_tensor, positions.get(id(retained_tensor))) for retained_tensor in self.retained
            ]
        return out

    # ---- backward -------------------------------------------------------------------------------------------------

    def following(self, roots: list[Tensor], first_node: int, capture: Capture) -> Tape | None:
        """Return the tape of gradients computed by `walk`, for derivatives of higher order."""
        following_tape = taped(roots, first_node, capture, self)
        if following_tape is not None:
            following_tape.python, following_tape.surroundings = self.python, self.surroundings
        return following_tape

    def chain(self) -> Iterator[Tape]:
        """Yield this tape and those before it."""
        yield self
        if self.before is not None:
            yield from self.before.chain()

    def gradients(
        self,
        residuals: Sequence[Array],
        cotangents: Sequence[Tensor | None],
        backend: Backend,
        batched: tuple[bool, ...] = (),
    ) -> list[Tensor | None]:
        """Return the gradients of the leaves, then of retained tensors; None if the results do not depend on one.

        `cotangents`: None for a result without one. `batched`: which of the others have a leading batch axis
        (`is_grads_batched`), which the gradients then have, too."""
        arrays = [None if t is None else to_array(t) for t in cotangents]
        program, _ = self._program(residuals, arrays, backend, False, batched)
        slopes, _ = program([*residuals, *present(arrays)])
        return program.tensors(slopes, slot_of_backend(backend), self.leaves + self.retained)

    def differentiable_gradients(
        self,
        residuals: Sequence[Array],
        cotangents: Sequence[Tensor | None],
        backend: Backend,
        ends: Sequence[Tensor],
        saved: Sequence[Saved] = (),
    ) -> list[Tensor | None]:
        """Return the gradients with a history that ends in `ends` and in the cotangents."""
        arrays = [None if t is None else to_array(t.detach()) for t in cotangents]
        program, tape = self._program(residuals, arrays, backend, True)
        slopes, more_residuals = program([*residuals, *present(arrays)])
        gradients = program.tensors(slopes, slot_of_backend(backend), self.leaves + self.retained)
        if tape is not None:
            all_ends = [program.end(t, ends, present(cotangents)) for t in tape.leaves]
            roots = program.roots
            values: Any = [gradients[i] for i in roots]
            attached = tape.attach(backend, [*residuals, *more_residuals], values, all_ends, saved)
            for i, t in zip(roots, attached, strict=True):
                gradients[i] = t
        return gradients

    def _program(
        self,
        residuals: Sequence[Array],
        cotangents: Sequence[Array | None],
        backend: Backend,
        differentiable: bool,
        batched: tuple[bool, ...] = (),
    ) -> tuple[replay.Backward, Tape | None]:
        """Return the backward program for cotangents of these shapes, dtypes and strides, and its tape."""
        signatures = [None if a is None else (backend.signature(a), _strides(a)) for a in cotangents]
        key = (differentiable, batched, *signatures)
        holds = not self.python or self.surroundings.hold()
        if key in self._programs and holds:
            return self._programs[key]
        with one_at_a_time:
            if key in self._programs and holds:
                return self._programs[key]
            trace = functools.partial(
                replay.trace_backward, self, backend, residuals, cotangents, differentiable, batched
            )
            built, changed = self.surroundings.changed(trace) if self.python else (trace(), False)
            if changed:  # every backward pass changes it
                self.surroundings.left()
            elif holds:
                self._programs[key] = built
        return built

    def walk(
        self,
        capture: Capture,
        residuals: Sequence[Array],
        cotangents: Sequence[Tensor | None],
        differentiable: bool = False,
    ) -> list[Tensor | None]:
        """Run autograd on the graph with these residuals. Returns the gradients of the leaves and of retained tensors.
        Called in an active capture. Raises the RuntimeError of a spoilt tape."""
        tapes = list(self.chain())
        for tape in tapes:
            if tape.spoilt is not None:
                raise tape.spoilt
        cells = [Storage(array, capture.backend) for array in residuals]
        for cell in cells:
            capture.created(cell)
        self._current[:] = cells
        arrays_before = []
        for tape in tapes:
            for token, (source, key, draws) in tape._marks.items():
                capture.marks[token] = Mark(source, None if key is None else residuals[key], draws)
            for key, (ref, live) in tape._host_tensors.items():
                if (t := ref()) is not None:
                    capture.fed_tensors[key] = (t, ReleasedArgument() if live.of_argument else live)
            for cell, key in tape.replayed:
                arrays_before.append((cell, cell.array))
                cell.array = residuals[key]
                capture.created(codes.owner(cell))
        # the hooks of leaves run outside, in autograd, on the accumulated gradient
        hooks = [t._backward_hooks for t in self.leaves if id(t) not in self.detached and t._backward_hooks]
        hidden = [(table, dict(table)) for table in hooks]
        gradients_before = [(t, t.grad) for t in self.retained]
        for table in hooks:
            table.clear()
        seeds = [(t, dy) for t, dy in zip(self.roots, cotangents, strict=True) if dy is not None]

        def slopes(
            of: Sequence[Tensor] | Sequence[GradientEdge], excluded: Tensor | None = None
        ) -> list[Tensor | None]:
            seeds_left = [(t, dy) for t, dy in seeds if t is not excluded]
            if not seeds_left or not of:
                return [None] * len(of)
            roots, dys = map(list, zip(*seeds_left, strict=True))
            return list(
                torch.autograd.grad(roots, of, dys, retain_graph=True, create_graph=differentiable, allow_unused=True)
            )

        try:
            with OwnMode():  # PyTorch's derivative formulas then read no values
                # a tensor retains the gradient from outside, unless hooks of its own come first
                retained = ((t, None if t._backward_hooks else t) for t in self.retained)
                return [*slopes(self._edges), *(slope for t, but in retained for slope in slopes([t], but))]
        finally:
            for table, entries in hidden:
                table.update(entries)
            for t, before in gradients_before:
                t.grad = before
            self._current.clear()
            for cell, array in arrays_before:
                cell.array, codes.owner(cell).capture = array, None


def _strides(array: Array) -> Any:
    """Return the strides of an array if its framework has strides, on which a compiled program may depend."""
    stride = getattr(array, "stride", None)
    return stride() if callable(stride) else None


# saved tensors that are views on the CPU, which are not affected by later assignments to `.data`
_VIEWED = {("LinearBackward0", "_raw_saved_weight")}


def taped(roots: list[Tensor], first_node: int, capture: Capture, before: Tape | None = None) -> Tape | None:
    """Return the tape of some results; None if there is nothing to differentiate."""
    tape, saving = Tape(roots, before), dict[Any, set[int]]()
    for node in nodes(roots):
        variable = getattr(node, "variable", None)
        if variable is not None:
            tape.leaves.append(variable)
            tape._edges.append(GradientEdge(node, 0))
            continue
        if node._sequence_nr() < first_node:
            if before is not None:  # its graph
                continue
            raise RunsUncompiled(f"uses a tensor from outside that has a grad_fn ({node.name()})")
        tape.python = tape.python or isinstance(node, torch.autograd.function.BackwardCFunction)
        tape.hidden = tape.hidden or node.name().endswith(
            "CopySlices"
        )  # a view was written: holds the node of the write
        for name in dir(node):
            if name.startswith("_raw_saved_"):
                try:
                    # modes would see Python numbers in place of autograd's 0-d tensors; of a sparse tensor, PyTorch
                    # makes an empty one on the current device
                    with _disable_current_modes(), current_device(slot_of_backend(capture.backend).device):
                        for saved, value in saved_of_node(node, name):
                            saved.register_hooks(*tape.hooks())
                            saving.setdefault(node, set()).update(tape.packed)
                            if (node.name(), name) not in _VIEWED:
                                tape.originals.add(id(value))
                except RuntimeError as error:
                    if "freed" in str(error):
                        return _used_up(roots, before, error)
                    tape.spoilt = error
    if before is None and not tape.leaves:
        raise RunsUncompiled("returns a tensor whose history reaches no leaf")
    for ref in capture.checkpoints:
        if (frame := ref()) is not None:
            for saved in frame.saved_args:
                if isinstance(saved, _SavedTensor) and saved.unpack_hook is None:
                    with _disable_current_modes():
                        saved.register_hooks(*tape.hooks())
    tape.saves = bool(saving)
    seen_whole = not (tape.hidden or tape.python or capture.checkpoints)
    if saving and before is None and len(roots) > 1 and seen_whole:
        tape.parts = separate_parts(roots, saving)
    return tape


def _used_up(roots: list[Tensor], before: Tape | None, error: RuntimeError) -> Tape | None:
    """Return the tape of results whose graph a backward pass inside has freed: they require gradients, but another
    backward pass raises PyTorch's error. It has no residuals."""
    tape = Tape(roots, before)
    variables = (getattr(node, "variable", None) for node in nodes(roots))
    tape.leaves = [t for t in variables if t is not None][:1]
    tape.spoilt = error
    return tape if tape.leaves else None
