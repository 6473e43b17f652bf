"""Backward programs: a traversal of the autograd graph of a traced function, in a trace of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch

from tensorgraft.compiled.program import Feed
from tensorgraft.frontends.torch.compiled.capture import Capture, active, current
from tensorgraft.frontends.torch.compiled.indexing.indices import traced_calls
from tensorgraft.frontends.torch.core import codes, state
from tensorgraft.frontends.torch.core.devices import Slot, slot_of_backend
from tensorgraft.frontends.torch.core.state import RandomState
from tensorgraft.frontends.torch.core.tensors import cell_of, cpu_elements, from_array
from tensorgraft.frontends.torch.sparse.parts import SparseForm, form_of, is_sparse, parts_of
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend
from tensorgraft.interrupts import held_back
from tensorgraft.quantization import policy
from tensorgraft.storage import Storage

Tensor = torch.Tensor


class WalkedTape(Protocol):
    """The part of a tape (`tape.Tape`) by which its backward program is traced."""

    leaves: list[Tensor]
    replayed: list[Any]

    def chain(self) -> Iterator[WalkedTape]: ...
    def following(self, roots: list[Tensor], first_node: int, capture: Capture) -> Any: ...
    def residuals(self, inputs: Sequence[Array], outputs: Sequence[Array], arguments: Any) -> list[Array]: ...
    def walk(
        self, capture: Capture, residuals: Sequence[Array], cotangents: Sequence[Tensor | None], differentiable: bool
    ) -> list[Tensor | None]: ...


@dataclass
class Backward:
    """The compiled backward pass of a tape: residuals and cotangents -> (gradients of the leaves, residuals of the tape
    of the backward pass itself)."""

    run: Callable[..., tuple[Array, ...]]
    inputs: list[Callable[[Sequence[Array]], Array]]
    forms: dict[int, SparseForm]  # of gradients that are sparse, which are several arrays
    used: list[bool]  # for each leaf, and each tensor that retains its gradient, True if it has one
    written: list[Storage]  # storages that checkpointed functions and hooks write or keep
    draws: list[tuple[RandomState, int]]
    tape: WalkedTape | None
    roots: list[int]  # the gradients that its tape begins at
    leaves: dict[int, int] = field(default_factory=dict)  # places of the leaves and then of the cotangents, by identity

    def tensors(self, gradients: Sequence[Any], slot: Slot, ends: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients that a call has given as tensors, of the dtypes of `ends`."""

        def tensor(i: int, gradient: Any, end: Tensor) -> Tensor:
            if i not in self.forms:
                return from_array(gradient, slot, end.dtype)
            *indices, values = gradient
            return self.forms[i].build([from_array(x, slot) for x in indices] + [from_array(values, slot, end.dtype)])

        return [
            None if g is None else tensor(i, g, end)
            for i, (g, end) in enumerate(zip(gradients, ends, strict=True))
        ]  # fmt: skip

    def __call__(self, arrays: Sequence[Array]) -> tuple[list[Any], list[Array]]:
        inputs = [source(arrays) for source in self.inputs]
        outputs = self.run(*inputs)
        remaining = iter(outputs)
        gradients: list[Any] = [
            tuple(islice(remaining, self.forms[i].part_count)) if i in self.forms else next(remaining) if used else None
            for i, used in enumerate(self.used)
        ]
        residuals = [] if self.tape is None else self.tape.residuals(inputs, outputs, arrays)
        with held_back():
            for cell, array in zip(self.written, remaining, strict=False):
                cell.array = array
            for source, n in self.draws:
                source.offset += n
        return gradients, residuals

    def end(self, leaf: Tensor, ends: Sequence[Tensor], cotangents: Sequence[Tensor]) -> Tensor:
        """Return a function that finds a leaf of the tape at a call: a leaf of the tape before, a cotangent, or a
        tensor that a node of the graph has saved."""
        k = self.leaves.get(id(leaf))
        return leaf if k is None else (*ends, *cotangents)[k]


def trace_backward(
    tape: WalkedTape,
    backend: Backend,
    residuals: Sequence[Array],
    cotangents: Sequence[Array | None],
    differentiable: bool,
    batched: tuple[bool, ...] = (),
) -> tuple[Backward, Any]:
    """Return the backward program of a tape, and where it is to be differentiated its own tape. `batched`: which of the
    cotangents that are not None have an axis in front over which the gradients are computed."""
    return _BackwardTracing(tape, backend, residuals, cotangents, differentiable, batched).backward()


class _BackwardTracing:
    """The run of a tape's backward pass on stand-ins, with its recorded reads and writes."""

    def __init__(
        self,
        tape: WalkedTape,
        backend: Backend,
        residuals: Sequence[Array],
        cotangents: Sequence[Array | None],
        differentiable: bool,
        batched: tuple[bool, ...],
    ) -> None:
        self._tape, self._backend, self._capture = tape, backend, Capture(backend, failures=None)
        self._cotangents, self._differentiable, self._batched = cotangents, differentiable, batched
        self._count = len(residuals)
        self._stand_ins = [backend.stand_in(a) for a in (*residuals, *cotangents) if a is not None]
        self._positions = {id(a): k for k, a in enumerate(self._stand_ins)}
        self._leaves: dict[int, int] = {}
        self._following_tape: Any = None  # the tape of the backward pass itself

    def backward(self) -> tuple[Backward, Any]:
        capture, positions_of = self._capture, self._positions
        try:
            with policy.counting_later() as notes:
                program = self._backend.trace(self._run)
        finally:
            capture.restore()
        cells = {id(t.stand_in): t.cell for t in capture.touched}
        feeds = {id(f.stand_in): f for f in capture.feeds}
        following = self._following_tape
        if following is not None:
            positions = {id(a): k for k, a in enumerate(program.captured) if id(a) in self._inputs}
            following.locate(
                positions, self._outputs, {key: _source(key, None, positions_of, cells, feeds) for key in self._inputs}
            )
        backward = Backward(
            run=policy.counting(program.compile(), notes),
            inputs=[_source(id(a), a, positions_of, cells, feeds) for a in program.captured],
            used=self._used,
            forms=self._forms,
            written=[t.cell for t in self._writes] + self._survivors,
            draws=capture.advances(),
            tape=following,
            roots=self._roots,
            leaves=self._leaves,
        )
        return backward, following

    def _run(self) -> list[Array]:
        tape, capture = self._tape, self._capture
        with active(capture), traced_calls(capture):
            gradients = self._gradients()
            self._forms = {i: form_of(g) for i, g in enumerate(gradients) if g is not None and is_sparse(g)}
            outputs = [_array(t) for g in gradients if g is not None for t in (parts_of(g) if is_sparse(g) else (g,))]
            self._writes = [t for t in capture.touched if t.cell.array is not t.stand_in]
            outputs += [t.cell.array for t in self._writes]
            del gradients
            # restored before each replay
            replayed = {id(codes.owner(cell)) for t in tape.chain() for cell, _ in t.replayed}
            survivors = codes.split_quantized([cell for cell in capture.survivors() if id(cell) not in replayed])
            known = {id(a) for a in outputs}
            self._survivors = [cell for cell in survivors if id(cell.array) not in known]
            outputs += [c.array for c in self._survivors]
            self._outputs = outputs
            if self._following_tape is None:
                return outputs
            self._following_tape.keep(capture, survivors)
            self._inputs = {**dict.fromkeys(self._positions), **dict.fromkeys(usable(capture, self._writes))}
            return outputs + self._following_tape.outputs(set(self._inputs), outputs)

    def _gradients(self) -> list[Tensor | None]:
        """Walk the tape, and record the walk where it is to be differentiated."""
        tape, capture, slot = self._tape, self._capture, slot_of_backend(self._backend)
        dy = [from_array(a, slot) for a in self._stand_ins[self._count :]]
        first_node = torch.autograd._get_sequence_nr()
        if self._differentiable:
            dy = [t.requires_grad_() for t in dy]
            self._leaves = {id(t): k for k, t in enumerate((*tape.leaves, *dy))}

        def walk(*some_cotangents: Tensor) -> list[Tensor | None]:
            remaining = iter(some_cotangents)
            all_cotangents = [None if a is None else next(remaining) for a in self._cotangents]
            return tape.walk(capture, self._stand_ins[: self._count], all_cotangents, self._differentiable)

        with torch.set_grad_enabled(self._differentiable):
            gradients = _mapped(walk, self._batched, dy) if self._batched else walk(*dy)
            # a gradient may be a cotangent itself
            gradients = [g.view_as(g) if g is not None and g.is_leaf and g.requires_grad else g for g in gradients]
        self._used = [g is not None for g in gradients]
        self._roots = [i for i, g in enumerate(gradients) if g is not None and g.requires_grad]
        if self._roots:
            rooted = [g for g in gradients if g is not None and g.requires_grad]
            self._following_tape = tape.following(rooted, first_node, capture)
        return gradients


def _mapped(
    walk: Callable[..., list[Tensor | None]], batched: Sequence[bool], dy: Sequence[Tensor]
) -> list[Tensor | None]:
    """Walk a tape for each row of the cotangents that are batched, all at once."""
    used: list[bool] = []

    def given_back(*rows: Tensor) -> tuple[Tensor, ...]:
        gradients = walk(*rows)
        used[:] = [g is not None for g in gradients]
        return tuple(g for g in gradients if g is not None)

    batched_gradients = iter(torch.vmap(given_back, tuple(0 if b else None for b in batched))(*dy))
    return [next(batched_gradients) if has else None for has in used]


def usable(capture: Capture, written_tensors: Sequence[Any]) -> set[int]:
    """Return the inputs that a call finds as they were: by the identity of their stand-ins."""
    changed = {id(t) for t in written_tensors}
    return {id(t.stand_in) for t in capture.touched if id(t) not in changed} | {id(f.stand_in) for f in capture.feeds}


def fed_view(t: Tensor) -> Array | None:
    """Return the values of a CPU tensor that is (a view of) an argument of the function being traced, as an input of
    the program; None for any other."""
    capture = current()
    assert capture is not None
    for leaf, value in capture.fed_tensors.values():
        if leaf.untyped_storage()._cdata == t.untyped_storage()._cdata:
            view = partial(_host_view, t.size(), t.stride(), int(t.storage_offset()))
            return capture.feed(partial(_view_at_call, view, value), view(leaf), what="CPU argument")
    return None


def _host_view(size: Sequence[int], stride: Sequence[int], offset: int, of: Tensor) -> np.ndarray:
    return np.ascontiguousarray(cpu_elements(of.detach().as_strided(size, stride, offset)))


def _view_at_call(view: Callable[[Tensor], np.ndarray], value: Callable[[], Tensor]) -> np.ndarray:
    return view(value())


def _array(t: Tensor) -> Array:
    from tensorgraft.frontends.torch.core.tensors import to_array

    state.touch(cell_of(t))
    return to_array(t.detach())


def _source(
    key: int, array: Any, positions_of: dict[int, int], cells: dict[int, Storage], feeds: dict[int, Feed]
) -> Callable[[Sequence[Array]], Array]:
    """Return a function that gives an input of a backward program at a call."""
    if (k := positions_of.get(key)) is not None:
        return lambda arrays: arrays[k]
    if (cell := cells.get(key)) is not None:
        return lambda arrays: cell.array
    if (feed := feeds.get(key)) is not None:
        return lambda arrays: feed.take()
    return lambda arrays: array
