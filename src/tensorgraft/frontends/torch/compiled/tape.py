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
import operator
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import GradientEdge
from torch.utils._python_dispatch import _disable_current_modes

from tensorgraft.compiled.function import one_at_a_time
from tensorgraft.compiled.side_effects import Reachable
from tensorgraft.compiled.uncompiled import RunsUncompiled
from tensorgraft.frontends.torch.compiled import replay
from tensorgraft.frontends.torch.compiled.capture import Capture, Mark
from tensorgraft.frontends.torch.compiled.host_tensors import LiveTensor, ReleasedArgument
from tensorgraft.frontends.torch.core import codes, state
from tensorgraft.frontends.torch.core.devices import TYPE, slot_of_backend
from tensorgraft.frontends.torch.core.metadata import Metadata
from tensorgraft.frontends.torch.core.modes import OwnMode
from tensorgraft.frontends.torch.core.state import RandomState
from tensorgraft.frontends.torch.core.tensors import cell_of, from_array, to_array
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage, contiguous_strides

Tensor = torch.Tensor
_functorch: Any = torch._C._functorch
_SavedTensor: Any = torch._C._autograd.SavedTensor


@dataclass
class Residual:
    """A tensor saved by autograd's graph, as keys of residuals and its metadata."""

    keys: tuple[int, ...]  # of its residuals; a quantised tensor has several
    metadata: Metadata
    conj: bool
    neg: bool

    def on(self, cell: Storage) -> Tensor:
        t = self.metadata.on(cell)
        t = torch.conj(t) if self.conj else t
        return torch.ops.aten._neg_view(t) if self.neg else t


class Saved:
    """A tensor outside, or an alias of it, whose memory the graph has saved. The backward pass reads its current
    values, so it sees writes through `.data`; other writes raise PyTorch's error."""

    def __init__(self, t: Tensor, keys: tuple[int, ...]) -> None:
        self.t, self.version, self._keys = t, t._version, keys
        self._geometry = t.dtype, t.size(), t.stride(), t.storage_offset()

    def put(self, residuals: list[Array]) -> None:
        """Put its current arrays into the residuals. Raises RuntimeError if it was modified in place."""
        t = self.t
        if t._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation:"
                f" a tensor of shape {tuple(t.shape)} saved by a compiled function is at version {t._version};"
                f" expected version {self.version} instead"
            )
        if (t.dtype, t.size(), t.stride(), t.storage_offset()) != self._geometry:
            raise RuntimeError(
                "a tensor that a compiled function has saved for its backward pass, of shape"
                f" {tuple(self._geometry[1])} and {self._geometry[0]}, has changed its shape, dtype or layout:"
                f" {tuple(t.shape)}, {t.dtype}"
            )
        for key, cell in zip(self._keys, codes.split_quantized([cell_of(t)]), strict=True):
            residuals[key] = cell.array


class Surrounded:
    """Observes what hooks and functions of the program read and change in a backward pass.

    Arguments:
        fn: the function that was traced.
    """

    def __init__(self, fn: Any = None) -> None:
        self._fn = fn
        self.hold: Callable[[], bool] = lambda: True  # True while it is as when the function was traced
        self.left: Callable[[], None] = lambda: None  # called when a backward pass has changed something

    def changed(self, trace: Callable[[], Any]) -> tuple[Any, bool]:
        """Trace a backward pass; return (its result, True if it has changed anything outside)."""
        world = Reachable([("", self._fn)])
        result = trace()
        return result, bool(world.changes())


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
        self._keys: dict[int, int] = {}  # of the residuals, while the function is traced, by identity
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
        self.saved: dict[int, tuple[int, ...]] = {}  # by the identity of storages: the keys of their residuals
        self.originals: set[int] = set()  # identities of tensors that are saved themselves, not as views
        self._watched: list[tuple[Callable[[Sequence[Any]], Tensor], tuple[int, ...], bool]] = []  # from outside
        self._saved_results: list[tuple[int, tuple[int, ...]]] = []  # of results: which, and the keys
        self.saves = False  # nodes have saved tensors, which a backward pass releases
        self.python = False  # hooks or functions of the program run in a backward pass
        self.surroundings = Surrounded()

    # ---- forward --------------------------------------------------------------------------------------------------

    def _key(self, array: Array) -> int:
        """Return the key of a residual. The array stays alive during the trace, so its identity is unique."""
        k = self._keys.setdefault(id(array), len(self.arrays))
        if k == len(self.arrays):
            self.arrays.append(array)
        return self._first + k

    def pack(self, t: Tensor) -> Residual | Tensor:
        if t.device.type != TYPE:
            view = replay.fed_view(t)
            if view is None:
                return t
            nbytes = math.prod(t.shape) * t.element_size()
            metadata = Metadata(t.dtype, tuple(t.shape), contiguous_strides(tuple(t.shape)), 0, nbytes)
            return Residual((self._key(view),), metadata, False, False)
        state.touch(cell_of(t))
        keys = tuple(self._key(cell.array) for cell in codes.split_quantized([cell_of(t)]))
        self.saved[id(cell_of(t))] = keys
        return Residual(keys, Metadata.of(t), t.is_conj(), t.is_neg())

    def hooks(self) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
        """Return hooks for saved tensors. They refer to the tape weakly: the tape owns the graph, and Python's garbage
        collector does not see references from its nodes."""
        tape_ref: Any = weakref.ref(self)
        return lambda t: tape_ref().pack(t), lambda saved: tape_ref().unpack(saved)

    def unpack(self, saved: Residual | Tensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        cells = [self._current[key] for key in saved.keys]
        if saved.metadata.kind is None:
            return saved.on(cells[0])
        arrays = [cell.array for cell in cells]
        return saved.on(state.created(codes.storage(arrays, saved.metadata.kind, cells[0].backend)))

    def keep(self, capture: Capture, cells: Sequence[Storage]) -> None:
        """Keep what functions that run again in a backward pass, and hidden nodes, may read: random states and these
        storages (of arguments, and of tensors made inside that are alive when the function ends)."""
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
        """Return the residuals that the program has to return besides `arrays`: those that are no inputs."""
        known = inputs | {id(a) for a in arrays}
        return [a for a in self.arrays if id(a) not in known]

    def locate(
        self, inputs: dict[int, int], arrays: Sequence[Array], sources: dict[int, Callable[[Any], Array]] | None = None
    ) -> None:
        """Note where a call finds the residuals: among the program's inputs, its outputs (`arrays` first), or by calling
        a source with the arguments."""
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
        out = _Outside.apply(self, [from_array(a, slot) for a in arrays], saved, list(results), *ends)
        if self.retained and out[0].grad_fn is not None:
            positions = {id(t): o for t, o in zip(self.roots, out, strict=True)}
            out[0].grad_fn.retained = [
                _retaining(retained_tensor, positions.get(id(retained_tensor))) for retained_tensor in self.retained
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
        slopes, _ = self._program(residuals, arrays, backend, False, batched)[0]([*residuals, *_present(arrays)])
        slot = slot_of_backend(backend)
        return [None if a is None else from_array(a, slot) for a in slopes]

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
        slopes, more_residuals = program([*residuals, *_present(arrays)])
        slot = slot_of_backend(backend)
        gradients = [None if a is None else from_array(a, slot) for a in slopes]
        if tape is not None:
            all_ends = [program.end(t, ends, _present(cotangents)) for t in tape.leaves]
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
            if changed:  # as each backward pass does
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
                # of a result outside autograd retains what comes from there, unless hooks of its own come before
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


class _Outside(torch.autograd.Function):
    """The compiled function as one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any,
        tape: Tape,
        residuals: list[Tensor],
        saved_objects: Sequence[Saved],
        results: list[Tensor],
        *ends: Tensor,
    ) -> Any:
        ctx.tape, ctx.retained, ctx.held = tape, (), saved_objects
        ctx.ends = [t if t.is_leaf else _edge_of(t) for t in ends]
        ctx.set_materialize_grads(False)
        ctx.saves = tape.saves or bool(residuals)
        # saved numbers are no residuals, but a backward pass releases them, too
        ctx.save_for_backward(*(residuals or ([torch.empty(0, device="cpu")] if tape.saves else [])))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        # a graph without saved tensors may be run again
        saved = ctx.saved_tensors if ctx.saves else ()
        residuals = [cell_of(t).array for t in saved if t.device.type == TYPE]
        for saved_object in ctx.held:
            saved_object.put(residuals)
        n = len(ctx.ends)
        if all(g is None for g in gradients):
            return (None,) * (4 + n)
        level = max(map(_level, _present(gradients)))
        if level < 0:
            slopes = _slopes(ctx, residuals, gradients)
            for (ref, previous), slope in zip(ctx.retained, slopes[n:], strict=False):
                if slope is not None and (t := ref()) is not None:
                    before = previous.pop() if previous else t.grad
                    t.grad = slope.clone() if before is None else before + slope
        else:
            slopes = _batched_slopes(ctx, residuals, gradients, level)
        return None, None, None, None, *slopes[:n]


def _retaining(tensor: Tensor, result: Tensor | None) -> tuple[weakref.ref[Tensor], list[Tensor | None]]:
    """Let the result made from a traced tensor retain its gradient. Returns (a reference to the tensor that retains
    it, a list for its gradient before a backward pass).

    The result itself retains the gradient from outside, which is replaced if hooks of the traced tensor come first.
    """
    previous: list[Tensor | None] = []
    ref = weakref.ref(tensor if result is None else result)
    if result is not None:
        if tensor._backward_hooks:
            result.register_hook(lambda _: previous.append(alive.grad) if (alive := ref()) is not None else None)
        result.retain_grad()
    return ref, previous


def _slopes(
    ctx: Any, residuals: Sequence[Array], gradients: Sequence[Tensor | None], batched: tuple[bool, ...] = ()
) -> list[Tensor | None]:
    gradients = [g if g is None or g.layout is torch.strided else g.to_dense() for g in gradients]
    backend = cell_of(_present(gradients)[0]).backend
    if torch.is_grad_enabled():
        ends = [t if t.is_leaf else t.grad_fn.saved_tensors[0] for t in ctx.ends]
        return ctx.tape.differentiable_gradients(residuals, gradients, backend, ends, ctx.held)
    return ctx.tape.gradients(residuals, gradients, backend, batched)


def _batched_slopes(
    ctx: Any, residuals: Sequence[Array], gradients: Sequence[Tensor | None], level: int
) -> list[Tensor | None]:
    """Compute the gradients for cotangents batched by a `vmap`: in one program, or row by row if they are batched
    twice or have to be differentiated."""
    inner: list[Tensor | None] = list(gradients)
    batched = []
    for i, g in enumerate(gradients):
        if g is not None:
            batched.append(_level(g) == level)
            inner[i] = _unwrapped(g, level) if batched[-1] else g
    if not torch.is_grad_enabled() and all(_level(g) < 0 for g in _present(inner)):
        all_slopes = _slopes(ctx, residuals, inner, tuple(batched))
    else:
        is_batched = iter(batched)
        rows_of = [None if g is None else g.unbind(0) if next(is_batched) else g for g in inner]
        length = next(len(g) for g in rows_of if isinstance(g, tuple))
        rows = []
        for k in range(length):
            row = [g[k] if isinstance(g, tuple) else g for g in rows_of]
            nested = max(map(_level, _present(row)))
            rows.append(_slopes(ctx, residuals, row) if nested < 0 else _batched_slopes(ctx, residuals, row, nested))
        all_slopes = [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    return [None if t is None else _wrapped(t, level) for t in all_slopes]


_LEGACY = 1 << 30  # stands for the level of autograd's own `vmap`, for `is_grads_batched`, which does not nest


def _level(t: Tensor) -> int:
    """Return the level of the `vmap` that batched a tensor, -1 for none."""
    return _LEGACY if _functorch.is_legacy_batchedtensor(t) else _functorch.maybe_get_level(t)


def _unwrapped(t: Tensor, level: int) -> Tensor:
    """Return the tensor inside a batched one, with the batch as its first axis."""
    if level == _LEGACY:
        return torch._remove_batch_dim(t, _legacy_level(), 0, 0)
    return torch.func.debug_unwrap(t, recurse=False).movedim(_functorch.maybe_get_bdim(t), 0)


def _wrapped(t: Tensor, level: int) -> Tensor:
    if level == _LEGACY:
        return torch._add_batch_dim(t, 0, _legacy_level())
    return _functorch._add_batch_dim(t, 0, level)


def _legacy_level() -> int:
    try:
        return torch._C._vmapmode_increment_nesting() - 1
    finally:
        torch._C._vmapmode_decrement_nesting()


def _present(cotangents: Sequence[Any]) -> list[Any]:
    return [c for c in cotangents if c is not None]


def _strides(array: Array) -> Any:
    """Return the strides of an array if its framework has strides, on which a compiled program may depend."""
    stride = getattr(array, "stride", None)
    return stride() if callable(stride) else None


class _Edge(torch.autograd.Function):
    """An autograd node that saves a tensor."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return torch.empty(0)


def _edge_of(t: Tensor) -> Any:
    """Return an edge to the position of a tensor in autograd's graph, without keeping its values."""
    with torch.enable_grad():
        end: Any = _Edge.apply(t)
    like = functools.partial(torch.empty, (), dtype=t.dtype, device=t.device)
    end.grad_fn._raw_saved_tensors[0].register_hooks(lambda t: t.shape, lambda shape: like().expand(shape))
    return end


def record(
    flat: Sequence[Any], identical: Sequence[int | None], finders: Sequence[Any], first_node: int, capture: Capture
) -> tuple[list[int], Tape | None]:
    """Return (the indices of results that can be differentiated, their tape). Not among them are results that are
    arguments or have a finder: they have their own history.

    `first_node`: autograd's sequence number when the function began. Raises RuntimeError if the graph reaches older
    nodes.
    """
    positions = [
        i
        for i, t in enumerate(flat)
        if isinstance(t, Tensor)
        and t.device.type == TYPE
        and has_history(t)
        and identical[i] is None
        and finders[i] is None
        and not any(t is before for before in flat[:i])
    ]
    tape = taped([flat[i] for i in positions], first_node, capture) if positions else None
    if tape is not None:
        tape.detached = frozenset(capture.detached)
        tape.retained = [t for ref in capture.retained if (t := ref()) is not None and t.retains_grad]
        tape.python = tape.python or capture.hooks_inside or bool(capture.checkpoints)
    return ([], None) if tape is None else (positions, tape)


Finder = Callable[[Sequence[Any]], Tensor]


def result_finders(
    flat: Sequence[Any], arguments: Sequence[tuple[int, Tensor]], outside: dict[int, Finder], capture: Capture
) -> list[Finder | None]:
    """Return, for each result that is a tensor from outside or a view of one, a function that finds it at a call; None
    for results made by the program and for arguments. `outside`: finders of tensors, by identity."""
    argument_finders: dict[int, Finder] = {id(t): operator.itemgetter(i) for i, t in arguments}
    new_storages = set(map(id, capture.survivors()))

    def finder_of(t: Any) -> Finder | None:
        try:
            return look_of(t)
        except RuntimeError:  # one of several views of a tensor written since: PyTorch raises an error
            return None

    def look_of(t: Any) -> Finder | None:
        if not (isinstance(t, Tensor) and t.device.type == TYPE) or id(t) in argument_finders:
            return None
        cell = cell_of(t)
        if id(cell) in new_storages or cell.backend.compound or capture.looking_elsewhere(t):
            return None
        if id(t) in outside:
            return outside[id(t)]
        if t.is_leaf and t.requires_grad:
            return lambda leaves: t
        base = t._base
        if base is None or base.grad_fn is not None or capture.looking_elsewhere(base):
            return None
        find = argument_finders.get(id(base)) or outside.get(id(base))
        if find is None and not base.requires_grad:
            return None
        metadata, graded = Metadata.whole(t), t.requires_grad or not base.requires_grad
        return functools.partial(_view, find or (lambda leaves: base), metadata, graded)

    return list(map(finder_of, flat))


def _view(find: Finder, metadata: Metadata, graded: bool, leaves: Sequence[Any]) -> Tensor:
    with torch.set_grad_enabled(graded):
        return metadata.view(find(leaves))


def has_history(t: Tensor) -> bool:
    """Return True if `t` is the result of a differentiable function. False for one of several views (chunk, unbind) of
    a tensor that was written since, for which PyTorch raises an error."""
    try:
        return t.grad_fn is not None
    except RuntimeError:
        return False


def is_leaf(t: Tensor) -> bool:
    """Return True if a tensor has no history. False for a view from `no_grad` that was written since, for which PyTorch
    raises an error: its `requires_grad` cannot be set."""
    try:
        return t.is_leaf
    except RuntimeError:
        return False


# what the CPU saves a view of, which goes on when `.data` is given something else
_VIEWED = {("LinearBackward0", "_raw_saved_weight")}


def taped(roots: list[Tensor], first_node: int, capture: Capture, before: Tape | None = None) -> Tape | None:
    """Return the tape of some results; None if there is nothing to differentiate."""
    tape = Tape(roots, before)
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
                    with _disable_current_modes():  # which would see numbers where autograd has 0-d tensors
                        for saved, value in _intact(node, name):
                            saved.register_hooks(*tape.hooks())
                            if (node.name(), name) not in _VIEWED:
                                tape.originals.add(id(value))
                            tape.saves = True
                except RuntimeError as error:
                    if "freed" in str(error):
                        return _used_up(roots, before, error)
                    tape.spoilt = error
    for ref in capture.checkpoints:
        if (frame := ref()) is not None:
            for saved in frame.saved_args:
                if isinstance(saved, _SavedTensor) and saved.unpack_hook is None:
                    with _disable_current_modes():
                        saved.register_hooks(*tape.hooks())
    return tape


def _used_up(roots: list[Tensor], before: Tape | None, error: RuntimeError) -> Tape | None:
    """Return the tape of results whose graph a backward pass inside has used up: they require gradients, and another
    backward pass raises PyTorch's error. Nothing is kept for it."""
    tape = Tape(roots, before)
    variables = (getattr(node, "variable", None) for node in nodes(roots))
    tape.leaves = [t for t in variables if t is not None][:1]
    tape.spoilt = error
    return tape if tape.leaves else None


def _intact(node: Any, name: str) -> list[tuple[Any, Tensor]]:
    """Return the saved tensors of a node, as autograd holds them and themselves; none for one in a checkpoint. Raises
    PyTorch's RuntimeError where one was written since, or was freed.
    """
    raw = getattr(node, name)
    raw = list(raw) if isinstance(raw, list | tuple) else [raw]
    hooks = {saved.unpack_hook for saved in raw} - {None}
    if any(hook.__module__ == "torch.utils.checkpoint" for hook in hooks):
        return []
    if hooks:
        raise RuntimeError(
            "hooks of saved tensors (torch.autograd.graph.saved_tensors_hooks) inside tg.jit require the backward"
            " pass inside, too"
        )
    values = getattr(node, "saved_tensors" if name == "_raw_saved_tensors" else name.removeprefix("_raw"))
    values = values if isinstance(values, list | tuple) else [values]
    return [(saved, value) for saved, value in zip(raw, values, strict=True) if value is not None]


def nodes(roots: Sequence[Tensor]) -> Iterator[Any]:
    """The nodes of autograd's graph behind tensors."""
    seen_nodes = set()
    stack = [t.grad_fn for t in roots]
    while stack:
        node = stack.pop()
        if node is None or node in seen_nodes:
            continue
        seen_nodes.add(node)
        yield node
        stack.extend(next_node for next_node, _ in node.next_functions)
