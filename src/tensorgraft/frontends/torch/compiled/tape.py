"""Backward passes through compiled functions: what `tg.jit` keeps of autograd's graph between forward and backward.

The traced function leaves a graph of autograd behind its results. What the graph has saved are arrays of the traced
program: they become outputs of it (residuals), and a hook on each gives it back when the graph is walked again, in a
second trace, which is the backward program (`replay`). Activations in memory are those that PyTorch itself would keep.
A backward pass that is to be differentiated leaves a graph as well: a tape before which there is another.
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
from tensorgraft.frontends.torch.compiled.host_tensors import Gone, Live
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
    """A tensor that the graph has saved."""

    keys: tuple[int, ...]  # which residuals: several of a tensor that is quantised
    metadata: Metadata
    conj: bool
    neg: bool

    def on(self, cell: Storage) -> Tensor:
        t = self.metadata.on(cell)
        t = torch.conj(t) if self.conj else t
        return torch.ops.aten._neg_view(t) if self.neg else t


class Saved:
    """A tensor outside, or an alias of it, whose memory the graph has saved: what is written into it without autograd's
    notice (`.data`) a backward pass sees, and of anything else PyTorch's error tells."""

    def __init__(self, t: Tensor, keys: tuple[int, ...]) -> None:
        self.t, self.version, self._keys = t, t._version, keys
        self._look = t.dtype, t.size(), t.stride(), t.storage_offset()

    def put(self, residuals: list[Array]) -> None:
        """Put what is there now into the residuals. Raises RuntimeError."""
        t = self.t
        if t._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation:"
                f" a tensor of shape {tuple(t.shape)} saved by a compiled function is at version {t._version};"
                f" expected version {self.version} instead"
            )
        if (t.dtype, t.size(), t.stride(), t.storage_offset()) != self._look:
            raise RuntimeError(
                "a tensor that a compiled function has saved for its backward pass, of shape"
                f" {tuple(self._look[1])} and {self._look[0]}, has changed its shape, dtype or layout:"
                f" {tuple(t.shape)}, {t.dtype}"
            )
        for key, cell in zip(self._keys, codes.split_quantized([cell_of(t)]), strict=True):
            residuals[key] = cell.array


class Surrounded:
    """Watches what functions of the program read and change that run in a backward pass.

    Arguments:
        fn: the function that was traced.
    """

    def __init__(self, fn: Any = None) -> None:
        self._fn = fn
        self.hold: Callable[[], bool] = lambda: True  # it is as it was when the function was traced
        self.left: Callable[[], None] = lambda: None  # called when a backward pass has changed something

    def changed(self, trace: Callable[[], Any]) -> tuple[Any, bool]:
        """Trace a backward pass; return what comes of it, and whether it has changed anything."""
        world = Reachable([("", self._fn)])
        made = trace()
        return made, bool(world.changes())


class Tape:
    """The graph behind some results of a traced function, or of a backward pass."""

    def __init__(self, roots: list[Tensor], before: Tape | None = None) -> None:
        self.roots = roots
        self.before = before  # the tape whose graph this one's goes on into
        self.leaves: list[Tensor] = []  # what the graph ends in: parameters and arguments
        self._edges: list[GradientEdge] = []  # of the leaves: they need not require gradients any more
        self.spoilt: Exception | None = None  # why there can be no backward pass
        self.arrays: list[Array] = []  # residuals in the traced program, each once; those of tapes before come first
        self._first: int = 0 if before is None else before._first + before._count
        self._count: int = 0
        self._keys: dict[int, int] = {}  # of the residuals, while the function is traced, by identity
        self._places: list[tuple[bool, int] | Callable[[Any], Array]] = []
        self.replayed: list[tuple[Storage, int]] = []  # what functions that run again may look at, with their keys
        self._marks: dict[int, tuple[RandomState, int | None, int]] = {}  # random states they go back to: words, draws
        self._fed: dict[int, tuple[weakref.ref[Tensor], Live]] = {}  # tensors of the host that are no constants
        self._current: list[Storage] = [] if before is None else before._current  # while the graph is walked
        self._programs: dict[Hashable, tuple[replay.Backward, Tape | None]] = {}
        self.cut: frozenset[int] = frozenset()  # leaves that stand for arguments with a history, by identity
        self.hidden = False  # nodes have others in them, whose saved tensors nobody can reach
        self.retained: list[Tensor] = []  # whose gradients are kept (`retain_grad`)
        self.saved: dict[int, tuple[int, ...]] = {}  # by the identity of storages: the keys of what is saved of them
        self.originals: set[int] = set()  # tensors that are saved themselves, not views of them, by identity
        self._watched: list[tuple[Callable[[Sequence[Any]], Tensor], tuple[int, ...], bool]] = []  # from outside
        self._made: list[tuple[int, tuple[int, ...]]] = []  # of results: which, and the keys
        self.saves = False  # nodes have saved something, which a backward pass releases
        self.python = False  # hooks or functions of the program run in a backward pass
        self.surroundings = Surrounded()

    # ---- forward --------------------------------------------------------------------------------------------------

    def _key(self, array: Array) -> int:
        """The key of a residual. Every array of the trace stays alive as long as it is asked for."""
        k = self._keys.setdefault(id(array), len(self.arrays))
        if k == len(self.arrays):
            self.arrays.append(array)
        return self._first + k

    def pack(self, t: Tensor) -> Residual | Tensor:
        if t.device.type != TYPE:
            fed = replay.fed_view(t)
            if fed is None:
                return t
            nbytes = math.prod(t.shape) * t.element_size()
            metadata = Metadata(t.dtype, tuple(t.shape), contiguous_strides(tuple(t.shape)), 0, nbytes)
            return Residual((self._key(fed),), metadata, False, False)
        state.touch(cell_of(t))
        keys = tuple(self._key(cell.array) for cell in codes.split_quantized([cell_of(t)]))
        self.saved[id(cell_of(t))] = keys
        return Residual(keys, Metadata.of(t), t.is_conj(), t.is_neg())

    def hooks(self) -> tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]:
        """Return hooks for saved tensors. The graph is the tape's, and no collector sees what its nodes refer to."""
        this: Any = weakref.ref(self)
        return lambda t: this().pack(t), lambda saved: this().unpack(saved)

    def unpack(self, saved: Residual | Tensor) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        cells = [self._current[key] for key in saved.keys]
        if saved.metadata.kind is None:
            return saved.on(cells[0])
        arrays = [cell.array for cell in cells]
        return saved.on(state.created(codes.storage(arrays, saved.metadata.kind, cells[0].backend)))

    def keep(self, capture: Capture, cells: Sequence[Storage]) -> None:
        """Keep what functions that run again in a backward pass, and hidden nodes, may look at: these storages
        (arguments, and what was made inside and is alive when the function ends) and random states."""
        if not (capture.replays or self.hidden or any(ref() is not None for ref in capture.checkpoints)):
            return
        if capture.host is not None and capture.host.roots:
            raise RunsUncompiled("writes a CPU tensor, and has functions that run again in a backward pass outside")
        seen = {id(cell): cell for cell in cells if cell.capture is capture}
        self.replayed = [(cell, self._key(cell.array)) for cell in codes.split_quantized(list(seen.values()))]
        for token, mark in capture.marks.items():
            words = capture.bases.get(id(mark.source)) if mark.words is None else mark.words
            self._marks[token] = (mark.source, None if words is None else self._key(words), mark.draws)
        self._fed = {key: (weakref.ref(t), live) for key, (t, live) in capture.fed_tensors.items()}

    def watch(
        self, outside: Sequence[tuple[Tensor, Callable[[Sequence[Any]], Tensor]]], results: Sequence[Any]
    ) -> None:
        """Note which of these tensors have the memory of something that is saved: tensors from outside, with what finds
        them at a call, and results."""
        cells = [(id(cell_of(t)), id(t) in self.originals, find) for t, find in outside]
        self._watched = [(find, self.saved[cell], original) for cell, original, find in cells if cell in self.saved]
        ours = [(k, id(cell_of(t))) for k, t in enumerate(results) if isinstance(t, Tensor) and t.device.type == TYPE]
        self._made = [(k, self.saved[cell]) for k, cell in ours if cell in self.saved]

    def saved_of(self, arguments: Sequence[Any], results: Sequence[Any]) -> list[Saved]:
        """Return what a call has saved of tensors that the program can reach afterwards."""
        watched = [(get(arguments), keys, original) for get, keys, original in self._watched]
        held = [Saved(t if original else t.detach(), keys) for t, keys, original in watched]
        return held + [Saved(results[k].detach(), keys) for k, keys in self._made]

    def outputs(self, inputs: set[int], arrays: Sequence[Array]) -> list[Array]:
        """Return the residuals that the program has to give beside `arrays`: those that are none of its inputs."""
        known = inputs | {id(a) for a in arrays}
        return [a for a in self.arrays if id(a) not in known]

    def locate(
        self, inputs: dict[int, int], arrays: Sequence[Array], sources: dict[int, Callable[[Any], Array]] | None = None
    ) -> None:
        """Note where a call finds the residuals: among the program's inputs, its outputs (`arrays` first), or by a
        source, which is given what the call was given."""
        outputs: dict[int, int] = {}
        for k, a in enumerate(arrays):
            outputs.setdefault(id(a), k)
        more = len(arrays)
        for a in self.arrays:
            if id(a) in inputs:
                self._places.append((True, inputs[id(a)]))
            elif id(a) in outputs:
                self._places.append((False, outputs[id(a)]))
            elif sources is not None and id(a) in sources:
                self._places.append(sources[id(a)])
            else:
                self._places.append((False, more))
                more += 1
        self._count, self.arrays, self._keys = len(self.arrays), [], {}

    def residuals(self, inputs: Sequence[Array], outputs: Sequence[Array], arguments: Any) -> list[Array]:
        saved = []
        for place in self._places:
            if isinstance(place, tuple):
                saved.append((inputs if place[0] else outputs)[place[1]])
            else:
                saved.append(place(arguments))
        return saved

    def attach(
        self,
        backend: Backend,
        residuals: Sequence[Any],
        results: Sequence[Tensor],
        ends: Sequence[Tensor],
        saved: Sequence[Saved] = (),
    ) -> tuple[Tensor, ...]:
        """The results of a call with a history that ends in `ends`, whatever mode the call is in."""
        if not torch.is_grad_enabled():
            with torch.enable_grad():
                return self.attach(backend, residuals, results, ends, saved)
        slot = slot_of_backend(backend)
        arrays = [a if backend.is_array(a) else backend.asarray(a) for a in residuals]
        out = _Outside.apply(self, [from_array(a, slot) for a in arrays], saved, list(results), *ends)
        if self.retained and out[0].grad_fn is not None:
            places = {id(t): o for t, o in zip(self.roots, out, strict=True)}
            out[0].grad_fn.retained = [_retaining(one, places.get(id(one))) for one in self.retained]
        return out

    # ---- backward -------------------------------------------------------------------------------------------------

    def following(self, roots: list[Tensor], first_node: int, capture: Capture) -> Tape | None:
        """The tape of what a walk of this one has computed."""
        after = taped(roots, first_node, capture, self)
        if after is not None:
            after.python, after.surroundings = self.python, self.surroundings
        return after

    def chain(self) -> Iterator[Tape]:
        """This tape and those before it."""
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
        """The gradients of the leaves, and then of what is retained; None where the results do not depend on one.

        `cotangents`: None for a result that has none. `batched`: which of the others have an axis in front, over which
        the gradients are computed (`is_grads_batched`), and have then one, too."""
        arrays = [None if t is None else to_array(t) for t in cotangents]
        slopes, _ = self._program(residuals, arrays, backend, False, batched)[0]([*residuals, *_given(arrays)])
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
        """The same with a history, which ends in `ends` and in the cotangents."""
        arrays = [None if t is None else to_array(t.detach()) for t in cotangents]
        program, tape = self._program(residuals, arrays, backend, True)
        slopes, more = program([*residuals, *_given(arrays)])
        slot = slot_of_backend(backend)
        gradients = [None if a is None else from_array(a, slot) for a in slopes]
        if tape is not None:
            all_ends = [program.end(t, ends, _given(cotangents)) for t in tape.leaves]
            roots = program.roots
            attached = tape.attach(backend, [*residuals, *more], [gradients[i] for i in roots], all_ends, saved)  # type: ignore[misc]
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
        """Return the backward program for cotangents that look so, and its own tape."""
        looks = [None if a is None else (backend.signature(a), _strides(a)) for a in cotangents]
        key = (differentiable, batched, *looks)
        holds = not self.python or self.surroundings.hold()
        if key in self._programs and holds:
            return self._programs[key]
        with one_at_a_time:
            if key in self._programs and holds:
                return self._programs[key]
            trace = functools.partial(
                replay.trace_backward, self, backend, residuals, cotangents, differentiable, batched
            )
            made, changed = self.surroundings.changed(trace) if self.python else (trace(), False)
            if changed:  # as each backward pass does
                self.surroundings.left()
            elif holds:
                self._programs[key] = made
        return made

    def walk(
        self,
        capture: Capture,
        residuals: Sequence[Array],
        cotangents: Sequence[Tensor | None],
        differentiable: bool = False,
    ) -> list[Tensor | None]:
        """The gradients of the leaves and of what is retained, computed by the kernels of the graph's nodes on these
        arrays. For an active capture. Raises the RuntimeError of a spoilt tape."""
        tapes = list(self.chain())
        for tape in tapes:
            if tape.spoilt is not None:
                raise tape.spoilt
        cells = [Storage(array, capture.backend) for array in residuals]
        for cell in cells:
            capture.created(cell)
        self._current[:] = cells
        held = []
        for tape in tapes:
            for token, (source, key, draws) in tape._marks.items():
                capture.marks[token] = Mark(source, None if key is None else residuals[key], draws)
            for key, (ref, live) in tape._fed.items():
                if (t := ref()) is not None:
                    capture.fed_tensors[key] = (t, Gone() if live.of_argument else live)
            for cell, key in tape.replayed:
                held.append((cell, cell.array))
                cell.array = residuals[key]
                capture.created(codes.owner(cell))
        # autograd runs the hooks of leaves outside, on the whole gradient
        hooks = [t._backward_hooks for t in self.leaves if id(t) not in self.cut and t._backward_hooks]
        hidden = [(table, dict(table)) for table in hooks]
        kept = [(t, t.grad) for t in self.retained]
        for table in hooks:
            table.clear()
        given = [(t, dy) for t, dy in zip(self.roots, cotangents, strict=True) if dy is not None]

        def slopes(of: Sequence[Tensor] | Sequence[GradientEdge], without: Tensor | None = None) -> list[Tensor | None]:
            begun = [(t, dy) for t, dy in given if t is not without]
            if not begun or not of:
                return [None] * len(of)
            roots, dys = map(list, zip(*begun, strict=True))
            return list(
                torch.autograd.grad(roots, of, dys, retain_graph=True, create_graph=differentiable, allow_unused=True)
            )

        try:
            with OwnMode():  # in which PyTorch's derivatives ask for no values
                # of a result outside autograd retains what comes from there, unless hooks of its own come before
                retained = ((t, None if t._backward_hooks else t) for t in self.retained)
                return [*slopes(self._edges), *(slope for t, but in retained for slope in slopes([t], but))]
        finally:
            for table, entries in hidden:
                table.update(entries)
            for t, before in kept:
                t.grad = before
            self._current.clear()
            for cell, array in held:
                cell.array, codes.owner(cell).capture = array, None


class _Outside(torch.autograd.Function):
    """The compiled function as one node of autograd's graph."""

    @staticmethod
    def forward(
        ctx: Any,
        tape: Tape,
        residuals: list[Tensor],
        held: Sequence[Saved],
        results: list[Tensor],
        *ends: Tensor,
    ) -> Any:
        ctx.tape, ctx.retained, ctx.held = tape, (), held
        ctx.ends = [t if t.is_leaf else _edge_of(t) for t in ends]
        ctx.set_materialize_grads(False)
        ctx.saves = tape.saves or bool(residuals)
        # of numbers nothing is a residual, and a backward pass releases them nevertheless
        ctx.save_for_backward(*(residuals or ([torch.empty(0, device="cpu")] if tape.saves else [])))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        # what has saved nothing can be gone through again
        saved = ctx.saved_tensors if ctx.saves else ()
        residuals = [cell_of(t).array for t in saved if t.device.type == TYPE]
        for one in ctx.held:
            one.put(residuals)
        n = len(ctx.ends)
        if all(g is None for g in gradients):
            return (None,) * (4 + n)
        level = max(map(_level, _given(gradients)))
        if level < 0:
            slopes = _slopes(ctx, residuals, gradients)
            for (ref, held), slope in zip(ctx.retained, slopes[n:], strict=False):
                if slope is not None and (t := ref()) is not None:
                    before = held.pop() if held else t.grad
                    t.grad = slope.clone() if before is None else before + slope
        else:
            slopes = _batched_slopes(ctx, residuals, gradients, level)
        return None, None, None, None, *slopes[:n]


def _retaining(one: Tensor, result: Tensor | None) -> tuple[weakref.ref[Tensor], list[Tensor | None]]:
    """Let the result that a traced tensor has become retain its gradient; return what retains it, and a list for the
    gradient that this has before a backward pass.

    Outside it retains what comes from there. Where hooks of the traced tensor come before, that does not count.
    """
    held: list[Tensor | None] = []
    ref = weakref.ref(one if result is None else result)
    if result is not None:
        if one._backward_hooks:
            result.register_hook(lambda _: held.append(this.grad) if (this := ref()) is not None else None)
        result.retain_grad()
    return ref, held


def _slopes(
    ctx: Any, residuals: Sequence[Array], gradients: Sequence[Tensor | None], batched: tuple[bool, ...] = ()
) -> list[Tensor | None]:
    gradients = [g if g is None or g.layout is torch.strided else g.to_dense() for g in gradients]
    backend = cell_of(_given(gradients)[0]).backend
    if torch.is_grad_enabled():
        ends = [t if t.is_leaf else t.grad_fn.saved_tensors[0] for t in ctx.ends]
        return ctx.tape.differentiable_gradients(residuals, gradients, backend, ends, ctx.held)
    return ctx.tape.gradients(residuals, gradients, backend, batched)


def _batched_slopes(
    ctx: Any, residuals: Sequence[Array], gradients: Sequence[Tensor | None], level: int
) -> list[Tensor | None]:
    """Compute the gradients for cotangents that a `vmap` has batched: in one program, or row by row where they are
    batched again or are to be differentiated."""
    inner: list[Tensor | None] = list(gradients)
    batched = []
    for i, g in enumerate(gradients):
        if g is not None:
            batched.append(_level(g) == level)
            inner[i] = _unwrapped(g, level) if batched[-1] else g
    if not torch.is_grad_enabled() and all(_level(g) < 0 for g in _given(inner)):
        whole = _slopes(ctx, residuals, inner, tuple(batched))
    else:
        which = iter(batched)
        apart = [None if g is None else g.unbind(0) if next(which) else g for g in inner]
        length = next(len(g) for g in apart if isinstance(g, tuple))
        rows = []
        for k in range(length):
            row = [g[k] if isinstance(g, tuple) else g for g in apart]
            nested = max(map(_level, _given(row)))
            rows.append(_slopes(ctx, residuals, row) if nested < 0 else _batched_slopes(ctx, residuals, row, nested))
        whole = [None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    return [None if t is None else _wrapped(t, level) for t in whole]


_LEGACY = 1 << 30  # stands for the level of autograd's own `vmap`, for `is_grads_batched`, which does not nest


def _level(t: Tensor) -> int:
    """Return the level of the `vmap` that has batched a tensor, -1 for none."""
    return _LEGACY if _functorch.is_legacy_batchedtensor(t) else _functorch.maybe_get_level(t)


def _unwrapped(t: Tensor, level: int) -> Tensor:
    """Return the tensor behind a batched one, the batch in front."""
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


def _given(cotangents: Sequence[Any]) -> list[Any]:
    return [c for c in cotangents if c is not None]


def _strides(array: Array) -> Any:
    """Return the strides of an array, where its framework has such and its compiler takes them for granted."""
    stride = getattr(array, "stride", None)
    return stride() if callable(stride) else None


class _Edge(torch.autograd.Function):
    """A node that saves a tensor."""

    @staticmethod
    def forward(ctx: Any, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        return torch.empty(0)


def _edge_of(t: Tensor) -> Any:
    """The place of a tensor in autograd's graph, without its values: what a node behind it has for `saved_tensors`."""
    with torch.enable_grad():
        end: Any = _Edge.apply(t)
    like = functools.partial(torch.empty, (), dtype=t.dtype, device=t.device)
    end.grad_fn._raw_saved_tensors[0].register_hooks(lambda t: t.shape, lambda shape: like().expand(shape))
    return end


def record(
    flat: Sequence[Any], identical: Sequence[int | None], looks: Sequence[Any], first_node: int, capture: Capture
) -> tuple[list[int], Tape | None]:
    """Return (which of the results can be differentiated, the tape of these). Those that are arguments, and those that
    `looks` has something for, have their own history.

    `first_node` is the sequence number of autograd's nodes at which the function began. Raises RuntimeError where the
    graph goes on to nodes from before.
    """
    places = [
        i
        for i, t in enumerate(flat)
        if isinstance(t, Tensor)
        and t.device.type == TYPE
        and has_history(t)
        and identical[i] is None
        and looks[i] is None
        and not any(t is before for before in flat[:i])
    ]
    tape = taped([flat[i] for i in places], first_node, capture) if places else None
    if tape is not None:
        tape.cut = frozenset(capture.cut)
        tape.retained = [t for ref in capture.retained if (t := ref()) is not None and t.retains_grad]
        tape.python = tape.python or capture.hooks_inside or bool(capture.checkpoints)
    return ([], None) if tape is None else (places, tape)


Finder = Callable[[Sequence[Any]], Tensor]


def looks(
    flat: Sequence[Any], arguments: Sequence[tuple[int, Tensor]], outside: dict[int, Finder], capture: Capture
) -> list[Finder | None]:
    """Return what results that are tensors from outside, or views of some, are at a call with given arguments; None for
    those that the program makes, and for those that are arguments themselves. `outside`: by identity."""
    given: dict[int, Finder] = {id(t): operator.itemgetter(i) for i, t in arguments}
    behind = {id(b): functools.partial(_base_of, i) for i, t in arguments if (b := _base(t)) is not None}
    born = set(map(id, capture.survivors()))

    def look(t: Any) -> Finder | None:
        try:
            return look_of(t)
        except RuntimeError:  # one of several views of what was written since, which PyTorch tells nothing of
            return None

    def look_of(t: Any) -> Finder | None:
        if not (isinstance(t, Tensor) and t.device.type == TYPE) or id(t) in given:
            return None
        cell = cell_of(t)
        if id(cell) in born or cell.backend.compound or capture.looking_elsewhere(t):
            return None
        if id(t) in outside:
            return outside[id(t)]
        if t.is_leaf and t.requires_grad:
            return lambda leaves: t
        base = t._base
        if base is None or base.grad_fn is not None or capture.looking_elsewhere(base):
            return None
        find = given.get(id(base)) or outside.get(id(base)) or behind.get(id(base))
        if find is None and not base.requires_grad:
            return None
        seen, graded = Metadata.whole(t), t.requires_grad or not base.requires_grad
        return functools.partial(_view, find or (lambda leaves: base), seen, graded)

    return list(map(look, flat))


def _base(t: Tensor) -> Tensor | None:
    try:
        return t._base
    except RuntimeError:  # as in `look`
        return None


def _base_of(i: int, leaves: Sequence[Any]) -> Tensor:
    """Return what an argument is a view of, or the argument."""
    base = leaves[i]._base
    return leaves[i] if base is None else base


def _view(find: Finder, seen: Metadata, graded: bool, leaves: Sequence[Any]) -> Tensor:
    with torch.set_grad_enabled(graded):
        return seen.view(find(leaves))


def has_history(t: Tensor) -> bool:
    """Say whether `t` is the result of a function that can be differentiated: not one of several views (chunk, unbind)
    of what was written since, of which PyTorch refuses to tell."""
    try:
        return t.grad_fn is not None
    except RuntimeError:
        return False


def is_leaf(t: Tensor) -> bool:
    """Say whether a tensor has no history; a view from `no_grad` that was written since, of which PyTorch refuses to
    tell, is no leaf whose `requires_grad` can be set."""
    try:
        return t.is_leaf
    except RuntimeError:
        return False


# what the CPU saves a view of, which goes on when `.data` is given something else
_VIEWED = {("LinearBackward0", "_raw_saved_weight")}


def taped(roots: list[Tensor], first_node: int, capture: Capture, before: Tape | None = None) -> Tape | None:
    """The tape of some results; None where nothing is left to be differentiated."""
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
    seen = set()
    stack = [t.grad_fn for t in roots]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        stack.extend(after for after, _ in node.next_functions)
