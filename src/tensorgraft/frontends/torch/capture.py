"""One run of a function on the device, traced into a program: what it reads and writes, and what it asks of the host.

While a capture is active, kernels tell it which storages they touch. A storage from outside gets a stand-in for its
array, by which the traced program's inputs are recognised afterwards; what is written to it is an output. Storages
made inside that outlive the trace (results, gradients, a module's cache) are outputs too. Values that the host gives
anew at every call (random state, a learning rate) are feeds.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from tensorgraft.errors import TracedValueError
from tensorgraft.frontends.torch import state
from tensorgraft.frontends.torch.places import Place, program_place
from tensorgraft.frontends.torch.state import RandomState
from tensorgraft.hub import dtypes
from tensorgraft.hub.backend import Backend
from tensorgraft.storage import Storage

Array = Any


@dataclass
class Touched:
    """A storage from outside."""

    cell: Storage
    original: Array
    stand_in: Array


@dataclass
class Feed:
    """A value that the host gives at every call."""

    stand_in: Array
    value: Callable[[], np.ndarray]
    traced: np.ndarray | None = None  # the value at the time of the trace, which the call that traced goes with
    what: str = "random state"

    def take(self) -> np.ndarray:
        if self.traced is None:
            return self.value()
        value, self.traced = self.traced, None
        return value


@dataclass
class Leaf:
    """A tensor that a backward pass inside gives a gradient."""

    tensor: torch.Tensor
    before: torch.Tensor | None  # its gradient when the function began, as far as that is known
    reset: bool  # `zero_grad` inside drops that gradient, so that it does not matter


@dataclass
class Capture:
    backend: Backend
    touched: list[Touched] = field(default_factory=list)
    feeds: list[Feed] = field(default_factory=list)
    born: list[weakref.ref[Storage]] = field(default_factory=list)
    leaves: dict[int, Leaf] = field(default_factory=dict)
    draws: dict[int, tuple[RandomState, Array, int]] = field(default_factory=dict)
    reset: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = field(default_factory=dict)  # by `zero_grad`
    marks: set[tuple[int, int]] = field(default_factory=set)  # random states that were asked for: (whose, offset)
    modules: dict[int, torch.nn.Module] = field(default_factory=dict)
    host_reads: dict[int, tuple[weakref.ref[torch.Tensor], int]] = field(default_factory=dict)
    fed_tensors: dict[int, Callable[[], torch.Tensor]] = field(default_factory=dict)  # CPU arguments, by id
    origins: dict[int, Place | None] = field(default_factory=dict)  # where the program made a storage, by id
    casts: dict[Any, Any] = field(default_factory=dict)  # of weights, by autocast: this program's own

    # ---- storages -------------------------------------------------------------------------------------------------

    def touch(self, cells: Sequence[Storage]) -> None:
        """Kernels call this before they read or write storages."""
        for cell in cells:
            if cell.capture is self:
                continue
            if cell.backend is not self.backend:
                raise RuntimeError(
                    f"tg.jit compiles for one device, {self.backend.name}, but the function uses a tensor on"
                    f" {cell.backend.name}: move it before the call"
                )
            cell.capture = self
            original = cell.array
            stand_in = self.backend.stand_in(original)
            cell.array = stand_in
            self.touched.append(Touched(cell, original, stand_in))

    def created(self, cell: Storage) -> None:
        """Kernels call this for each storage that they make."""
        cell.capture = self
        self.born.append(weakref.ref(cell))
        self.origins[id(cell)] = program_place()

    def survivors(self) -> list[Storage]:
        """The storages made inside that are still alive."""
        return [cell for ref in self.born if (cell := ref()) is not None]

    def restore_gradients(self) -> None:
        """Give every leaf the gradient that it had, after an exception."""
        for leaf in self.leaves.values():
            leaf.tensor.grad = leaf.before
        for tensor, before in self.reset.values():
            tensor.grad = before

    def restore(self) -> None:
        """Put every storage from outside back as it was."""
        for t in self.touched:
            t.cell.array = t.original
            t.cell.capture = None
        for cell in self.survivors():
            cell.capture = None

    # ---- what the host gives --------------------------------------------------------------------------------------

    def feed(
        self,
        value: Callable[[], np.ndarray],
        example: np.ndarray,
        at_trace: bool = False,
        what: str = "random state",
    ) -> Array:
        """An input whose value the host gives at every call. `at_trace`: the call that traces takes the example, since
        the traced function itself may change the value afterwards (a scheduler does)."""
        with self.backend.eagerly():
            stand_in = self.backend.asarray(example)
        self.feeds.append(Feed(stand_in, value, example if at_trace else None, what))
        return stand_in

    def draw(self, source: RandomState) -> Array:
        """The words of the next draw of a device's random state: its words at the call, the offset counted up."""
        held = self.draws.get(id(source))
        words, n = (self.feed(source.words, source.words()), 0) if held is None else held[1:]
        self.draws[id(source)] = (source, words, n + 1)
        if n == 0:
            return words
        xp = self.backend
        high, low = (xp.slice(words, (i,), (i + 1,), (1,)) for i in (2, 3))
        ahead = xp.add(low, xp.full((), n, dtypes.uint32))
        high = xp.add(high, xp.astype(xp.less(ahead, low), dtypes.uint32))
        return xp.concat([xp.slice(words, (0,), (2,), (1,)), high, ahead], axis=0)

    def mark_draws(self, source: RandomState) -> int:
        """The offset that a random state has reached, for `rewind_draws`."""
        held = self.draws.get(id(source))
        offset = source.offset + (0 if held is None else held[2])
        self.marks.add((id(source), offset))
        return offset

    def rewind_draws(self, source: RandomState, seed: int, offset: int) -> None:
        """Go back to a random state that was asked for inside (checkpointing does). Raises TracedValueError for one
        from outside, which would be that of the first call for ever."""
        if seed != source.seed or (id(source), offset) not in self.marks:
            raise TracedValueError(
                "a random state from outside is set inside tg.jit, where a program is compiled whose random numbers go"
                " on from call to call: set it outside"
            )
        if id(source) in self.draws:
            _, words, _ = self.draws[id(source)]
            self.draws[id(source)] = (source, words, offset - source.offset)

    def draw_from(self, generator: torch.Generator) -> Array:
        """The words of a generator of the program: a new seed from it at every call."""
        from tensorgraft.frontends.torch.generator import seed_from

        return self.feed(lambda: RandomState(seed=seed_from(generator)).words(), np.zeros(4, np.uint32))

    def host_array(self, t: torch.Tensor, view: Callable[[torch.Tensor], np.ndarray]) -> Any:
        """What goes into the program for a CPU tensor: an argument of the function is fed at every call, anything else
        is a constant (that `watch.HostWatch` guards)."""
        value = self.fed_tensors.get(id(t))
        return view(t) if value is None else self.feed(lambda: view(value()), view(t), what="CPU argument")

    # ---- gradients ------------------------------------------------------------------------------------------------

    def note_leaves(self, roots: Sequence[Any]) -> None:
        """Before a backward pass: remember the leaves that it reaches, and the gradients that they have."""
        stack = [t.grad_fn for t in roots if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        leaves = [t for t in roots if isinstance(t, torch.Tensor) and t.grad_fn is None and t.requires_grad]
        seen = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None:
                leaves.append(variable)
            stack.extend(after for after, _ in node.next_functions if after is not None)
        for leaf in leaves:
            if id(leaf) not in self.leaves:
                self.leaves[id(leaf)] = Leaf(leaf, leaf.grad, id(leaf) in self.reset)

    def note_reset(self, tensors: Sequence[torch.Tensor]) -> None:
        """`zero_grad(set_to_none=True)` is about to drop the gradients of these tensors."""
        for t in tensors:
            self.reset.setdefault(id(t), (t, t.grad))


class active:
    """The context in which a capture is under way. Captures do not nest: raises RuntimeError."""

    def __init__(self, capture: Capture) -> None:
        self.capture = capture

    def __enter__(self) -> Capture:
        if state.now.capture is not None:
            raise RuntimeError(
                "tg.jit inside tg.jit: call the function itself, the outer one compiles it with the rest"
            )
        state.now.capture = self.capture
        return self.capture

    def __exit__(self, *_: object) -> None:
        state.now.capture = None


class paused:
    """Inside a capture: compute at once, on storages that the capture will find as if they had been there before."""

    def __enter__(self) -> None:
        self._capture = state.now.capture
        assert self._capture is not None
        self._eager = self._capture.backend.eagerly()
        self._eager.__enter__()
        state.now.capture = None

    def __exit__(self, *exc: Any) -> None:
        state.now.capture = self._capture
        self._eager.__exit__(*exc)
